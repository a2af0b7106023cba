"""Fits a transport whose messages are asked for to the seam: one task sends, one receives."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from leaseway.data_plane.background import shielded
from leaseway.data_plane.mcp.protocol.transport import PullTransport, Receipt, Receiver, Transport
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason

_logger = logging.getLogger(__name__)
_FAREWELL: Final = 3.0
"""Seconds that a transport has to disconnect."""

_BREATH: Final = 64
"""Messages received in a row before others get a turn of the loop."""

_KEPT: Final = 1024
_MAX_TEXT: Final = 500


class PullAdapter(Transport):
    """A `PullTransport` as a `Transport`.

    Args:
        server: The server's id, for messages.
        inner: The transport, not connected.
        shown: Returns what may be shown of the text of one of its exceptions.
    """

    def __init__(
        self, server: str, inner: PullTransport, shown: Callable[[str], str] = str
    ) -> None:
        self._server = server
        self._inner = inner
        self._shown = shown
        self._receiver: Receiver
        self._queue: dict[Receipt, bytes] = {}
        self._queued = 0
        self._sending = 0
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._over = False
        self._closing: asyncio.Task[None] | None = None

    @property
    def transport_type(self) -> str:
        return self._inner.transport_type

    async def connect(self, receiver: Receiver) -> None:
        """Connect, and begin to send and to receive."""
        self._receiver = receiver
        try:
            await self._inner.connect()
        except Fault:
            raise
        except Exception as error:
            raise self._fault("could not be made", error) from error
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(work) for work in (self._receive_all(), self._send_all())]

    async def disconnect(self, *, hurry: bool = False) -> None:
        """Stop both tasks and disconnect."""
        self._over = True
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._say_farewell())
        await shielded(self._closing)

    def waiting(self) -> int:
        """Return how many bytes wait here, the message that is being sent included."""
        return self._queued + self._sending

    @property
    def stuck(self) -> bool:
        """Whether a message is being sent that the server does not take."""
        return self._sending > 0

    def send(self, message: bytes, receipt: Receipt) -> None:
        """Queue a message behind those before it."""
        if self._over:
            return
        self._queue[receipt] = message
        self._queued += len(message)
        self._wake.set()

    def withdraw(self, receipt: Receipt) -> bool:
        """Withdraw what waits here."""
        waiting = self._queue.pop(receipt, None)
        if waiting is None:
            return False
        self._queued -= len(waiting)
        return True

    async def _send_all(self) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._queue:
                    await self._send_next()
        except Exception as error:
            self._broke(error)

    async def _send_next(self) -> None:
        receipt = next(iter(self._queue))
        message = self._queue.pop(receipt)
        self._queued -= len(message)
        self._sending = len(message)
        receipt.written = True
        try:
            await self._inner.send(message)
        finally:
            self._sending = 0

    async def _receive_all(self) -> None:
        received = 0
        try:
            while True:
                self._take(await self._inner.receive())
                received += 1
                if received % _BREATH == 0:
                    await asyncio.sleep(0)  # one that has more at once must not stall the others
        except Exception as error:
            self._broke(error)

    def _take(self, message: bytes) -> None:
        if not isinstance(message, bytes):
            raise TypeError(f"its receive returned {type(message).__name__}, where bytes belong")
        if len(message) > bounds.MAX_LINE:
            self._receiver.overlong(message[:_KEPT], message[-_KEPT:], len(message))
        else:
            self._receiver.receive((message,))

    def _broke(self, error: Exception) -> None:
        if self._over:
            return
        self._over = True
        self._receiver.lost(error if isinstance(error, Fault) else self._fault("broke", error))

    def _fault(self, what: str, error: Exception) -> Fault:
        head = f"The connection to the server {self._server} over {self.transport_type}"
        why = self._shown(f"{error}").rstrip(".")[:_MAX_TEXT] or type(error).__name__
        if isinstance(error, EOFError):
            what = "was ended by the server"
        return Fault(
            Reason.SERVER_LOST, f"{head} {what}: {why}.", metadata={"server": self._server}
        )

    async def _say_farewell(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_FAREWELL)
        try:
            async with asyncio.timeout(_FAREWELL):
                await self._inner.disconnect()
        except Exception as error:
            _logger.warning(
                "Disconnecting from the server %s over %s failed: %s.",
                self._server,
                self.transport_type,
                self._shown(f"{error}").rstrip(".") or type(error).__name__,
            )
