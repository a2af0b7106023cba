"""A connection over a transport with a stream of messages in each direction.

Adds to `Peer` a limit on queued bytes, and the handling of unreadable messages.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from leaseway.data_plane.core.calls.call import too_large
from leaseway.data_plane.mcp.protocol.connection import Peer
from leaseway.data_plane.mcp.protocol.messages.codec import (
    JsonRpcMessage,
    encode_notification,
    request_key,
)
from leaseway.data_plane.mcp.protocol.messages.incoming import REQUESTS_OF_CLIENTS
from leaseway.data_plane.mcp.protocol.messages.nameless import SilentMessages
from leaseway.data_plane.mcp.protocol.messages.pending import (
    ConnectionLost,
    Pending,
    ToolCall,
    invalid_result,
)
from leaseway.data_plane.mcp.protocol.messages.reading import (
    SMALL,
    after_prompt,
    read,
    read_repaired,
    response_key,
    shown,
    split_batch,
)
from leaseway.data_plane.mcp.protocol.transport import Receipt, Transport
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason

_logger = logging.getLogger(__name__)
MAX_QUEUED: Final = 2 * bounds.MAX_ARGUMENTS
"""Maximum bytes in the send queue; beyond it calls are rejected."""

ECHO_ADVICE: Final = (
    "sends back what is sent to it, as a terminal does: run it without one "
    "(docker run -i, not -it)."
)
"""What a server does whose answers are our own requests, and what to do about it."""

_HEAD: Final = 1024
_MAX_STRAYS: Final = 64
"""Lines without messages that are kept of a server that starts: they may say why it does not."""

_MAX_REPAIRS: Final = 4
"""Large messages that are repaired at once, each in a thread."""


class StreamPeer(Peer):
    """An MCP connection over a transport, which `open` connects and `aclose` disconnects."""

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
        self._dropped = 0
        self._silent = SilentMessages()
        self._repairs: set[asyncio.Task[None]] = set()

    @property
    def lacks_token(self) -> bool:  # type: ignore[override]  # of its transport
        return self.transport.lacks_token

    async def open(self) -> None:
        """Connect the transport.

        Raises:
            Fault: SERVER_NOT_READY with its problem.
            ConnectionLost: The server or the network rejected the connection.
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
        self.end(self.fault)
        for task in self._repairs:
            task.cancel()
        await self.transport.disconnect(hurry=hurry)

    # Sending.

    def _rejection(self, size: int) -> Fault | None:
        if self._ending or self.closed.is_set:
            return self.ended_fault("no")
        waiting = self.transport.waiting()
        if waiting and waiting + size > MAX_QUEUED:
            return Fault(
                Reason.OVERLOADED,
                f"The server {self.server} does not read its input: {waiting} bytes are queued. "
                "Try again later or on another worker.",
                metadata={"server": self.server},
                retry_delay=1.0,
            )
        return None

    def _is_stuck(self) -> bool:
        return self.transport.stuck

    def _send(self, key: object, line: bytes, headers: Mapping[str, str], entry: Pending) -> None:
        self.transport.send(line, entry)

    def _respond(self, line: bytes) -> None:
        self._send_untracked(line)

    async def _notify(self, line: bytes, headers: Mapping[str, str] | None) -> None:
        self._send_untracked(line)

    def _abandon(self, key: object, entry: Pending, reason: str, notify: bool) -> None:
        if self.transport.withdraw(entry):
            return
        if notify and entry.written and not self.closed.is_set:
            params = {"requestId": key, "reason": reason}
            self._send_untracked(encode_notification("notifications/cancelled", params))

    def _send_untracked(self, line: bytes) -> None:
        """Send a message without a response; drop it if the queue is full."""
        if self.closed.is_set:
            return
        if self.transport.waiting() + len(line) <= MAX_QUEUED:
            self._silent.add(self._next_id)
            self.transport.send(line, _UntrackedReceipt())
            return
        self._dropped += 1
        if self._dropped == 1:
            _logger.warning(
                "The server %s does not read its input: responses and notifications are dropped "
                "while more than %s bytes are queued.",
                self.server,
                MAX_QUEUED,
            )

    # Receiving.

    def receive(self, messages: Sequence[bytes]) -> None:
        """Receive messages (see `Receiver`)."""
        self.liveness.mark_received(self._next_id)
        for message in messages:
            self._handle_message(message)

    def _handle_message(self, line: bytes) -> None:
        if not line.startswith(b"{"):
            # A server may log here: do not try to decode lines that can't be messages.
            line = shown(line)
            if not self.era.version:
                line = after_prompt(line)
            if not line.startswith(b"{"):
                self._handle_batch(line)
                return
        try:
            message = read(line)
        except (ValueError, RecursionError):
            self._start_repair(line)
        else:
            self._dispatch(message)

    def _handle_batch(self, line: bytes) -> None:
        """Handle the messages of a batch one by one, so that a bad one costs only itself."""
        try:
            messages = split_batch(line)
        except (ValueError, RecursionError):
            self._start_repair(line)
            return
        if line and not messages:
            self._count_garbage()
            if not self.era.version and self.garbage <= _MAX_STRAYS:
                self.transport.keep_stray(line)
        for message in messages:
            if message.startswith(b"{"):
                self._handle_message(message)
            else:
                self._count_garbage()

    def _start_repair(self, line: bytes) -> None:
        """Repair a message; a large one in a thread, so that no other server waits."""
        if len(line) <= SMALL:
            try:
                messages = read_repaired(line)
            except ValueError:
                self._handle_unreadable(line)
            else:
                self._dispatch_repaired(messages)
        elif len(self._repairs) < _MAX_REPAIRS:
            task = asyncio.get_running_loop().create_task(self._repair(line))
            self._repairs.add(task)
            task.add_done_callback(self._repairs.discard)
        else:
            self._handle_unreadable(line)

    async def _repair(self, line: bytes) -> None:
        try:
            messages = await asyncio.to_thread(read_repaired, line)
        except ValueError:
            self._handle_unreadable(line)
        else:
            self._dispatch_repaired(messages)

    def _dispatch_repaired(self, messages: Sequence[JsonRpcMessage]) -> None:
        self.log_repair()
        for message in messages:
            self._dispatch(message)

    def _handle_unreadable(self, line: bytes) -> None:
        """Fail the request that a message answers, if its id can be found."""
        self._fail_response(response_key(line[:_HEAD], line[-_HEAD:]))

    def _dispatch(self, message: JsonRpcMessage) -> None:
        if message.id is not None and self._is_ours(message):
            self._count_echo()
        elif message.method is not None and not message.is_response:
            if message.id is None or not self.echoes:
                self._inbox.handle(message, self._only_call())
        elif message.is_response and message.id is not None:
            self._handle_response(message)
        elif message.jsonrpc is None:
            self._count_garbage()
        elif message.is_response:
            self._handle_nameless_response(message)
        else:
            self._fail_response(request_key(message.id))

    def _is_ours(self, message: JsonRpcMessage) -> bool:
        """Return whether a request is one that was sent to the server, and came back."""
        if message.method not in REQUESTS_OF_CLIENTS or message.is_response:
            return False
        key = request_key(message.id)
        return isinstance(key, int) and 0 < key <= self._next_id

    def _handle_nameless_response(self, answer: JsonRpcMessage) -> None:
        """End the only request in flight by an error without an id.

        A result without one may be of an abandoned call of another caller.
        """
        waiting = [*self._calls, *self._requests]
        request = waiting[0] if len(waiting) == 1 else None
        if not answer.has_error:
            self._count_garbage()
        elif self._silent.explain(answer, request) or request is None:
            self._count_dropped_response(None)
        elif (entry := self._remove_pending(request)) is not None:
            self._resolve(entry, answer)

    def _only_call(self) -> ToolCall | None:
        # A stream does not tell which call a log message belongs to, unless there is one call, and
        # no cancelled one of another caller.
        if len(self._calls) != 1 or (not self.leased and self._abandoned.may_speak()):
            return None
        return next(iter(self._calls.values()))

    def _fail_response(self, key: int | str | None) -> None:
        entry = self._remove_pending(key)
        if entry is not None:
            entry.fail(invalid_result(self.server))
        elif key is not None:
            self._count_dropped_response(key)
        else:
            self._count_garbage()

    def _remove_pending(self, key: object) -> Pending | None:
        if key is None:
            return None
        return self._calls.pop(key, None) or self._requests.pop(key, None)

    def _count_garbage(self) -> None:
        self.garbage += 1
        if self.garbage == 1 and self.logged.is_first("garbage"):
            _logger.warning(
                "The server %s sends messages over %s that are not JSON-RPC; they are ignored. %s",
                self.server,
                self.transport_type,
                self.transport.stray_advice,
            )

    def _count_echo(self) -> None:
        """Count a request of ours that came back.

        From then on no request is answered: the answer would come back, too, and end a call.
        """
        self.echoes += 1
        if self.echoes == 1 and self.logged.is_first("echoes"):
            _logger.warning(
                "The server %s %s What comes back is ignored, and its own requests get no answer.",
                self.server,
                ECHO_ADVICE,
            )

    def overlong(self, head: bytes, tail: bytes, size: int) -> None:
        """Fail the request that a skipped message answers; if unknown, end the connection."""
        self.liveness.mark_received(self._next_id)
        key = response_key(head, tail)
        entry = self._remove_pending(key)
        if entry is not None:
            entry.fail(too_large(self.server, size))
        elif key is not None:
            self._count_dropped_response(key)
        else:
            self.end(self._oversize())

    def _oversize(self) -> Fault:
        return Fault(
            Reason.SERVER_LOST,
            f"The server {self.server} sent a message of more than {bounds.MAX_LINE} bytes "
            f"({bounds.MAX_LINE // bounds.MIB} MiB, the limit), and the request that it answers is "
            "unknown; its connection was closed. Ask its tools for less at a time.",
            metadata={"server": self.server, "limit": str(bounds.MAX_LINE)},
        )

    def failed(self, receipt: Receipt, fault: Fault) -> None:
        """Fail one request; log an undelivered response or notification."""
        in_flight: list[tuple[object, Pending]] = [*self._calls.items(), *self._requests.items()]
        for key, entry in in_flight:
            if entry is receipt:
                self._calls.pop(key, None)
                self._requests.pop(key, None)
                entry.fail(fault)
                return
        _logger.debug(
            "A message to the server %s was not delivered: %s", self.server, fault.message
        )

    # The end.

    def ending(self, fault: Fault) -> None:
        """Reject new calls (see `Receiver`)."""
        if not self.closed.is_set:
            self._ending = True
            self.fault = fault

    def lost(self, fault: Fault) -> None:
        """End the connection (see `Receiver`)."""
        self.end(fault)

    def end(self, fault: Fault | None) -> None:
        waiting: list[Pending] = [*self._calls.values(), *self._requests.values()]
        super().end(fault)
        # These calls have failed as not started, so they must never be written.
        for entry in waiting:
            if not entry.written:
                self.transport.withdraw(entry)


class _UntrackedReceipt:
    """The receipt of a message without a response."""

    __slots__ = ("written",)

    def __init__(self) -> None:
        self.written = False
