"""What waits to be written to one exchange stream, turned into batches.

Small frames go out in the order queued, everything at once up to 256 KiB. A payload above
256 KiB is cut into chunks, and large payloads take turns, one chunk a message, behind the small
frames of that moment: a 16 MiB result delays a small one by one chunk at most, and small ones
never starve it. Pure of I/O; the exchange's writer task on either side drains it (DESIGN §6).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, Generic, Protocol, TypeVar

from leaseway.v1 import execution_pb2
from leaseway.wire.bounds import BATCH_SIZE

__all__ = ["Assembler", "Outbox", "OversizePayload"]

_SINGULAR: Final = frozenset({"client", "worker", "keep_alive", "going_away"})
"""Fields of a batch that hold one message; frames for them are merged."""


class _Frame(Protocol):
    def ByteSize(self) -> int: ...  # noqa: N802 - protobuf's name


class _Batch(Protocol):
    @property
    def chunks(self) -> Any: ...


BatchT = TypeVar("BatchT", bound=_Batch)


class _Large:
    __slots__ = ("call_id", "field", "frame", "offset", "payload")

    def __init__(self, call_id: int, payload: bytes, field: str, frame: _Frame) -> None:
        self.call_id = call_id
        self.payload = memoryview(payload)
        self.offset = 0
        self.field = field
        self.frame = frame


class Outbox(Generic[BatchT]):
    """Frames queued for one stream.

    Args:
        make_batch: Makes an empty message, `ExchangeRequest` or `ExchangeResponse`.
        wake: Called when the outbox stops being empty.

    """

    def __init__(self, make_batch: Callable[[], BatchT], wake: Callable[[], None]) -> None:
        self._make_batch = make_batch
        self._wake = wake
        self._small: deque[tuple[str, _Frame, int]] = deque()
        self._large: deque[_Large] = deque()
        self.queued_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._small) or bool(self._large)

    def put(self, field: str, frame: _Frame, size: int) -> None:
        """Queue a frame for a field of the batch; `size` is its rough size in bytes.

        Frames for a field that is not repeated (`keep_alive`, `going_away`) are merged.
        """
        idle = not self._small and not self._large
        self._small.append((field, frame, size))
        self.queued_bytes += size
        if idle:
            self._wake()

    def put_large(self, field: str, frame: _Frame, call_id: int, payload: bytes) -> None:
        """Queue a payload above one batch; the frame follows its last chunk."""
        idle = not self._small and not self._large
        self._large.append(_Large(call_id, payload, field, frame))
        self.queued_bytes += len(payload)
        if idle:
            self._wake()

    def unsent(self, field: str) -> list[_Frame]:
        """Return the frames of a field that no batch has taken yet."""
        small = [frame for name, frame, _ in self._small if name == field]
        return small + [large.frame for large in self._large if large.field == field]

    def withdraw(self, frame: _Frame) -> bool:
        """Take back a frame; say whether it was still here.

        Chunks of its payload may have gone, the frame itself has not.
        """
        for index, (_, queued, size) in enumerate(self._small):
            if queued is frame:
                del self._small[index]
                self.queued_bytes -= size
                return True
        for index, large in enumerate(self._large):
            if large.frame is frame:
                del self._large[index]
                self.queued_bytes -= len(large.payload) - large.offset
                return True
        return False

    def clear(self) -> None:
        """Drop everything: the stream has failed."""
        self._small.clear()
        self._large.clear()
        self.queued_bytes = 0

    def next_batch(self) -> BatchT:
        """Take the next message off the queue; empty where nothing is queued any more."""
        batch = self._make_batch()
        room = BATCH_SIZE
        fields: dict[str, list[_Frame]] = {}
        small = self._small
        while small and room > 0:
            field, frame, size = small.popleft()
            room -= size
            self.queued_bytes -= size
            if field in fields:
                fields[field].append(frame)
            else:
                fields[field] = [frame]
        # A chunk goes with every message, else a steady stream of small frames would starve
        # it: 256 KiB of small frames, the one that overshoots and a chunk stay below 1 MiB.
        if self._large:
            self._take_chunk(batch, fields)
        for field, frames in fields.items():
            if field in _SINGULAR:
                for frame in frames:
                    getattr(batch, field).MergeFrom(frame)
            else:
                getattr(batch, field).extend(frames)
        return batch

    def _take_chunk(self, batch: BatchT, fields: dict[str, list[_Frame]]) -> None:
        large = self._large.popleft()
        data = large.payload[large.offset : large.offset + BATCH_SIZE]
        large.offset += len(data)
        self.queued_bytes -= len(data)
        last = large.offset >= len(large.payload)
        chunk = execution_pb2.Chunk(call_id=large.call_id, data=bytes(data), last=last)
        batch.chunks.append(chunk)
        if last:
            fields.setdefault(large.field, []).append(large.frame)
        else:
            self._large.append(large)


class OversizePayload(Exception):
    """The chunks of a call exceed their bound."""


class Assembler:
    """Puts chunked payloads together again.

    Args:
        limit: The most bytes of one payload; what comes after is dropped, and taking such a
            payload raises `OversizePayload`.
        most: The most payloads under way at once.

    """

    def __init__(self, limit: int, most: int) -> None:
        self._limit = limit
        self._most = most
        self._parts: dict[int, bytearray] = {}

    def add(self, chunk: execution_pb2.Chunk) -> None:
        """Take one chunk.

        Raises:
            OversizePayload: More payloads are under way than the bound allows.

        """
        parts = self._parts.get(chunk.call_id)
        if parts is None:
            if len(self._parts) >= self._most:
                raise OversizePayload(f"more than {self._most} chunked payloads are under way")
            parts = self._parts[chunk.call_id] = bytearray()
        if len(parts) <= self._limit:
            parts += chunk.data

    def take(self, call_id: int, rest: bytes) -> bytes:
        """Return the payload of a call: its chunks, then what its frame held.

        Raises:
            OversizePayload: It exceeds the bound.

        """
        parts = self._parts.pop(call_id, None) if self._parts else None
        if parts is None:
            if len(rest) > self._limit:
                raise OversizePayload(f"{len(rest)} bytes exceed the bound of {self._limit}")
            return rest
        parts += rest
        if len(parts) > self._limit:
            raise OversizePayload(f"more than {self._limit} bytes")
        return bytes(parts)

    def drop(self, call_id: int) -> None:
        """Forget the chunks of a call that has ended."""
        self._parts.pop(call_id, None)
