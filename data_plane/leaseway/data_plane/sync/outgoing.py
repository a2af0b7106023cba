"""The messages that wait to be written to the current Sync stream."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from leaseway.v1 import sync_pb2

MAX_QUEUED: Final = 1024
_FLUSH_TIMEOUT: Final = 0.5


class Outgoing:
    """Queues messages for the current stream; without a stream it drops them.

    A new stream starts with the whole state, so nothing that matters is lost.

    Attributes:
        address: The control plane of the current stream, or of the last attempt to open one.
        overfull: Set when the current stream has more than 1,024 messages to write; it ends then.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.overfull = asyncio.Event()
        self._queue: asyncio.Queue[sync_pb2.SyncRequest] | None = None

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
        queue = self._queue = asyncio.Queue(MAX_QUEUED)
        return queue

    def close(self) -> None:
        """Drop messages from now on: the stream has ended."""
        self._queue = None

    def send(self, message: sync_pb2.SyncRequest) -> None:
        if self._queue is None:
            return
        try:
            self._queue.put_nowait(message)
        except asyncio.QueueFull:
            # The stream is not cancelled here: its reader would see a cancelled task.
            self.overfull.set()

    async def flush(self) -> None:
        """Wait until all messages are written, for at most 0.5 s."""
        if self._queue is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_FLUSH_TIMEOUT):
                    await self._queue.join()
