"""Content of results that is not text: a description, and the bytes to save."""

from __future__ import annotations

import shlex
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from leaseway.cli.output.files import Piece, file_name
from leaseway.cli.output.tables import one_line
from leaseway.wire.messages.artifact_refs import extension_of, media_type
from leaseway.wire.text.base64_text import decoded

if TYPE_CHECKING:
    from leaseway.sdk import AsyncClient, AsyncSession, ToolResult

_MAX_SHOWN = 500
"""Characters of an embedded text that is shown."""


def describe_item(item: dict[str, Any], hint: str = "--json prints it") -> str:
    """Describe a content item that is not text; a short embedded text is shown.

    Args:
        hint: How to get its content; may be empty.
    """
    kind = str(item.get("type", "unknown"))
    facts = [str(item[key]) for key in ("mimeType", "name", "uri") if key in item]
    resource = item.get("resource")
    if isinstance(resource, dict):
        facts.append(str(resource.get("uri", "")))
        text = resource.get("text")
        if isinstance(text, str) and len(text) <= _MAX_SHOWN:
            return f"[{one_line(' '.join([kind, *facts]))}: {one_line(text)}]"
    size = _size(item)
    if size is not None:
        facts.append(f"{size} bytes")
    return f"[{one_line(' '.join([kind, *facts]))}{f'; {hint}' if hint else ''}]"


def how_to_get(item: dict[str, Any], session: str | None, user: str = "") -> str:
    """Return a hint how to get the content of an item of a call's result."""
    ref = item.get("artifact")
    if isinstance(ref, str) and session is not None:
        owner = f"--session {shlex.quote(session)}" + (
            f" --user {shlex.quote(user)}" if user else ""
        )
        return f"leaseway artifact {shlex.quote(ref)} {owner} prints it"
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
        return decoded(encoded)
    except ValueError:
        return None


async def result_pieces(
    result: ToolResult, caller: AsyncClient | AsyncSession, tool: str
) -> list[Piece]:
    """Return the images, sounds and embedded files of a result; reads its artifacts.

    Args:
        result: The call's result.
        caller: The client or session that made the call; it reads the artifacts.
        tool: The tool's name, used as the name of images and sounds.

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
    files = (resource_piece(part) for part in embedded if isinstance(part, dict) and "blob" in part)
    return [*pieces, *(piece for piece in files if piece is not None)]


def resource_piece(part: dict[str, Any]) -> Piece | None:
    """Return a part of a resource as a file; None if it is neither text nor base64."""
    text, blob, declared = part.get("text"), part.get("blob"), part.get("mimeType")
    encoded = blob if isinstance(blob, str) else "-"  # not base64
    content = text.encode() if isinstance(text, str) else _decoded(encoded)
    mime_type = media_type(declared) if isinstance(declared, str) else ""
    return None if content is None else Piece(content, _name(str(part.get("uri", ""))), mime_type)


def _name(uri: str) -> str:
    try:
        path = urlsplit(uri).path
    except ValueError:
        path = ""
    return file_name(PurePosixPath(path).name)
