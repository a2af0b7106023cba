"""A connection over a transport that carries a stream of messages each way.

Who waits for which answer is kept by `Peer`; here is what all such transports share: bounds on
what waits to be sent, and what becomes of messages that can't be read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from leaseway.data_plane.core.calls.call import too_large
from leaseway.data_plane.mcp.protocol.connection import Peer
from leaseway.data_plane.mcp.protocol.messages.codec import decode, encode_notification, request_key
from leaseway.data_plane.mcp.protocol.messages.lines import reply_key
from leaseway.data_plane.mcp.protocol.messages.pending import (
    ConnectionLost,
    Pending,
    ToolCall,
    no_result,
)
from leaseway.data_plane.mcp.protocol.transport import Receipt, Transport
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason

_logger = logging.getLogger(__name__)
MAX_QUEUED: Final = 2 * bounds.MAX_ARGUMENTS
"""Bytes that wait to be sent; beyond it calls are refused."""

_HEAD: Final = 1024


class StreamPeer(Peer):
    """One MCP connection over a transport; a `Receiver`.

    Args:
        server: The server's id, for messages.
        transport: What carries the messages; `open` connects it, `aclose` disconnects it.
        on_tools_changed: Called when the server says that its tools changed.

    Attributes:
        transport: As given.
        garbage: Messages that were no JSON-RPC.
    """

    def __init__(
        self,
        server: str,
        transport: Transport,
        on_tools_changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.transport_type = transport.transport_type
        super().__init__(server, on_tools_changed)
        self.transport = transport
        self._ending = False
        self._untold = 0

    async def open(self) -> None:
        """Connect the transport.

        Raises:
            Fault: SERVER_NOT_READY with its problem.
            ConnectionLost: The server or the network refused.
        """
        try:
            await self.transport.connect(self)
        except Fault as fault:
            if fault.reason is Reason.SERVER_NOT_READY:
                raise
            raise ConnectionLost(fault) from None

    async def aclose(self, *, hurry: bool = False) -> None:
        """Disconnect the transport. Idempotent."""
        hurry = hurry or self.fault is not None
        self._end(self.fault)
        await self.transport.disconnect(hurry=hurry)

    # Sending.

    def _refusal(self, size: int) -> Fault | None:
        if self._ending or self.closed.is_set():
            return self._ended_fault("no")
        waiting = self.transport.waiting()
        if waiting and waiting + size > MAX_QUEUED:
            return Fault(
                Reason.OVERLOADED,
                f"The server {self.server} does not read its input: {waiting} bytes wait for "
                "it. Try again later or on another worker.",
                metadata={"server": self.server},
                retry_delay=1.0,
            )
        return None

    def _is_stuck(self) -> bool:
        return self.transport.stuck

    def _send(self, key: object, line: bytes, headers: Mapping[str, str], entry: Pending) -> None:
        self.transport.send(line, entry)

    def _answer(self, line: bytes) -> None:
        self._send_note(line)

    async def _notify(self, line: bytes, headers: Mapping[str, str] | None) -> None:
        self._send_note(line)

    def _abandon(self, key: object, entry: Pending, reason: str, notify: bool) -> None:
        if self.transport.withdraw(entry):
            return
        if notify and entry.written and not self.closed.is_set():
            params = {"requestId": key, "reason": reason}
            self._send_note(encode_notification("notifications/cancelled", params))

    def _send_note(self, line: bytes) -> None:
        """Send what has no answer, if there is room for it."""
        if self.closed.is_set():
            return
        if self.transport.waiting() + len(line) <= MAX_QUEUED:
            self.transport.send(line, _Note())
            return
        self._untold += 1
        if self._untold == 1:
            _logger.warning(
                "The server %s does not read its input: answers and notifications for it are "
                "dropped while more than %s bytes wait.",
                self.server,
                MAX_QUEUED,
            )

    # Receiving.

    def receive(self, messages: Sequence[bytes]) -> None:
        """Receive what the server sent (see `Receiver`)."""
        self.signs.hear(self._next_id)
        for message in messages:
            self._take(message)

    def _take(self, line: bytes) -> None:
        if not line.startswith(b"{"):
            # A server that logs here may flood us: what can't be a message is not parsed.
            line = line.lstrip()
            if not line.startswith(b"{"):
                if line:
                    self._garbage()
                return
        try:
            message = decode(line)
        except (ValueError, RecursionError):
            self._unreadable(line)
            return
        if message.method is not None:
            self._inbox.take(message, self._only_call())
        elif message.is_response:
            self._settle(message)
        else:
            self._fail_answer(request_key(message.id))

    def _only_call(self) -> ToolCall | None:
        # A stream does not say which call a log message belongs to; with one call it is plain.
        return next(iter(self._calls.values())) if len(self._calls) == 1 else None

    def _unreadable(self, line: bytes) -> None:
        """Fail the request that a broken message answers, where it says so."""
        self._fail_answer(reply_key(line[:_HEAD], line[-_HEAD:]))

    def _fail_answer(self, key: int | str | None) -> None:
        entry = self._waiting_for(key)
        if entry is not None:
            entry.fail(no_result(self.server))
        else:
            self._garbage()

    def _waiting_for(self, key: int | str | None) -> Pending | None:
        if key is None:
            return None
        return self._forget(key) or self._requests.pop(key, None)

    def _garbage(self) -> None:
        self.garbage += 1
        if self.garbage == 1:
            _logger.warning(
                "The server %s sends what are no JSON-RPC messages over %s; they are ignored. %s",
                self.server,
                self.transport_type,
                self.transport.stray_advice,
            )

    def overlong(self, head: bytes, tail: bytes, size: int) -> None:
        """Fail the request that a skipped message answers; one that does not say so may be all."""
        self.signs.hear(self._next_id)
        key = reply_key(head, tail)
        entry = self._waiting_for(key)
        if entry is not None:
            entry.fail(too_large(self.server, size))
        elif key is not None:
            self._drop_reply(key)
        else:
            self._end(self._oversize())

    def _oversize(self) -> Fault:
        return Fault(
            Reason.SERVER_LOST,
            f"The server {self.server} sent a message of more than {bounds.MAX_LINE} bytes "
            f"({bounds.MAX_LINE // bounds.MIB} MiB, the bound for one) that does not say "
            "which request it answers; its connection was closed. Ask its tools for less at a "
            "time.",
            metadata={"server": self.server, "limit": str(bounds.MAX_LINE)},
        )

    def failed(self, receipt: Receipt, fault: Fault) -> None:
        """Fail one request, or note that an answer or notification was not delivered."""
        under_way: list[tuple[object, Pending]] = [*self._calls.items(), *self._requests.items()]
        for key, entry in under_way:
            if entry is receipt:
                self._forget(key)
                self._requests.pop(key, None)
                entry.fail(fault)
                return
        _logger.debug("The server %s was not told: %s", self.server, fault.message)

    # The end.

    def ending(self, fault: Fault) -> None:
        """Take no more calls (see `Receiver`)."""
        if not self.closed.is_set():
            self._ending = True
            self.fault = fault

    def lost(self, fault: Fault) -> None:
        """Notify everyone who waits (see `Receiver`)."""
        self._end(fault)

    def _end(self, fault: Fault | None) -> None:
        waiting: list[Pending] = [*self._calls.values(), *self._requests.values()]
        super()._end(fault)
        # Whoever waited has been told that these never started; so they must never be written.
        for entry in waiting:
            if not entry.written:
                self.transport.withdraw(entry)


class _Note:
    """Stands for a message that nobody waits for."""

    __slots__ = ("written",)

    def __init__(self) -> None:
        self.written = False
