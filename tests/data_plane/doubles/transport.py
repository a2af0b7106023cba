"""An in-memory transport, for tests: what one end sends, the other receives in the next turn."""

from __future__ import annotations

import asyncio
from typing import Self

from leaseway.data_plane.mcp.protocol.transport import Receipt, Receiver, Transport
from leaseway.wire.errors import Fault, Reason


class MemoryTransport(Transport):
    """One of two connected ends; `MemoryTransport.pair()` returns both."""

    def __init__(self) -> None:
        self._other: MemoryTransport = self
        self._receiver: Receiver | None = None
        self._queue: dict[Receipt, bytes] = {}
        self._queued = 0
        self._delivering = False
        self._disconnected = False

    @classmethod
    def pair(cls) -> tuple[Self, Self]:
        """Return two connected ends."""
        first, second = cls(), cls()
        first._other, second._other = second, first
        return first, second

    @property
    def transport_type(self) -> str:
        return "memory"

    async def connect(self, receiver: Receiver) -> None:
        """Receive the messages of the other end, also those that it has sent before.

        Raises:
            Fault: SERVER_LOST: the other end is disconnected.
        """
        if self._other._disconnected:
            raise _closed()
        self._receiver = receiver
        self._other._schedule()

    async def disconnect(self, *, hurry: bool = False) -> None:
        """End the connection; the other end's receiver learns that it is lost."""
        if self._disconnected:
            return
        self._disconnected = True
        other = self._other
        if other._receiver is not None and not other._disconnected:
            asyncio.get_running_loop().call_soon(other._receiver.lost, _closed())

    def waiting(self) -> int:
        """Return the number of bytes that the other end has not received."""
        return self._queued

    @property
    def stuck(self) -> bool:
        """Whether the other end is not connected yet."""
        return self._other._receiver is None

    def send(self, message: bytes, receipt: Receipt) -> None:
        """Deliver a message in the next turn, or once the other end is connected."""
        self._queue[receipt] = message
        self._queued += len(message)
        self._schedule()

    def withdraw(self, receipt: Receipt) -> bool:
        """Withdraw a message that the other end has not received; return whether it was found."""
        message = self._queue.pop(receipt, None)
        if message is None:
            return False
        self._queued -= len(message)
        return True

    def _schedule(self) -> None:
        if not self._delivering and not self.stuck:
            self._delivering = True
            asyncio.get_running_loop().call_soon(self._deliver)

    def _deliver(self) -> None:
        self._delivering = False
        messages, self._queue, self._queued = self._queue, {}, 0
        receiver = self._other._receiver
        if receiver is None or self._disconnected or self._other._disconnected or not messages:
            return
        for receipt in messages:
            receipt.written = True
        receiver.receive([*messages.values()])


def _closed() -> Fault:
    return Fault(Reason.SERVER_LOST, "The other end of the in-memory connection was closed.")
