"""What both transports share: who waits for which answer.

A `Peer` is a `Dispatcher` of the official package (see `requester`) and a `Connection` of ours:
tool calls run below the package's models. A transport adds how bytes are sent and how a request is
abandoned.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Mapping

import anyio
import anyio.abc
from mcp.shared.dispatcher import OnNotify, OnNotifyIntercept, OnRequest

from leaseway.data_plane.core.calls.call import OnUpdate, Outcome, PendingCall, ToolRequest
from leaseway.data_plane.core.problems import NO_BACK_CHANNEL
from leaseway.data_plane.mcp.protocol.liveness import Liveness
from leaseway.data_plane.mcp.protocol.messages.codec import Envelope, encode_call, request_key
from leaseway.data_plane.mcp.protocol.messages.era import refuse
from leaseway.data_plane.mcp.protocol.messages.incoming import Inbox
from leaseway.data_plane.mcp.protocol.messages.pending import Pending, ToolCall
from leaseway.data_plane.mcp.protocol.messages.server_requests_legacy import asked_of
from leaseway.data_plane.mcp.protocol.messages.server_requests_modern import Rounds
from leaseway.data_plane.mcp.protocol.requester import Requester
from leaseway.wire.errors import Fault, Reason, Started

_logger = logging.getLogger(__name__)


class Peer(Requester):
    """One MCP connection.

    Attributes:
        transport_type: The transport's name, as in `transport:`.
        fault: Why the connection ended, or None while it is open or was closed by us.
        signs: When something last came from the server.
        late_replies: Answers that nobody waited for any more, second ones among them.
        stray_replies: Answers to what was never asked.
        garbage: What came and was no message at all.
    """

    transport_type = ""
    garbage = 0

    def __init__(self, server: str, on_tools_changed: Callable[[], None]) -> None:
        super().__init__(server)
        self.fault: Fault | None = None
        self.signs = Liveness()
        self.late_replies = 0
        self.stray_replies = 0
        self._calls: dict[object, ToolCall] = {}
        self.on_warning: Callable[[str, str], None] = lambda _reason, _text: None
        self.on_mended: Callable[[str], None] = lambda _reason: None
        self._warned = False
        self._idle: asyncio.Event | None = None
        self._on_reopened: Callable[[], None] = lambda: None
        kind, asked = self.transport_type, self._asked
        self._inbox = Inbox(server, kind, self._answer, self._calls.get, asked, on_tools_changed)

    def offer_roots(self, roots: bytes) -> None:
        """Answer the server's questions for roots with these; before the handshake."""
        self.roots = self._inbox.roots = roots

    @property
    def session_id(self) -> str:
        """The session that the server has opened, where the transport has such; else empty."""
        return ""

    # What a transport adds.

    async def open(self) -> None:
        """Make the connection, where that takes more than the first request.

        Raises:
            Fault: SERVER_NOT_READY or SERVER_LOST: it can't be made.
        """

    def _answer(self, line: bytes) -> None:
        """Send the answer to a server's request."""
        raise NotImplementedError

    def _refusal(self, size: int) -> Fault | None:
        """Return why no call of this size can be taken now."""
        raise NotImplementedError

    def _is_stuck(self) -> bool:
        """Return whether what is sent now does not get out for reasons that lie with the server."""
        raise NotImplementedError

    async def aclose(self, *, hurry: bool = False) -> None:
        """End the connection and whatever it holds; runs to its end though cancelled.

        Args:
            hurry: Give the server little time to end by itself.
        """
        raise NotImplementedError

    def accept(self, tools: dict[str, bytes]) -> dict[str, bytes]:
        """Learn the listed tools; return those that can be called over this transport."""
        return tools

    def hear_updates(self, on_update: OnUpdate, on_reopened: Callable[[], None]) -> None:
        """Register who is notified of changes of resources.

        Args:
            on_update: Told the URI of what changed.
            on_reopened: Called when the server has forgotten who follows what.
        """
        self._inbox.on_update = on_update
        self._on_reopened = on_reopened

    def lacks_back_channel(self) -> None:
        """Note, once, that the server asks its callers in a way that this protocol has not."""
        if not self._warned:
            self._warned = True
            self.on_warning(
                NO_BACK_CHANNEL,
                f"a tool wanted to ask its caller by a request of the server's own, which protocol "
                f"{self.era.version} has not, and failed. Set protocol: legacy in its entry.",
            )

    # Calls.

    @property
    def in_flight(self) -> int:
        return len(self._calls)

    def call(self, request: ToolRequest, done: Callable[[Outcome], None]) -> PendingCall:
        """Start a tool call (see `wire.Connection`)."""
        self._next_id = call_id = self._next_id + 1
        try:
            line = encode_call(call_id, request, self.era)
            headers = self._call_headers(request)
        except ValueError:
            return refuse(done, _no_json(self.server, request.name))
        refusal = self._refusal(len(line))
        if refusal is not None:
            return refuse(done, refusal)
        call = self._calls[call_id] = ToolCall(self, self.server, call_id, request, done)
        self._send(call_id, line, headers, call)
        return call

    def cancel_call(self, call: ToolCall, reason: str) -> None:
        """Forget a call and tell the server."""
        if self._forget(call.id) is not None:
            if call.rounds is not None and call.rounds.waiting:
                call.rounds.cancel()
                return
            self._abandon(call.id, call, reason, True)
            if call.written or self._is_stuck():
                self._doubt(call.id)

    # What servers ask of callers.

    def ask_first(self, call: ToolCall, wanted: bytes, otherwise: Fault | None = None) -> None:
        """Ask a call's caller for what its server wants, and make the call again (see `Rounds`).

        Meanwhile the call is under way: with the id that it will be made again with.
        """
        call.id = self._mint()
        self._calls[call.id] = call
        if call.rounds is None:
            call.rounds = Rounds(
                self.server,
                call.request,
                lambda continuation: self._repeat(call, continuation),
                lambda fault: self._give_up(call, fault),
                self.roots,
            )
        call.rounds.begin(wanted, otherwise)

    def _repeat(self, call: ToolCall, continuation: bytes) -> None:
        request = dataclasses.replace(call.request, continuation=continuation)
        line = encode_call(call.id, request, self.era)
        refusal = self._refusal(len(line))
        if refusal is not None:
            self._give_up(call, dataclasses.replace(refusal, started="yes"))
        else:
            self._send(call.id, line, self._call_headers(request), call)

    def _give_up(self, call: ToolCall, fault: Fault) -> None:
        self._forget(call.id)
        call.fail(fault)

    def _asked(self, near: ToolCall | None, method: str) -> ToolCall | str:
        if self.correlates and near is not None:
            return asked_of([near], method)
        return asked_of(self._calls.values(), method, shared=not self.leased)

    async def drained(self) -> None:
        while self._calls:
            self._idle = self._idle or asyncio.Event()
            await self._idle.wait()

    def _is_call(self, key: object) -> bool:
        return key in self._calls

    def _forget(self, key: object) -> ToolCall | None:
        call = self._calls.pop(key, None)
        if self._idle is not None and not self._calls:
            self._idle.set()
            self._idle = None
        return call

    def _call_headers(self, request: ToolRequest) -> Mapping[str, str]:
        """Return the HTTP headers of a call; pipes have none."""
        return request.param_headers

    # Life signs.

    @property
    def is_excused(self) -> bool:
        """Whether the server may be silent because it works on something."""
        if self._asking:
            return True
        oldest = next(iter(self._calls.values()), None)
        return oldest is not None and self.signs.explained_by(oldest.id)

    def _doubt(self, given_up: int) -> None:
        """Ask the server soon, if it has been silent since a call that was given up."""
        self.signs.doubt(given_up, self._next_id)
        self._wake_in_doubt()

    def _wake_in_doubt(self) -> None:
        if self.signs.in_doubt and not self.is_excused:
            self.signs.wake.set()

    def lose(self, fault: Fault) -> None:
        """End a connection that is of no use any more: everyone who waits learns why."""
        self._end(fault)

    # What comes unasked, answers and the end.

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Handle what the server sends of its own accord until the connection ends."""
        await self._inbox.run(on_request, on_notify, on_notify_intercept, task_status)

    def _settle(self, answer: Envelope) -> bool:
        """Give an answer to who waits for it; say whether anybody did."""
        key: object = answer.id
        entry: Pending | None = self._forget(key)
        if entry is None:
            key = request_key(answer.id)
            entry = self._forget(key) or self._requests.pop(key, None)
        if entry is None:
            self._drop_reply(key)
            return False
        entry.resolve(answer)
        return True

    def _drop_reply(self, key: object) -> None:
        """Count an answer that nobody waits for: late, a second one, or to nothing at all."""
        if isinstance(key, int) and 0 < key <= self._next_id:
            self.late_replies += 1
            return
        self.stray_replies += 1
        if self.stray_replies == 1:
            _logger.warning(
                "The server %s answers a request that it was never sent; such answers are "
                "dropped. Further ones are only counted.",
                self.server,
            )

    def _end(self, fault: Fault | None) -> None:
        """End the connection: everyone who waits learns why. Idempotent."""
        if self.closed.is_set():
            return
        self.fault = fault
        self.closed.set()
        self._inbox.close()
        waiting: list[Pending] = [*self._calls.values(), *self._requests.values()]
        self._calls.clear()
        self._requests.clear()
        if self._idle is not None:
            self._idle.set()
        for entry in waiting:
            entry.fail(self._ended_fault("yes" if entry.written else "no"))

    def _ended_fault(self, started: Started) -> Fault:
        fault = self.fault or Fault(
            Reason.SERVER_LOST,
            f"The connection to the server {self.server} was closed.",
            metadata={"server": self.server},
        )
        return dataclasses.replace(fault, started=started)


def _no_json(server: str, tool: str) -> Fault:
    return Fault(
        Reason.INVALID_ARGUMENTS,
        f"The arguments for the tool {tool} of the server {server} are no JSON object.",
        metadata={"server": server},
    )
