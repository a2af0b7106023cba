"""Encodes frames of the exchange as the bytes that protobuf would produce.

A batch is a sequence of fields, so frames can be serialized separately and joined when they are
sent; protobuf merges a singular message field that occurs twice. For the two frames of each call
this takes a quarter of the time of building the messages, copying them into a batch and serializing
it, and a chunk is copied only once. Other frames are built by the generated classes and wrapped by
`frame`. Decoding is left to protobuf. Pure.
"""

from __future__ import annotations

from typing import Any, Final

from leaseway.v1 import execution_pb2

_ONE: Final = tuple(bytes([value]) for value in range(128))
_MORE: Final = tuple(bytes([value | 128]) for value in range(128))
_VARINT: Final = 0
_LENGTH: Final = 2


def varint(value: int) -> bytes:
    """Encode a non-negative number as a protobuf varint."""
    if value < 128:
        return _ONE[value]
    if value < 16384:
        return _MORE[value & 127] + _ONE[value >> 7]
    return _MORE[value & 127] + varint(value >> 7)


def frame_tag(batch: type[Any], field: str) -> bytes:
    """Return the tag of a frame in a field of a batch.

    Raises:
        KeyError: The batch does not have the field.
    """
    return _tag(batch, field, _LENGTH)


def _tag(message: type[Any], field: str, wire_type: int) -> bytes:
    return varint(message.DESCRIPTOR.fields_by_name[field].number << 3 | wire_type)


_CALLS: Final = frame_tag(execution_pb2.ExchangeRequest, "calls")
_RESULTS: Final = frame_tag(execution_pb2.ExchangeResponse, "results")
_CHUNKS: Final = frame_tag(execution_pb2.ExchangeResponse, "chunks")
_CALL_ID: Final = _tag(execution_pb2.Call, "id", _VARINT)
_CALL_TIMEOUT: Final = _tag(execution_pb2.Call, "timeout_ms", _VARINT)
_CALL_ARGUMENTS: Final = _tag(execution_pb2.Call, "arguments", _LENGTH)
_RESULT_ID: Final = _tag(execution_pb2.Result, "call_id", _VARINT)
_RESULT_PAYLOAD: Final = _tag(execution_pb2.Result, "payload", _LENGTH)
_RESULT_ERROR: Final = _tag(execution_pb2.Result, "is_error", _VARINT) + b"\1"
_CHUNK_ID: Final = _tag(execution_pb2.Chunk, "call_id", _VARINT)
_CHUNK_DATA: Final = _tag(execution_pb2.Chunk, "data", _LENGTH)
_CHUNK_LAST: Final = _tag(execution_pb2.Chunk, "last", _VARINT) + b"\1"


def frame(tag: bytes, message: Any) -> bytes:
    """Encode any message as a frame.

    Args:
        tag: The field of the batch, from `frame_tag`.
        message: A generated message of the field's type.
    """
    body: bytes = message.SerializeToString()
    return tag + varint(len(body)) + body


def call_frame(call_id: int, head: bytes, arguments: bytes, timeout_ms: int) -> bytes:
    """Encode a call as a frame.

    Args:
        call_id: Identifies the call on its stream; above zero.
        head: All other fields, as a serialized `Call`.
        arguments: UTF-8 JSON, or empty if they were sent as chunks.
        timeout_ms: Milliseconds until the caller's deadline.
    """
    body = b"%b%b%b%b%b%b%b%b" % (
        _CALL_ID,
        varint(call_id),
        _CALL_TIMEOUT,
        varint(timeout_ms),
        _CALL_ARGUMENTS,
        varint(len(arguments)),
        arguments,
        head,
    )
    return _CALLS + varint(len(body)) + body


def result_frame(call_id: int, payload: bytes, is_error: bool, rest: bytes = b"") -> bytes:
    """Encode the result of a call as a frame.

    Args:
        call_id: The call.
        payload: The MCP result, or empty if it was sent as chunks or does not exist.
        is_error: Whether the tool reported an error.
        rest: All other fields, as a serialized `Result`.
    """
    body = b"%b%b%b%b%b%b%b" % (
        _RESULT_ID,
        varint(call_id),
        _RESULT_PAYLOAD,
        varint(len(payload)),
        payload,
        _RESULT_ERROR if is_error else b"",
        rest,
    )
    return _RESULTS + varint(len(body)) + body


def chunk_frame(call_id: int, data: bytes | memoryview, last: bool) -> bytes:
    """Encode a part of a payload as a frame; both directions use the same field number."""
    head = b"%b%b%b%b" % (_CHUNK_ID, varint(call_id), _CHUNK_DATA, varint(len(data)))
    tail = _CHUNK_LAST if last else b""
    size = varint(len(head) + len(data) + len(tail))
    return b"".join((_CHUNKS, size, head, data, tail))
