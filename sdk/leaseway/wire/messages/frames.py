"""Frames of the exchange: their bytes, the queue that joins them to batches, and the way back.

**Bytes.** A batch is a sequence of fields, so frames can be serialized separately and joined when
they are sent; protobuf merges a singular message field that occurs twice. For the two frames of
each call this takes a quarter of the time of building the messages, copying them into a batch and
serializing it, and a chunk is copied only once. Other frames are built by the generated classes and
wrapped by `frame`. Decoding is left to protobuf.

**Batches.** Small frames are sent in order, up to 256 KiB per batch. A payload above 256 KiB is
split into chunks; each batch holds one chunk, of the large payloads in rotation, after the small
frames. So a 16 MiB result delays a small one by at most one chunk, and small ones never starve it.
No I/O: the exchange's writer task on either side sends the batches (design.md#calls).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from leaseway.v1 import execution_pb2
from leaseway.wire.bounds import BATCH_SIZE

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
    if value < 2097152:  # most call ids, and timeouts
        return _MORE[value & 127] + _MORE[value >> 7 & 127] + _ONE[value >> 14]
    return _MORE[value & 127] + varint(value >> 7)


_size: Final = lru_cache(1024)(varint)
"""The varint of a number that returns: a length, or a timeout. From a cache in C."""


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
_CALL_HEAD: Final = _tag(execution_pb2.Call, "head", _LENGTH)
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


def head_field(head: bytes) -> bytes:
    """Return a serialized `Call` with a serialized `CallHead` and nothing else."""
    return b"%b%b%b" % (_CALL_HEAD, varint(len(head)), head)


def call_frame(call_id: int, fields: bytes, arguments: bytes, timeout_ms: int) -> bytes:
    """Encode a call as a frame.

    Args:
        call_id: Identifies the call on its stream; above zero.
        fields: All other fields, as a serialized `Call`.
        arguments: UTF-8 JSON, or empty if they were sent as chunks.
        timeout_ms: Milliseconds until the caller's deadline.
    """
    body = b"".join(
        (
            _CALL_ID,
            varint(call_id),
            _CALL_TIMEOUT,
            _size(timeout_ms),
            _CALL_ARGUMENTS,
            _size(len(arguments)),
            arguments,
            fields,
        )
    )
    return _CALLS + _size(len(body)) + body


def result_frame(call_id: int, payload: bytes, is_error: bool, rest: bytes = b"") -> bytes:
    """Encode the result of a call as a frame.

    Args:
        payload: The MCP result, or empty if it was sent as chunks or does not exist.
        is_error: Whether the tool reported an error.
        rest: All other fields, as a serialized `Result`.
    """
    body = b"".join(
        (
            _RESULT_ID,
            varint(call_id),
            _RESULT_PAYLOAD,
            _size(len(payload)),
            payload,
            _RESULT_ERROR if is_error else b"",
            rest,
        )
    )
    return _RESULTS + _size(len(body)) + body


def chunk_frame(call_id: int, data: bytes | memoryview, last: bool) -> bytes:
    """Encode a part of a payload as a frame; both directions use the same field number."""
    head = b"%b%b%b%b" % (_CHUNK_ID, varint(call_id), _CHUNK_DATA, varint(len(data)))
    tail = _CHUNK_LAST if last else b""
    size = varint(len(head) + len(data) + len(tail))
    return b"".join((_CHUNKS, size, head, data, tail))


@dataclass(slots=True, eq=False)
class _Large:
    """A payload that may be partly sent, and the frame that follows it."""

    call_id: int
    payload: memoryview
    frame: bytes


class Outbox:
    """Serialized frames that are queued for one stream.

    Args:
        wake: Called when a frame is added to the empty queue.

    Attributes:
        queued_bytes: Total size of the queued frames.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._last_ticket = 0
        self._small: dict[int, bytes] = {}
        self._large: dict[int, _Large] = {}
        self.queued_bytes = 0

    def __bool__(self) -> bool:
        return self.queued_bytes > 0

    def __len__(self) -> int:
        """Number of queued frames, without large payloads."""
        return len(self._small)

    def put(self, frame: bytes) -> int:
        """Queue a frame; return a ticket to withdraw it."""
        idle = not self.queued_bytes
        self._last_ticket = ticket = self._last_ticket + 1
        self._small[ticket] = frame
        self.queued_bytes += len(frame)
        if idle:
            self._wake()
        return ticket

    def put_large(self, frame: bytes, call_id: int, payload: bytes) -> int:
        """Queue a payload above 256 KiB, and the frame that follows its last chunk.

        Returns:
            A ticket to withdraw both.
        """
        idle = not self.queued_bytes
        self._last_ticket = ticket = self._last_ticket + 1
        self._large[ticket] = _Large(call_id, memoryview(payload), frame)
        self.queued_bytes += len(payload) + len(frame)
        if idle:
            self._wake()
        return ticket

    def holds(self, ticket: int) -> bool:
        """Return whether a frame is still queued."""
        return ticket in self._small or ticket in self._large

    def withdraw(self, ticket: int) -> bool:
        """Remove a frame; return whether it was still queued.

        Chunks of its payload may have been sent, but not the frame itself.
        """
        frame = self._small.pop(ticket, None)
        if frame is not None:
            self.queued_bytes -= len(frame)
            return True
        large = self._large.pop(ticket, None)
        if large is not None:
            self.queued_bytes -= len(large.payload) + len(large.frame)
        return large is not None

    def clear(self) -> None:
        """Drop everything: the stream has failed."""
        self._small.clear()
        self._large.clear()
        self.queued_bytes = 0

    def next_batch(self) -> bytes:
        """Remove and return the next batch; empty if nothing is queued."""
        if self.queued_bytes <= BATCH_SIZE and not self._large:
            frames, self._small, self.queued_bytes = self._small, {}, 0
            return b"".join(frames.values())
        parts = self._pop_small()
        # Every batch has a chunk, or a steady stream of small frames would starve it. 256 KiB of
        # small frames, the frame that exceeds them and a chunk stay below 1 MiB.
        if self._large:
            parts += self._pop_chunk()
        self.queued_bytes -= sum(map(len, parts))
        return b"".join(parts)

    def _pop_small(self) -> list[bytes]:
        tickets: list[int] = []
        remaining = BATCH_SIZE
        for ticket, frame in self._small.items():
            if remaining <= 0:
                break
            tickets.append(ticket)
            remaining -= len(frame)
        return [self._small.pop(ticket) for ticket in tickets]

    def _pop_chunk(self) -> list[bytes]:
        """Remove a chunk of the next large payload, with its frame after the last chunk."""
        ticket, large = next(iter(self._large.items()))
        del self._large[ticket]
        data, large.payload = large.payload[:BATCH_SIZE], large.payload[BATCH_SIZE:]
        chunk = chunk_frame(large.call_id, data, last=not large.payload)
        self.queued_bytes += len(chunk) - len(data)
        if not large.payload:
            return [chunk, large.frame]
        self._large[ticket] = large  # behind the others
        return [chunk]


