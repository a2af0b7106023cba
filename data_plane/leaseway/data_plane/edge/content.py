"""MCP results as typed content, for callers without an exchange (DESIGN §6)."""

from __future__ import annotations

from typing import Any

import msgspec
from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct, Value

from leaseway.data_plane.core.media import BadMedia, media_from_text
from leaseway.v1 import execution_pb2
from leaseway.wire import bounds
from leaseway.wire.fault import Fault
from leaseway.wire.reasons import Reason

__all__ = ["arguments_from_struct", "typed_result"]

_decode = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode
_LARGEST_EXACT = 2.0**53  # beyond it a double no longer holds every integer
_OWN_FIELDS = frozenset({"content", "structuredContent", "isError"})


def arguments_from_struct(arguments: Struct) -> bytes:
    """Return arguments as JSON; whole numbers become integers, as Struct has none."""
    return _encode(_with_integers(json_format.MessageToDict(arguments)))


def _with_integers(value: Any) -> Any:
    match value:
        case float() if value.is_integer() and abs(value) <= _LARGEST_EXACT:
            return int(value)
        case dict():
            return {name: _with_integers(item) for name, item in value.items()}
        case list():
            return [_with_integers(item) for item in value]
        case _:
            return value


def typed_result(payload: bytes, is_error: bool) -> execution_pb2.CallToolResponse:
    """Return an MCP `result` object as a typed response.

    Raises:
        Fault: SERVER_ERROR: the server's result is not a JSON object.

    """
    try:
        result = _decode(payload)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Fault(
            Reason.SERVER_ERROR,
            "The server's result is not a JSON object; report it to the server's maintainer.",
            "yes",
        ) from error
    response = execution_pb2.CallToolResponse(is_error=is_error)
    content = result.get("content")
    for item in content if isinstance(content, list) else ():
        response.content.append(_content(item))
    if "structuredContent" in result:
        response.structured.CopyFrom(json_format.ParseDict(result["structuredContent"], Value()))
    extra = {name: value for name, value in result.items() if name not in _OWN_FIELDS}
    if extra:
        response.extra.update(extra)
    return response


def _content(item: Any) -> execution_pb2.Content:
    if not isinstance(item, dict):
        return execution_pb2.Content(other=_struct({"value": item}))
    kind = item.get("type")
    if kind == "text" and isinstance(item.get("text"), str):
        return execution_pb2.Content(text=item["text"])
    if kind in ("image", "audio"):
        media = _media(item)
        if media is not None:
            if kind == "image":
                return execution_pb2.Content(image=media)
            return execution_pb2.Content(audio=media)
    if kind == "resource_link":
        return execution_pb2.Content(resource_link=_struct(item))
    if kind == "resource":
        return execution_pb2.Content(resource=_struct(item))
    return execution_pb2.Content(other=_struct(item))


def _media(item: dict[str, Any]) -> execution_pb2.Media | None:
    """Return an image or a sound: where it is kept, or its bytes; None where it has neither."""
    mime_type = item.get("mimeType")
    said = mime_type if isinstance(mime_type, str) else ""
    ref, length = item.get("artifact"), item.get("byteLength")
    if isinstance(ref, str) and isinstance(length, int) and 0 <= length <= bounds.MAX_ARTIFACT:
        return execution_pb2.Media(mime_type=said, artifact=ref, byte_length=length)
    data = item.get("data")
    if not isinstance(data, str):
        return None
    media = media_from_text("image", said, data)
    try:
        content = b"".join(media.parts())
    except BadMedia:
        return None
    return execution_pb2.Media(
        mime_type=said or media.mime_type, data=content, byte_length=len(content)
    )


def _struct(item: dict[str, Any]) -> Struct:
    struct = Struct()
    struct.update(item)
    return struct
