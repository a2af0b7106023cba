"""Frames of the exchange, written as the bytes that protobuf would make of them.

A batch is one field after the other, so its frames can be serialized where they are made and
joined when they are sent; a field that holds one message is merged by the reader where it comes
twice. For the two frames that each call has, that costs a quarter of building the messages,
copying them into a batch and serializing that, and a chunk is copied once. Everything else is
built by the generated classes and wrapped by `frame`. Reading is protobuf's alone. Pure.
"""

from __future__ import annotations

from typing import Any, Final

from leaseway.v1 import execution_pb2

_ONE: Final = tuple(bytes([value]) for value in range(128))
_MORE: Final = tuple(bytes([value | 128]) for value in range(128))
_VARINT: Final = 0
_LENGTH: Final = 2


def varint(value: int) -> bytes:
    """Return a number that is not negative in protobuf's variable length."""
    if value < 128:
        return _ONE[value]
    if value < 16384:
        return _MORE[value & 127] + _ONE[value >> 7]
    return _MORE[value & 127] + varint(value >> 7)


def frame_tag(batch: type[Any], field: str) -> bytes:
    """Return what begins a frame of a batch's field.

    Raises:
        KeyError: The batch has no such field.
    """
    return varint(batch.DESCRIPTOR.fields_by_name[field].number << 3 | _LENGTH)


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
    """Return any message as a frame.

    Args:
        tag: Which field of the batch, from `frame_tag`.
        message: A generated message of that field's type.
    """
    body: bytes = message.SerializeToString()
    return tag + varint(len(body)) + body


def call_frame(call_id: int, head: bytes, arguments: bytes, timeout_ms: int) -> bytes:
    """Return a call as a frame.

    Args:
        call_id: Names it on its stream; above zero.
        head: All other fields, as a serialized `Call` without these three.
        arguments: UTF-8 JSON, or empty where they went as chunks.
        timeout_ms: Milliseconds until the caller gives up.
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
    """Return the end of a call as a frame.

    Args:
        call_id: The call.
        payload: The MCP result, or empty where it went as chunks or there is none.
        is_error: What the tool said about itself.
        rest: All other fields, as a serialized `Result` without these three.
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
    """Return a part of a payload as a frame; both directions have the same field for it."""
    head = b"%b%b%b%b" % (_CHUNK_ID, varint(call_id), _CHUNK_DATA, varint(len(data)))
    tail = _CHUNK_LAST if last else b""
    size = varint(len(head) + len(data) + len(tail))
    return b"".join((_CHUNKS, size, head, data, tail))
