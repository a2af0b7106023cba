"""Content of results that is no text: in words, and as bytes to save."""

from __future__ import annotations

import base64
import binascii
import shlex
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from leaseway.cli.output.files import Piece, file_name
from leaseway.cli.output.tables import one_line
from leaseway.wire.messages.artifact_refs import extension_of, media_type

if TYPE_CHECKING:
    from leaseway.sdk import AsyncClient, AsyncSession, ToolResult


def describe_item(item: dict[str, Any], how: str = "--json prints it") -> str:
    """Return a content item that is no text in a few words.

    Args:
        item: The item.
        how: How to come by what it holds; empty for nothing to say of that.
    """
    kind = str(item.get("type", "unknown"))
    facts = [str(item[key]) for key in ("mimeType", "name", "uri") if key in item]
    resource = item.get("resource")
    if isinstance(resource, dict):
        facts.append(str(resource.get("uri", "")))
    size = _size(item)
    if size is not None:
        facts.append(f"{size} bytes")
    return f"[{one_line(' '.join([kind, *facts]))}{f'; {how}' if how else ''}]"


def how_to_get(item: dict[str, Any], session: str | None) -> str:
    """Return how to come by what an item of a call's result holds."""
    ref = item.get("artifact")
    if isinstance(ref, str) and session is not None:
        return f"leaseway artifact {shlex.quote(ref)} --session {shlex.quote(session)} gives it"
    if item.get("type") == "resource_link" and isinstance(item.get("uri"), str):
        return f"leaseway resource {shlex.quote(one_line(item['uri']))} reads it"
    return "--output PATH saves it" if _size(item) is not None else "--json prints it"


def _size(item: dict[str, Any]) -> int | None:
    if isinstance(item.get("byteLength"), int):
        return int(item["byteLength"])
    resource = item.get("resource")
    encoded = resource.get("blob") if isinstance(resource, dict) else item.get("data")
    content = _decoded(encoded) if isinstance(encoded, str) else None
    return len(content) if content is not None else None


def _decoded(encoded: str) -> bytes | None:
    try:
        return base64.b64decode("".join(encoded.split()), validate=True)
    except (ValueError, binascii.Error):
        return None


async def pieces_of(
    result: ToolResult, caller: AsyncClient | AsyncSession, tool: str
) -> list[Piece]:
    """Return the images, sounds and embedded files of a result, artifacts read.

    Args:
        result: What a call gave.
        caller: Who made it.
        tool: Its name, after which images and sounds are named.

    Raises:
        LeasewayError: An artifact cannot be read.
    """
    pieces = []
    for media in result.media:
        content = media.data
        if content is None:
            assert media.artifact is not None
            content = await caller.read_artifact(media.artifact)
        name = file_name(tool, extension_of(media.mime_type))
        pieces.append(Piece(content, name, media.mime_type))
    embedded = (item.get("resource") for item in result.content if isinstance(item, dict))
    files = (resource_piece(one) for one in embedded if isinstance(one, dict) and "blob" in one)
    return [*pieces, *(one for one in files if one is not None)]


def resource_piece(part: dict[str, Any]) -> Piece | None:
    """Return what a part of a resource holds; None where that cannot be read."""
    text, blob, said = part.get("text"), part.get("blob"), part.get("mimeType")
    encoded = blob if isinstance(blob, str) else "-"  # which is no base64
    content = text.encode() if isinstance(text, str) else _decoded(encoded)
    mime_type = media_type(said) if isinstance(said, str) else ""
    return None if content is None else Piece(content, _name(str(part.get("uri", ""))), mime_type)


def _name(uri: str) -> str:
    try:
        path = urlsplit(uri).path
    except ValueError:
        path = ""
    return file_name(PurePosixPath(path).name)
