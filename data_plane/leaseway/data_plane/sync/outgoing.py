"""The messages that wait to be written to the current Sync stream."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Final

from leaseway.v1 import sync_pb2

MAX_QUEUED: Final = 1024
_FLUSH_TIMEOUT: Final = 0.5


class Outgoing:
    """Queues messages for the current stream; without a stream it drops them.

    A new stream starts with the whole state, so nothing that matters is lost.

    Attributes:
        address: The control plane of the current stream, or of the last attempt to open one.
        overfull: Set when the current stream has more than 1,024 messages to write, besides those
            of `send_all`; it ends then.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.overfull = asyncio.Event()
        self._queue: asyncio.Queue[sync_pb2.SyncRequest] | None = None
        self._uncounted = 0
        """Messages of `send_all` that may still be in the queue."""

    @property
    def is_open(self) -> bool:
        """Whether there is a stream."""
        return self._queue is not None

    def switch_to(self, address: str) -> None:
        """Name the control plane of the next stream."""
        self.address = address

    def open(self) -> asyncio.Queue[sync_pb2.SyncRequest]:
        """Return an empty queue for a new stream, whose messages its writer takes."""
        self.overfull = asyncio.Event()
        queue = self._queue = asyncio.Queue()
        self._uncounted = 0
        return queue

    def close(self) -> None:
        """Drop messages from now on: the stream has ended."""
        self._queue = None

    def send(self, message: sync_pb2.SyncRequest) -> None:
        queue = self._queue
        if queue is None:
            return
        self._uncounted = min(self._uncounted, queue.qsize())
        if queue.qsize() < MAX_QUEUED + self._uncounted:
            queue.put_nowait(message)
        else:
            # The stream is not cancelled here: its reader would see a cancelled task.
            self.overfull.set()

    def send_all(self, messages: Iterable[sync_pb2.SyncRequest]) -> None:
        """Send messages about each of many things, whose number has a bound of its own.

        They do not count for the limit: nobody can have read them yet, and a worker with more
        things than that could otherwise never join.
        """
        queue = self._queue
        if queue is None:
            return
        self._uncounted = min(self._uncounted, queue.qsize())
        for message in messages:
            queue.put_nowait(message)
            self._uncounted += 1

    async def flush(self) -> None:
        """Wait until all messages are written, for at most 0.5 s."""
        if self._queue is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_FLUSH_TIMEOUT):
                    await self._queue.join()
