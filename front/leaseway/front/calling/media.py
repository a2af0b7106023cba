"""Images and audio as `resource_link`, for clients that request links instead of inline bytes.

The worker stores them as artifacts of the client's session. The client reads a linked artifact as a
resource, through any front.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any, Final, Literal

import msgspec

from leaseway.front.protocol.messages import JsonRpcError, decode, encode
from leaseway.front.protocol.results import RESOURCE_NOT_FOUND
from leaseway.sdk import ArtifactLost, AsyncClient, AsyncSession
from leaseway.wire.bounds import MAX_RESULT
from leaseway.wire.messages.artifact_refs import is_reference
from leaseway.wire.messages.mcp import INVALID_PARAMS

MediaMode = Literal["inline", "links"]

MEDIA_HEADER: Final = "Leaseway-Media"
MEDIA_KEY: Final = "leaseway/media"
"""The header, and the key of `_meta`, in which a request chooses its media mode."""

_SCHEME: Final = "leaseway://"
_MARK: Final = b'"artifact"'
_Members = dict[str, msgspec.Raw]
_members: Final = msgspec.json.Decoder(_Members).decode
_items: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


def parse_media_mode(value: object) -> MediaMode | None:
    """Check a client's media mode; raises `JsonRpcError` for an unknown one."""
    if value is None or value == "inline" or value == "links":
        return value
    raise JsonRpcError(
        INVALID_PARAMS, f"{MEDIA_HEADER} and `{MEDIA_KEY}` must be `inline` or `links`."
    )


def link_media(payload: bytes) -> bytes:
    """Replace stored images and audio in a result by `resource_link`; all else is unchanged."""
    if _MARK not in payload:
        return payload
    try:
        members = _members(payload)
        if "content" in members:
            members["content"] = _content(members["content"])
        if "messages" in members:
            messages = [_message(message) for message in _items(members["messages"])]
            members["messages"] = msgspec.Raw(encode(messages))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return payload  # not a valid result; the client decides
    return encode(members)


def _message(message: msgspec.Raw) -> _Members:
    members = _members(message)
    if "content" in members:
        members["content"] = _content(members["content"])
    return members


def _content(content: msgspec.Raw) -> msgspec.Raw:
    if bytes(content)[:1] == b"{":
        return _item(content)
    return msgspec.Raw(encode([_item(item) for item in _items(content)]))


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


def artifact_ref(uri: str) -> str | None:
    """Return the artifact reference in a `leaseway://` URI, or None for any other URI."""
    ref = uri.removeprefix(_SCHEME)
    return ref if ref != uri and is_reference(ref) else None


async def read_artifact(
    reader: AsyncClient | AsyncSession, uri: str, ref: str, *, modern: bool
) -> bytes:
    """Return the result of `resources/read` for an artifact.

    Raises:
        JsonRpcError: The client has no such artifact, or it is too large for one message.
        LeasewayError: Its worker does not answer.
    """
    artifact = reader.read_artifact(ref)
    parts: list[bytes] = []
    try:
        async for part in artifact:
            if artifact.byte_length > MAX_RESULT:
                raise JsonRpcError(
                    INVALID_PARAMS,
                    f"The artifact has {artifact.byte_length} bytes; the limit over MCP is "
                    f"{MAX_RESULT}. The SDK's `read_artifact` reads any size.",
                )
            parts.append(part)
    except ArtifactLost as error:
        code = INVALID_PARAMS if modern else RESOURCE_NOT_FOUND
        data = {"uri": uri, "reason": str(error.reason), "started": error.started}
        raise JsonRpcError(code, str(error), data) from None
    finally:
        await artifact.close()
    blob = b64encode(b"".join(parts)).decode()
    return encode({"contents": [{"uri": uri, "mimeType": artifact.mime_type, "blob": blob}]})
