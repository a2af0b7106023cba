"""Adapts a `PullTransport` to a `Transport`: one task sends, another one receives."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from leaseway.data_plane.background import shielded
from leaseway.data_plane.mcp.protocol.transport import (
    OverlongMessageError,
    PullTransport,
    Receipt,
    Receiver,
    Transport,
)
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason

_logger = logging.getLogger(__name__)
_CLOSE_TIMEOUT: Final = 3.0
"""Seconds for a transport to disconnect."""

_YIELD_EVERY: Final = 64
"""Messages received in a row before other tasks may run."""

_EXCERPT: Final = 1024
_MAX_TEXT: Final = 500


class PullAdapter(Transport):
    """Converts a `PullTransport` to a `Transport`.

    `hide_secrets` removes secrets from the text of its exceptions.
    """

    def __init__(
        self, server: str, inner: PullTransport, hide_secrets: Callable[[str], str] = str
    ) -> None:
        self._server = server
        self._inner = inner
        self._hide_secrets = hide_secrets
        self._receiver: Receiver
        self._queue: dict[Receipt, bytes] = {}
        self._queued = 0
        self._sending = 0
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False
        self._closing: asyncio.Task[None] | None = None

    @property
    def transport_type(self) -> str:
        return self._inner.transport_type

    async def connect(self, receiver: Receiver) -> None:
        """Connect, and start sending and receiving."""
        self._receiver = receiver
        try:
            await self._inner.connect()
        except Fault:
            raise
        except Exception as error:
            raise self._fault("could not be opened", error) from error
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(work) for work in (self._receive_all(), self._send_all())]

    async def disconnect(self, *, hurry: bool = False) -> None:
        """Stop both tasks and disconnect."""
        self._closed = True
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await shielded(self._closing)

    def waiting(self) -> int:
        """Return how many bytes are queued, including the message being sent."""
        return self._queued + self._sending

    @property
    def stuck(self) -> bool:
        """Whether a message is being sent."""
        return self._sending > 0

    def send(self, message: bytes, receipt: Receipt) -> None:
        """Queue a message."""
        if self._closed:
            return
        self._queue[receipt] = message
        self._queued += len(message)
        self._wake.set()

    def withdraw(self, receipt: Receipt) -> bool:
        """Remove a queued message."""
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
        except Exception as error:  # noqa: BLE001 - a foreign transport raises what it likes
            self._lose(error)

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
                try:
                    self._deliver(await self._inner.receive())
                except OverlongMessageError as error:
                    self._receiver.overlong(error.head, error.tail, error.size)
                received += 1
                if received % _YIELD_EVERY == 0:
                    await asyncio.sleep(0)  # a busy transport must not starve other tasks
        except Exception as error:  # noqa: BLE001 - a foreign transport raises what it likes
            self._lose(error)

    def _deliver(self, message: bytes) -> None:
        if not isinstance(message, bytes):
            raise TypeError(f"its receive returned {type(message).__name__} instead of bytes")
        if len(message) > bounds.MAX_LINE:
            self._receiver.overlong(message[:_EXCERPT], message[-_EXCERPT:], len(message))
        else:
            self._receiver.receive((message,))

    def _lose(self, error: Exception) -> None:
        if self._closed:
            return
        self._closed = True
        self._receiver.lost(error if isinstance(error, Fault) else self._fault("broke", error))

    def _fault(self, problem: str, error: Exception) -> Fault:
        head = f"The connection to the server {self._server} over {self.transport_type}"
        cause = self._hide_secrets(f"{error}").rstrip(".")[:_MAX_TEXT] or type(error).__name__
        if isinstance(error, EOFError):
            problem = "was closed by the server"
        return Fault(
            Reason.SERVER_LOST, f"{head} {problem}: {cause}.", metadata={"server": self._server}
        )

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CLOSE_TIMEOUT)
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                await self._inner.disconnect()
        except Exception as error:  # noqa: BLE001 - a foreign transport raises what it likes
            _logger.warning(
                "Disconnecting from the server %s over %s failed: %s.",
                self._server,
                self.transport_type,
                self._hide_secrets(f"{error}").rstrip(".") or type(error).__name__,
            )
