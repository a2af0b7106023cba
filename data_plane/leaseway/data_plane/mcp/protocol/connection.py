"""An MCP connection, independent of its transport: requests and their responses.

A `Peer` is a `Dispatcher` of the official package, for handshake, negotiation, listing and pings.
Tool calls bypass the package's models. Subclasses add how messages are sent.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import anyio
import anyio.abc
import msgspec
from mcp.shared.dispatcher import CallOptions, Dispatcher, OnNotify, OnNotifyIntercept, OnRequest
from mcp.shared.exceptions import MCPError
from mcp.shared.transport_context import TransportContext
from mcp_types import INTERNAL_ERROR, METHOD_NOT_FOUND, REQUEST_TIMEOUT
from msgspec import structs

from leaseway.data_plane.background import LightEvent
from leaseway.data_plane.core.calls.call import CALL_ENDED, Outcome, PendingCall, ToolRequest
from leaseway.data_plane.core.definitions.greeting import CORRECTIONS
from leaseway.data_plane.core.problems import NO_BACK_CHANNEL
from leaseway.data_plane.mcp.protocol.logged import LoggedOnce
from leaseway.data_plane.mcp.protocol.messages.client_meta import GREETINGS, Offer, introduce
from leaseway.data_plane.mcp.protocol.messages.codec import (
    JsonRpcMessage,
    encode_call,
    encode_notification,
    encode_request,
    request_key,
)
from leaseway.data_plane.mcp.protocol.messages.era import LEGACY, Era, reject_call
from leaseway.data_plane.mcp.protocol.messages.incoming import Asked, Inbox, find_asked_call
from leaseway.data_plane.mcp.protocol.messages.liveness import AbandonedCalls, Liveness, Refusals
from leaseway.data_plane.mcp.protocol.messages.log_level import LogLevel
from leaseway.data_plane.mcp.protocol.messages.notices import FindCaller, MissedRoots, Notices
from leaseway.data_plane.mcp.protocol.messages.pending import (
    ConnectionLost,
    InvalidResponse,
    Pending,
    RawRequest,
    ToolCall,
    invalid_arguments,
    invalid_result,
    is_rate_limit,
)
from leaseway.data_plane.mcp.protocol.messages.server_requests import (
    LEGACY_CAPABILITIES,
    ROOTS_ONLY,
    InputRounds,
)
from leaseway.wire.clients.mcp_client import McpClient
from leaseway.wire.clients.mcp_headers import METHOD_HEADER
from leaseway.wire.errors import Fault, Reason, Started
from leaseway.wire.messages.mcp import ROOTS, ROOTS_CHANGED
from leaseway.wire.secrets.redaction import redact
from leaseway.wire.signals import Signal

PROBE_TIMEOUT: Final = 5.0
"""Seconds that a cheap request may take after others were refused."""

_logger = logging.getLogger(__name__)
_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


class Peer(Dispatcher[TransportContext]):
    """An MCP connection.

    Attributes:
        era: What requests carry; set after negotiation.
        closed: Set when the connection has ended.
        leased: Whether one session owns the connection; set before the handshake.
        client: The MCP client that leases the connection, or None. Set before the handshake.
        asks_alone: Whether a request of a server that callers share goes to the only call in
            flight. Set before the handshake.
        offer: What `initialize` offers.
        answers_within: Seconds in which the server must answer what the official session asks, or
            want it later, instead of the session's own limit; None outside the handshake.
        corrected: What was corrected in the answer to the greeting, in words; empty for nothing.
        sets_log_level: Whether the server logs from a level that the client sets.
        log_level: That level.
        roots: The answer to the server's roots requests; None leaves them to callers. Set before
            the handshake.
        transport_type: The transport's name, as in `transport:`.
        fault: Why the connection ended; None while it is open, or if we closed it.
        liveness: When the server last sent something.
        refusals: Calls that failed in a row.
        cheap_request: The method that shows whether the server serves anything.
        warned: A warning, with its reason and text.
        warning_cleared: The reason of a warning that no longer holds.
        reopened: Its subscriptions are lost, as the server's session was renewed.
        missed: Notifications may be lost, as the stream that brings them was opened only now.
        late_replies: Responses to requests that are no longer pending, including duplicates.
        stray_replies: Responses to requests that were never sent.
        garbage: Messages that were not JSON-RPC.
        echoes: Our own requests that came back.
        logged: What was logged of its server, by any instance. Set before the handshake.
    """

    correlates = False
    """Whether a server's request is received on the stream of its call."""

    has_headers = False
    """Whether calls carry headers, as over HTTP."""

    lacks_token = False
    """Whether requests wait for a token, or get none."""

    transport_type = ""
    garbage = echoes = 0

    def __init__(self, server: str, on_tools_changed: Callable[[], None]) -> None:
        self.server = server
        self.on_tools_changed = on_tools_changed
        self.era: Era = LEGACY
        self.closed = LightEvent()
        self.leased = False
        self.client: McpClient | None = None
        self.asks_alone = False
        self.offer = Offer()
        self.corrected = ""
        self.answers_within: float | None = None
        self.sets_log_level = False
        self.log_level = LogLevel(self._set_log_level)
        self.roots: bytes | None = None
        self._own_requests = 0
        self._requests: dict[object, RawRequest] = {}
        self._next_id = 0
        self.fault: Fault | None = None
        self.liveness = Liveness()
        self.refusals = Refusals()
        self.cheap_request = "ping"
        self.late_replies = 0
        self.stray_replies = 0
        self._calls: dict[object, ToolCall] = {}
        self._abandoned = AbandonedCalls()
        self.warned = Signal[str, str]()
        self.warning_cleared = Signal[str]()
        self.reopened: Signal[()] = Signal()
        self.missed: Signal[()] = Signal()
        self._warned = False
        self.logged = LoggedOnce()
        self._inbox = Inbox(
            server,
            self.transport_type,
            self._respond,
            self._calls.get,
            self._find_asked_call,
            self._find_another_call,
            on_tools_changed,
        )
        self._missed_roots = MissedRoots(self._tell_of_roots)
        self._notices = Notices(self._inbox.is_asking, self._missed_roots.expect)
        self._inbox.asking.connect(self._missed_roots.follow)

    def offer_roots(self, roots: bytes) -> None:
        """Answer the server's roots requests with this result. Call it before the handshake."""
        self.roots = self._inbox.roots = roots

    def ask_waiting(self, find_caller: FindCaller) -> None:
        """Let a leased server ask calls that wait for its start. Call it before the handshake."""
        self._notices.find_caller = find_caller

    @property
    def session_id(self) -> str:
        """The id of the session that the server opened; empty without one."""
        return ""

    # To be implemented by subclasses.

    async def open(self) -> None:
        """Open the connection, if that takes more than the first request.

        Raises:
            Fault: SERVER_NOT_READY or SERVER_LOST: it can't be opened.
        """

    def _send(self, key: object, line: bytes, headers: Mapping[str, str], entry: Pending) -> None:
        raise NotImplementedError

    def _abandon(self, key: object, entry: Pending, reason: str, notify: bool) -> None:
        """Abandon a request; notify the server if it was written."""
        raise NotImplementedError

    async def _notify(self, line: bytes, headers: Mapping[str, str] | None) -> None:
        raise NotImplementedError

    def _respond(self, line: bytes) -> None:
        """Send the response to a server's request."""
        raise NotImplementedError

    def _rejection(self, size: int) -> Fault | None:
        """Return why a call of this size can't be sent now, or None."""
        raise NotImplementedError

    def _is_stuck(self) -> bool:
        """Return whether the server keeps messages from being sent."""
        raise NotImplementedError

    async def aclose(self, *, hurry: bool = False) -> None:
        """Close the connection, with `hurry` quickly; completes even if cancelled."""
        raise NotImplementedError

    def accept(self, tools: dict[str, bytes]) -> dict[str, bytes]:
        """Register the listed tools; return those that can be called over this transport."""
        return tools

    @property
    def resource_updated(self) -> Signal[str]:
        """The URI of a changed resource."""
        return self._inbox.resource_updated

    @property
    def outside(self) -> Signal[str, bytes]:
        """The method and the params of a notification to the client that belongs to no call."""
        return self._inbox.outside

    def warn_no_back_channel(self) -> None:
        """Warn, once, that this protocol version has no server requests."""
        if not self._warned:
            self._warned = True
            self.warned.emit(
                NO_BACK_CHANNEL,
                f"a tool tried to ask its caller by a request from the server, which protocol "
                f"{self.era.version} does not have, and failed. Set protocol: legacy in its entry.",
            )

    def log_repair(self, what: str = "messages that are not JSON in UTF-8", how: str = "") -> None:
        """Log, once, that what a server sends is corrected, and `how`."""
        if self.logged.is_first(what):
            text = "The server %s sends %s, which are corrected%s. Ask its maintainer to fix it."
            _logger.warning(text, self.server, what, f" ({how})" if how else "")

    # Requests of the worker and of the official session; tool calls bypass these.

    async def ping(self) -> None:
        """Ping the server; in the modern era by `server/discover`.

        Raises:
            ConnectionLost: The connection ended or could not be opened.
            MCPError: The server answered with an error, which is a sign of life, too.
        """
        method = "server/discover" if self.era.modern else "ping"
        await self._request_in_era(method, None, notify=False)

    async def probe(self) -> Fault | None:
        """Send a cheap request; return why the server refused it, or None if it serves."""
        try:
            async with asyncio.timeout(PROBE_TIMEOUT):
                await self._request_in_era(self.cheap_request, None, entry=RawRequest(max_wait=0))
        except (ConnectionLost, InvalidResponse) as error:
            return None if is_rate_limit(error.fault) else error.fault
        except MCPError as error:
            has_no_ping = self.cheap_request == "ping" and error.code == METHOD_NOT_FOUND
            return None if has_no_ping else self._refusal(f"error {error.code}: {error.message}")
        except TimeoutError:
            return self._refusal(f"nothing within {PROBE_TIMEOUT:g} s")
        return None

    def _refusal(self, answer: str) -> Fault:
        text = f"The server {self.server} answered {self.cheap_request} with {redact(answer):.500}"
        return Fault(Reason.SERVER_ERROR, f"{text.rstrip('.')}.", "yes", {"server": self.server})

    async def renew_session(self) -> bool:
        """Open a new session; return False if the connection can't, and must be replaced."""
        return False

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        """Send any request and return its result.

        Raises:
            ConnectionLost: The connection ended or could not be opened.
            MCPError: The server answered with an error, or not within `opts["timeout"]`, which
                `answers_within` replaces.
        """
        options: CallOptions = {**(opts or {})}
        if self.answers_within is not None:
            options.pop("timeout", None)
        roots_only = {} if self.roots is None else ROOTS_ONLY
        if self.client is not None and method in GREETINGS:
            params = introduce(self.client, method, params or {}, roots_only)
        elif method == "initialize":
            can_reach_callers = self.leased or self.correlates or self.asks_alone
            params = {
                **(params or {}),
                "capabilities": LEGACY_CAPABILITIES if can_reach_callers else roots_only,
            }
        if method == "initialize":
            params = self.offer.applied_to(params or {})
        entry = RawRequest(answers_within=self.answers_within)
        payload = await self._round_trip(method, params, options, None, entry)
        try:
            result = msgspec.json.decode(payload)
        except (ValueError, RecursionError):
            result = None
        if not isinstance(result, dict):
            raise MCPError(code=INTERNAL_ERROR, message=f"The result of {method} is not an object")
        if method in GREETINGS:
            self.corrected = CORRECTIONS[method](result)
        return result

    async def request(self, method: str, params: Mapping[str, Any] | None = None) -> bytes:
        """Send any request with the era's `_meta`; return its result as received.

        Raises:
            ConnectionLost: The connection ended.
            MCPError: The server answered with an error.
        """
        self._own_requests += 1
        try:
            return await self._request_in_era(method, params)
        finally:
            self._own_requests -= 1
            self._wake_health_check()

    async def _request_in_era(
        self,
        method: str,
        params: Mapping[str, Any] | None,
        *,
        notify: bool = True,
        entry: RawRequest | None = None,
    ) -> bytes:
        opts: CallOptions = {"headers": {**self.era.headers}, "cancel_on_abandon": notify}
        if self.era.modern:
            opts["headers"][METHOD_HEADER] = method
        return await self._round_trip(method, params, opts, self.era, entry or RawRequest())

    async def notify(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> None:
        """Send a notification; dropped if the connection has ended."""
        if not self.closed.is_set:
            await self._notify(encode_notification(method, params), (opts or {}).get("headers"))

    async def _round_trip(
        self,
        method: str,
        params: Mapping[str, Any] | None,
        opts: CallOptions,
        era: Era | None,
        entry: RawRequest,
    ) -> bytes:
        if self.closed.is_set:
            raise ConnectionLost(self.ended_fault("no"))
        wire_id = opts.get("request_id") or self._new_id()
        key = request_key(wire_id)
        if key in self._requests or key in self._calls:
            raise ValueError(f"request id {wire_id!r} is already in flight")
        self._requests[key] = entry
        line = encode_request(wire_id, method, params, era)
        try:
            async with asyncio.timeout(opts.get("timeout")):
                self._send(key, line, opts.get("headers") or {}, entry)
                return await entry.answered()
        except TimeoutError:
            message = f"The server {self.server} did not answer {method} in time"
            raise MCPError(code=REQUEST_TIMEOUT, message=message) from None
        finally:
            if self._requests.pop(key, None) is not None:
                self._abandoned.withdraw(key)
                self._abandon(key, entry, "no longer wanted", opts.get("cancel_on_abandon", True))

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id

    # Calls.

    @property
    def in_flight(self) -> int:
        return len(self._calls)

    def call(self, request: ToolRequest, done: Callable[[Outcome], None]) -> PendingCall:
        """Start a tool call; never blocks. `done` runs on the loop, unless it is cancelled."""
        if request.method == ROOTS_CHANGED:
            return self._notify_of_roots(request, done)
        level_set = None
        if request.callbacks.on_log is not None and self.sets_log_level:
            level_set = self.log_level.lower(request.callbacks.log_level)
        self._next_id = call_id = self._next_id + 1
        try:
            line = encode_call(call_id, request, self.era)
            headers = self._call_headers(request) if self.has_headers else _NO_HEADERS
        except ValueError:
            return reject_call(done, invalid_arguments(self.server, request.name))
        rejection = self._rejection(len(line))
        if rejection is not None:
            return reject_call(done, rejection)
        call = self._calls[call_id] = ToolCall(self, self.server, call_id, request, done)
        wait = self._missed_roots.before(request, level_set)
        if wait is None:
            self._send(call_id, line, headers, call)
        else:
            wait.add_done_callback(partial(self._send_late, call, line, headers))
        return call

    def _send_late(
        self, call: ToolCall, line: bytes, headers: Mapping[str, str], _waited: object
    ) -> None:
        if self._calls.get(call.id) is call:  # it may have been cancelled
            self._send(call.id, line, headers, call)

    def _notify_of_roots(
        self, request: ToolRequest, done: Callable[[Outcome], None]
    ) -> PendingCall:
        """Tell a legacy server that roots have changed, if its own client declared to tell."""
        notice = self._notices.open(request, done)
        client = self.client if self.leased and self.roots is None else None
        declared = client.capabilities.get("roots", {}) if client is not None else {}
        if self.era.modern or not declared.get("listChanged"):
            asyncio.get_running_loop().call_soon(notice.end)
        else:
            self._missed_roots.missed = False
            self._tell_of_roots()
        return notice

    def _tell_of_roots(self) -> None:
        self._respond(encode_notification(ROOTS_CHANGED, None))

    def _set_log_level(self, level: str) -> asyncio.Future[bytes]:
        entry = RawRequest()
        if self.closed.is_set:
            entry.fail(self.ended_fault("no"))
            return entry.answer
        request_id = self._new_id()
        self._requests[request_id] = entry
        line = encode_request(request_id, "logging/setLevel", {"level": level})
        self._send(request_id, line, self.era.headers, entry)
        return entry.answer

    def cancel_call(self, call: ToolCall, reason: str) -> None:
        """Remove a call and cancel it at the server."""
        if self._calls.pop(call.id, None) is not None:
            if call.rounds is not None and call.rounds.waiting:
                call.rounds.cancel()
                return
            if not self.leased and call.written:
                self._abandoned.add(call.id)
            self._abandon(call.id, call, reason, True)
            if call.written or self._is_stuck():
                self._doubt(call.id)

    # Requests of servers to callers.

    def request_input(self, call: ToolCall, result: bytes, declined: Fault | None = None) -> None:
        """Ask a call's caller for input, then send the call again (see `InputRounds`).

        Meanwhile the call is in flight, with the id of its next request.
        """
        call.id = self._new_id()
        self._calls[call.id] = call
        rounds = call.rounds
        if rounds is None:
            rounds = InputRounds(
                self.server,
                call.request,
                partial(self._resend, call),
                partial(self._fail_call, call),
                self.roots,
            )
            call.begin_rounds(rounds)
        rounds.start(result, declined)

    def _resend(self, call: ToolCall, continuation: bytes) -> None:
        request = structs.replace(call.request, continuation=continuation)
        line = encode_call(call.id, request, self.era)
        rejection = self._rejection(len(line))
        if rejection is not None:
            self._fail_call(call, dataclasses.replace(rejection, started="yes"))
        else:
            self._send(call.id, line, self._call_headers(request), call)

    def _fail_call(self, call: ToolCall, fault: Fault) -> None:
        self._calls.pop(call.id, None)
        call.fail(fault)

    def _find_asked_call(self, related_call: ToolCall | None, method: str) -> Asked | str:
        call = self._find_call(related_call, method)
        if not isinstance(call, str):
            return call
        found = self._notices.answering(method)
        if found is None and method == ROOTS and self.leased and not self._calls:
            self._missed_roots.miss()
        return found or call

    def _find_another_call(self, method: str) -> Asked | str:
        # Whoever else calls on a shared connection may be a stranger, also if he is alone now.
        return self._find_asked_call(None, method) if self.leased else CALL_ENDED

    def _find_call(self, related_call: ToolCall | None, method: str) -> ToolCall | str:
        if self.correlates and related_call is not None:
            return find_asked_call([related_call], method)
        calls = self._calls.values()
        is_alone = self.asks_alone and len(calls) == 1 and not self._abandoned.may_speak()
        shared, asks_of = not self.leased and not is_alone, self._inbox.asks_of
        return find_asked_call(calls, method, shared=shared, asks_of=asks_of)

    def _call_headers(self, request: ToolRequest) -> Mapping[str, str]:
        """Return the HTTP headers of a call; pipes have none."""
        return _NO_HEADERS

    # Health.

    @property
    def may_be_silent(self) -> bool:
        """Whether the server may be silent because it works on a request."""
        if self._own_requests:
            return True
        oldest = next(iter(self._calls.values()), None)
        return oldest is not None and self.liveness.is_explained_by(oldest.id)

    def _doubt(self, abandoned: int) -> None:
        """Ping the server soon if it has been silent since an abandoned call."""
        self.liveness.mark_doubtful(abandoned, self._next_id)
        self._wake_health_check()

    def _wake_health_check(self) -> None:
        if self.liveness.in_doubt and not self.may_be_silent:
            self.liveness.wake.set()

    # The server's messages, and the end.

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Handle the server's requests and notifications until the connection ends."""
        await self._inbox.run(on_request, on_notify_intercept, task_status)

    def _handle_response(self, answer: JsonRpcMessage) -> bool:
        """Resolve the request that a response answers; return whether it was pending."""
        key: object = answer.id
        entry: Pending | None = self._calls.pop(key, None)
        if entry is None:
            key = request_key(answer.id)
            entry = self._calls.pop(key, None) or self._requests.pop(key, None)
        if entry is None:
            self._count_dropped_response(key)
            return False
        self._resolve(entry, answer)
        return True

    def _resolve(self, entry: Pending, answer: JsonRpcMessage) -> None:
        try:
            entry.resolve(answer)
        except (RecursionError, ValueError):  # such as 1e999, or nearly too many levels
            entry.fail(invalid_result(self.server))

    def _count_dropped_response(self, key: object) -> None:
        """Count a response without a pending request."""
        was_sent = isinstance(key, int) and 0 < key <= self._next_id
        if was_sent or self._abandoned.was_withdrawn(key):
            self.late_replies += 1
            self._abandoned.discard(key)
            return
        self.stray_replies += 1
        if self.stray_replies == 1 and self.logged.is_first("stray replies"):
            _logger.warning(
                "The server %s answers a request that it was never sent; such responses are "
                "dropped. Further ones are only counted.",
                self.server,
            )

    def end(self, fault: Fault | None) -> None:
        """End the connection: fail everything pending. Idempotent."""
        if self.closed.is_set:
            return
        self.fault = fault
        self.closed.set()
        self._inbox.close()
        waiting: list[Pending] = [*self._calls.values(), *self._requests.values()]
        self._calls.clear()
        self._requests.clear()
        for entry in waiting:
            entry.fail(self.ended_fault("yes" if entry.written else "no"))
        self._notices.end(self.ended_fault("unknown"))

    def ended_fault(self, started: Started) -> Fault:
        """Return the fault for a request on an ended connection."""
        fault = self.fault or Fault(
            Reason.SERVER_LOST,
            f"The connection to the server {self.server} was closed.",
            metadata={"server": self.server},
        )
        return dataclasses.replace(fault, started=started)
