"""The in-memory twin of every transport: two ends in one process, for tests.

What one end sends, the other receives in the loop's next turn.
"""

from __future__ import annotations

import asyncio
from typing import Self

from leaseway.data_plane.mcp.protocol.transport import Receipt, Receiver, Transport
from leaseway.wire.errors import Fault, Reason


class MemoryTransport(Transport):
    """One of two joined ends; `MemoryTransport.pair()` makes both."""

    def __init__(self) -> None:
        self._other: MemoryTransport = self
        self._receiver: Receiver | None = None
        self._queue: dict[Receipt, bytes] = {}
        self._queued = 0
        self._delivering = False
        self._over = False

    @classmethod
    def pair(cls) -> tuple[Self, Self]:
        """Return two ends that are joined."""
        one, other = cls(), cls()
        one._other, other._other = other, one
        return one, other

    @property
    def transport_type(self) -> str:
        return "memory"

    async def connect(self, receiver: Receiver) -> None:
        """Take what the other end has sent so far, and will send.

        Raises:
            Fault: SERVER_LOST: the other end has been disconnected.
        """
        if self._other._over:
            raise _closed()
        self._receiver = receiver
        self._other._schedule()

    async def disconnect(self, *, hurry: bool = False) -> None:
        """End the connection; the other end's receiver learns that it is lost."""
        if self._over:
            return
        self._over = True
        other = self._other
        if other._receiver is not None and not other._over:
            asyncio.get_running_loop().call_soon(other._receiver.lost, _closed())

    def waiting(self) -> int:
        """Return how many bytes wait for the other end."""
        return self._queued

    @property
    def stuck(self) -> bool:
        """Whether the other end is not connected yet."""
        return self._other._receiver is None

    def send(self, message: bytes, receipt: Receipt) -> None:
        """Give a message to the other end in the next turn, or once it is connected."""
        self._queue[receipt] = message
        self._queued += len(message)
        self._schedule()

    def withdraw(self, receipt: Receipt) -> bool:
        """Withdraw what the other end has not received."""
        waiting = self._queue.pop(receipt, None)
        if waiting is None:
            return False
        self._queued -= len(waiting)
        return True

    def _schedule(self) -> None:
        if not self._delivering and not self.stuck:
            self._delivering = True
            asyncio.get_running_loop().call_soon(self._deliver)

    def _deliver(self) -> None:
        self._delivering = False
        messages, self._queue, self._queued = self._queue, {}, 0
        receiver = self._other._receiver
        if receiver is None or self._over or self._other._over or not messages:
            return
        for receipt in messages:
            receipt.written = True
        receiver.receive([*messages.values()])


def _closed() -> Fault:
    return Fault(Reason.SERVER_LOST, "The other end of the connection in memory was closed.")
