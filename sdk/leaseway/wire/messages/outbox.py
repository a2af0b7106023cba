"""What waits to be written to one exchange stream, turned into batches.

Small frames go out in the order queued, everything at once up to 256 KiB. A payload above
256 KiB is cut into chunks, and large payloads take turns, one chunk a message, behind the small
frames of that moment: a 16 MiB result delays a small one by one chunk at most, and small ones
never starve it. Pure of I/O; the exchange's writer task on either side drains it (DESIGN §6).
"""

from __future__ import annotations

from collections.abc import Callable

from leaseway.v1 import execution_pb2
from leaseway.wire.bounds import BATCH_SIZE
from leaseway.wire.messages.frames import chunk_frame


class _Large:
    """A payload of which a part may have left, and the frame that ends it."""

    __slots__ = ("call_id", "frame", "payload")

    def __init__(self, call_id: int, payload: bytes, frame: bytes) -> None:
        self.call_id = call_id
        self.payload = memoryview(payload)
        self.frame = frame


class Outbox:
    """Frames queued for one stream, serialized (see `frames`).

    Args:
        wake: Called when the outbox stops being empty.

    Attributes:
        queued_bytes: How much waits.
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
        """How many frames wait, those of large payloads apart."""
        return len(self._small)

    def put(self, frame: bytes) -> int:
        """Queue a frame; return the ticket that takes it back."""
        idle = not self.queued_bytes
        self._last_ticket = ticket = self._last_ticket + 1
        self._small[ticket] = frame
        self.queued_bytes += len(frame)
        if idle:
            self._wake()
        return ticket

    def put_large(self, frame: bytes, call_id: int, payload: bytes) -> int:
        """Queue a payload above one batch, whose last chunk the frame follows.

        Returns:
            The ticket that takes both back.
        """
        idle = not self.queued_bytes
        self._last_ticket = ticket = self._last_ticket + 1
        self._large[ticket] = _Large(call_id, payload, frame)
        self.queued_bytes += len(payload) + len(frame)
        if idle:
            self._wake()
        return ticket

    def holds(self, ticket: int) -> bool:
        """Return whether a frame is still here: no batch has taken it."""
        return ticket in self._small or ticket in self._large

    def withdraw(self, ticket: int) -> bool:
        """Withdraw a frame; say whether it was still here.

        Chunks of its payload may have gone, the frame itself has not.
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
        """Take the next message off the queue; empty where nothing is queued any more."""
        if self.queued_bytes <= BATCH_SIZE and not self._large:
            frames, self._small, self.queued_bytes = self._small, {}, 0
            return b"".join(frames.values())
        parts = self._first_small()
        # A chunk goes with every message, else a steady stream of small frames would starve
        # it: 256 KiB of small frames, the one that overshoots and a chunk stay below 1 MiB.
        if self._large:
            parts += self._next_chunk()
        self.queued_bytes -= sum(map(len, parts))
        return b"".join(parts)

    def _first_small(self) -> list[bytes]:
        taken: list[int] = []
        room = BATCH_SIZE
        for ticket, frame in self._small.items():
            if room <= 0:
                break
            taken.append(ticket)
            room -= len(frame)
        return [self._small.pop(ticket) for ticket in taken]

    def _next_chunk(self) -> list[bytes]:
        """Take a chunk of the payload whose turn it is, with its frame if that was the last."""
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
    """The chunks of a call exceed their bound."""


class Assembler:
    """Puts chunked payloads together again.

    Args:
        limit: The most bytes of one payload; what comes after is dropped, and taking such a
            payload raises `OversizePayload`.
        most: The most payloads under way at once.

    Attributes:
        held_bytes: How much is held of payloads under way.
    """

    def __init__(self, limit: int, most: int) -> None:
        self._limit = limit
        self._most = most
        self._parts: dict[int, bytearray] = {}
        self.held_bytes = 0

    def __len__(self) -> int:
        return len(self._parts)

    def __contains__(self, call_id: int) -> bool:
        return call_id in self._parts

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
            self.held_bytes += len(chunk.data)

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
        self.held_bytes -= len(parts)
        parts += rest
        if len(parts) > self._limit:
            raise OversizePayload(f"more than {self._limit} bytes")
        return bytes(parts)

    def drop(self, call_id: int) -> None:
        """Forget the chunks of a call that has ended."""
        self.held_bytes -= len(self._parts.pop(call_id, b""))