class OversizePayload(Exception):
    """The chunks of a call exceed their limit."""


class Assembler:
    """Joins the chunks of payloads.

    Args:
        limit: Maximum length of a payload in bytes; the rest is dropped, and taking the payload
            raises `OversizePayload`.
        max_payloads: Maximum number of incomplete payloads.

    Attributes:
        held_bytes: Total size of the incomplete payloads.
    """

    def __init__(self, limit: int, max_payloads: int) -> None:
        self._limit = limit
        self._max_payloads = max_payloads
        self._parts: dict[int, bytearray] = {}
        self.held_bytes = 0

    def __len__(self) -> int:
        return len(self._parts)

    def __contains__(self, call_id: int) -> bool:
        return call_id in self._parts

    def add(self, chunk: execution_pb2.Chunk) -> None:
        """Add one chunk.

        Raises:
            OversizePayload: There are too many incomplete payloads.
        """
        parts = self._parts.get(chunk.call_id)
        if parts is None:
            if len(self._parts) >= self._max_payloads:
                raise OversizePayload(
                    f"more than {self._max_payloads} chunked payloads are incomplete"
                )
            parts = self._parts[chunk.call_id] = bytearray()
        if len(parts) <= self._limit:
            data = chunk.data  # a copy, each time
            parts += data
            self.held_bytes += len(data)

    def take(self, call_id: int, rest: bytes) -> bytes:
        """Remove and return the payload of a call: its chunks, and the rest from its frame.

        Raises:
            OversizePayload: The payload exceeds the limit.
        """
        parts = self._parts.pop(call_id, None) if self._parts else None
        if parts is None:
            if len(rest) > self._limit:
                raise OversizePayload(f"{len(rest)} bytes exceed the limit of {self._limit}")
            return rest
        self.held_bytes -= len(parts)
        parts += rest
        if len(parts) > self._limit:
            raise OversizePayload(f"more than {self._limit} bytes")
        return bytes(parts)

    def drop(self, call_id: int) -> None:
        """Drop the chunks of a call that has ended."""
        self.held_bytes -= len(self._parts.pop(call_id, b""))
