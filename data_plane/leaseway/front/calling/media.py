"""Images and sounds as links, for clients that ask for that instead of the bytes in place.

The worker keeps them as artifacts of the client's session; a link names one, and the client reads
it as a resource through any front. Without the wish they stay where their server put them.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any, Final, Literal

import msgspec
from mcp_types.jsonrpc import INVALID_PARAMS

from leaseway.front.messages import RpcError, decode, encode
from leaseway.sdk import ArtifactLost, AsyncClient, AsyncSession
from leaseway.wire.bounds import MAX_RESULT
from leaseway.wire.messages.artifact_refs import is_reference

MediaWish = Literal["inline", "links"]

MEDIA_HEADER: Final = "Leaseway-Media"
MEDIA_KEY: Final = "leaseway/media"
"""The header, and the key of `_meta`, with which a request says how it wants images and sounds."""

_SCHEME: Final = "leaseway://"
_MARK: Final = b'"artifact"'
_NOT_FOUND: Final = -32002
"""A resource that is not there, before 2026-07-28 (2025-11-25, server/resources)."""

_Members = dict[str, msgspec.Raw]
_members: Final = msgspec.json.Decoder(_Members).decode
_items: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


def media_wish(said: object) -> MediaWish | None:
    """Return how a client wants images and sounds; None where it does not say.

    Raises:
        RpcError: There is no such way.
    """
    if said is None or said == "inline" or said == "links":
        return said
    raise RpcError(
        INVALID_PARAMS, f"{MEDIA_HEADER} and `{MEDIA_KEY}` are `inline` or `links`, nothing else."
    )


def link_media(payload: bytes) -> bytes:
    """Return a result with a `resource_link` for each image or sound that a worker keeps.

    All else keeps the bytes that the server sent.
    """
    if _MARK not in payload:
        return payload
    try:
        members = _members(payload)
        if "content" in members:
            members["content"] = _content(members["content"])
        if "messages" in members:
            messages = [_message(each) for each in _items(members["messages"])]
            members["messages"] = msgspec.Raw(encode(messages))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return payload  # the client may know what it is
    return encode(members)


def _message(message: msgspec.Raw) -> _Members:
    members = _members(message)
    if "content" in members:
        members["content"] = _content(members["content"])
    return members


def _content(content: msgspec.Raw) -> msgspec.Raw:
    if bytes(content)[:1] == b"{":
        return _item(content)
    return msgspec.Raw(encode([_item(each) for each in _items(content)]))


def _item(raw: msgspec.Raw) -> msgspec.Raw:
    if _MARK not in bytes(raw):
        return raw
    item = decode(raw)
    ref = item.get("artifact") if isinstance(item, dict) else None
    kind = item.get("type") if ref is not None else None
    if not isinstance(ref, str) or kind not in ("image", "audio") or not is_reference(ref):
        return raw
    link: dict[str, Any] = {
        "type": "resource_link",
        "uri": _SCHEME + ref,
        "name": ref.rpartition("/")[2],
        "mimeType": item.get("mimeType"),
        "size": item.get("byteLength"),
    }
    link.update({key: item[key] for key in ("annotations", "_meta") if key in item})
    return msgspec.Raw(encode(link))


def linked_artifact(uri: str) -> str | None:
    """Return the reference of the artifact that a URI names, or None where it names none."""
    ref = uri.removeprefix(_SCHEME)
    return ref if ref != uri and is_reference(ref) else None


async def read_linked(
    reader: AsyncClient | AsyncSession, uri: str, ref: str, *, modern: bool
) -> bytes:
    """Return the result of `resources/read` for an artifact.

    Raises:
        RpcError: It is not there for this client, or has too many bytes for one message.
        LeasewayError: Its worker does not answer.
    """
    artifact = reader.read_artifact(ref)
    parts: list[bytes] = []
    try:
        async for part in artifact:
            if artifact.byte_length > MAX_RESULT:
                raise RpcError(
                    INVALID_PARAMS,
                    f"This has {artifact.byte_length} bytes; over MCP at most {MAX_RESULT} are "
                    "read. The SDK's `read_artifact` reads any size.",
                )
            parts.append(part)
    except ArtifactLost as error:
        code = INVALID_PARAMS if modern else _NOT_FOUND
        data = {"uri": uri, "reason": str(error.reason), "started": error.started}
        raise RpcError(code, str(error), data) from None
    finally:
        await artifact.close()
    blob = b64encode(b"".join(parts)).decode()
    return encode({"contents": [{"uri": uri, "mimeType": artifact.mime_type, "blob": blob}]})
