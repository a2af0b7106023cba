"""MCP over streamable HTTP, both eras.

Each request is a POST in its own task, so a failure affects that request only. Connections are from
the worker's pool. Legacy servers may use a GET stream for their own requests and notifications, and
to resume a broken response stream.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Final

import aiohttp
from mcp.shared.dispatcher import CallOptions
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_REQUEST, METHOD_NOT_FOUND

from leaseway.data_plane.background import shielded
from leaseway.data_plane.core.calls.call import ToolRequest
from leaseway.data_plane.core.problems import UNREACHABLE
from leaseway.data_plane.kinds.remote.http import errors
from leaseway.data_plane.kinds.remote.http.endpoint import (
    HttpEndpoint,
    OldSession,
    RequestBody,
    SessionForgotten,
    SessionRenewal,
)
from leaseway.data_plane.kinds.remote.http.notifications import (
    NotificationPoster,
    undelivered_answer,
)
from leaseway.data_plane.kinds.remote.http.param_headers import ParamHeaders
from leaseway.data_plane.kinds.remote.http.refusals import (
    NO_REFUSAL,
    ErrorAnswer,
    Refusal,
    SessionCheck,
    SessionProbe,
    is_transient,
    may_wait,
    of_answer,
    of_fault,
    of_unknown_session,
    session_gone,
)
from leaseway.data_plane.kinds.remote.http.responses import (
    AnswersElsewhere,
    EventReader,
    GetStream,
    PostedRequest,
    ResponseReader,
    Unanswered,
)
from leaseway.data_plane.mcp.protocol.connection import PROBE_TIMEOUT, Peer
from leaseway.data_plane.mcp.protocol.messages.codec import (
    JsonRpcMessage,
    encode_notification,
    request_key,
)
from leaseway.data_plane.mcp.protocol.messages.incoming import Asked
from leaseway.data_plane.mcp.protocol.messages.pending import (
    InvalidResponse,
    Pending,
    is_rate_limit,
)
from leaseway.data_plane.outgoing import Outgoing
from leaseway.wire import bounds
from leaseway.wire.errors import Fault
from leaseway.wire.timing.backoff import RETRY

_logger = logging.getLogger(__name__)
_CLOSE_TIMEOUT: Final = 2.0
"""Seconds for requests to end that are cancelled."""


class HttpConnection(Peer):
    """An MCP connection to a URL.

    It has no `Transport`: responses, errors and cancellations belong to the POST of their request.

    Args:
        session_id: An existing session, or empty. It is sent from the first request on; the
            handshake happens nevertheless, and closing does not end the session.
        outgoing: Its proxy and cookies; by default no proxy.
        on_tools_changed: Called when the tools changed, or may have.
        renews_sessions: Whether a forgotten session is replaced by a new one. Otherwise, because
            its state is lost, the connection ends.

    Raises:
        Fault: SERVER_NOT_READY: the URL is invalid.
    """

    transport_type = "streamable_http"
    correlates = True
    has_headers = True

    def __init__(
        self,
        server: str,
        url: str,
        http: aiohttp.ClientSession,
        *,
        headers: Mapping[str, str] | None = None,
        session_id: str = "",
        outgoing: Outgoing | None = None,
        on_tools_changed: Callable[[], None] = lambda: None,
        renews_sessions: bool = False,
    ) -> None:
        super().__init__(server, on_tools_changed)
        self._endpoint = HttpEndpoint(
            server, url, http, headers or {}, session_id, outgoing or Outgoing()
        )
        self._renews_sessions = renews_sessions
        self._renewal = SessionRenewal(server, self._endpoint, self._reopen)
        self._check = SessionCheck(self._probe_session)
        self._gone = NO_REFUSAL
        self._unproven = False
        self._has_served = False
        self._initialize: tuple[Mapping[str, Any] | None, CallOptions] = (None, {})
        self._initializing: object = None
        self._tasks: dict[object, asyncio.Task[None]] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._poster = NotificationPoster(server, self._endpoint, self._background, self._spawn)
        self._inbox.send_answers_by(self._send_answer)
        self._params = ParamHeaders(server)
        handlers = (self._handle_message, self._is_pending)
        self._events = EventReader(
            server, self._endpoint, *handlers, self.log_repair, self._count_stray
        )
        self._responses = ResponseReader(server, self._endpoint, self._events, *handlers)
        suspect = self.refusals.suspect
        self._elsewhere = AnswersElsewhere(self._is_pending, self._fail, suspect)
        self._get_stream: asyncio.Task[None] | None = None
        self._unreachable = False
        self._closing: asyncio.Task[None] | None = None

    @property
    def session_id(self) -> str:
        """The session that the server opened; empty for a configured one, which may be a secret."""
        return self._endpoint.session_id if self._endpoint.session_is_ours else ""

    @property
    def lacks_token(self) -> bool:  # type: ignore[override]  # of its endpoint
        return self._endpoint.lacks_token

    def accept(self, tools: dict[str, bytes]) -> dict[str, bytes]:
        """Register arguments that are sent in headers; skip tools with invalid ones."""
        return self._params.accept(tools, self.logged) if self.era.modern else tools

    async def aclose(self, *, hurry: bool = False) -> None:
        """Cancel all requests, and end the session if it is ours. Idempotent."""
        if self._closing is None:
            self.end(self.fault)
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await shielded(self._closing)

    # Sending.

    def _rejection(self, size: int) -> Fault | None:
        return self.ended_fault("no") if self.closed.is_set else None

    def _call_headers(self, request: ToolRequest) -> Mapping[str, str]:
        if not self.era.modern:
            return self.era.headers
        return {**self.era.headers, **self._params.of(request)}

    def _is_stuck(self) -> bool:
        return True  # unsent requests wait for a connection to the server

    def _send(self, key: object, line: bytes, headers: Mapping[str, str], entry: Pending) -> None:
        task = asyncio.get_running_loop().create_task(self._exchange(key, line, headers, entry))
        self._tasks[key] = task

    def _respond(self, line: bytes) -> None:
        self._poster.post_later(line, self.era.headers)

    def _send_answer(self, line: bytes, call: Asked | None) -> None:
        """Send a caller's answer; fail its call if the answer can't be delivered."""
        on_undelivered = partial(self._fail_undelivered, call) if call is not None else None
        self._poster.post_later(line, self.era.headers, on_undelivered)

    def _fail_undelivered(self, asked: Asked, cause: str, is_certain: bool) -> None:
        call = self._calls.get(asked.id)
        if call is None:
            return
        fault = undelivered_answer(self.server, cause)
        if not is_certain:  # the server may have the answer
            _logger.warning("%s The call continues.", fault.message)
            return
        self._calls.pop(call.id, None)
        self._abandon(call.id, call, "the answer could not be delivered", True)
        call.fail(fault)

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        """Send any request; the response of `initialize` may open a session."""
        if method != "initialize":
            return await super().send_raw_request(method, params, opts)
        options: CallOptions = {**(opts or {})}
        self._initialize = (params, options)
        self._initializing = options.get("request_id") or self._new_id()
        try:
            request_opts: CallOptions = {**options, "request_id": self._initializing}
            return await super().send_raw_request(method, params, request_opts)
        finally:
            self._initializing = None

    async def notify(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> None:
        """Send a notification; after `initialized`, open the GET stream."""
        await super().notify(method, params, opts)
        if method == "notifications/initialized" and self._endpoint.session_id:
            self._open_get_stream((opts or {}).get("headers") or {})

    async def _notify(self, line: bytes, headers: Mapping[str, str] | None) -> None:
        await self._poster.post(line, headers or self.era.headers)

    def _abandon(self, key: object, entry: Pending, reason: str, notify: bool) -> None:
        task = self._tasks.pop(key, None)
        if task is not None:
            task.cancel()  # closes the response stream, which cancels the request in the modern era
        if notify and entry.written and not self.era.modern and not self.closed.is_set:
            params = {"requestId": key, "reason": reason}
            line = encode_notification("notifications/cancelled", params)
            self._poster.post_later(line, self.era.headers)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    # One request.

    async def _exchange(
        self, key: object, line: bytes, headers: Mapping[str, str], entry: Pending
    ) -> None:
        try:
            refusal = await self._post_in_turn(key, line, headers, entry)
            if refusal is None or self.closed.is_set:
                return
            if isinstance(entry, SessionProbe):
                self._requests.pop(key, None)
                entry.refuse(refusal)
            else:
                await self._recover(refusal, key, line, headers, entry)
        except Fault as fault:
            self._fail(key, fault)
        except Exception:  # the caller must be notified of any failure
            _logger.exception("A request to the server %s failed unexpectedly.", self.server)
            self._fail(key, errors.unexpected(self.server, entry))
        finally:
            self._tasks.pop(key, None)

    async def _post_in_turn(
        self, key: object, line: bytes, headers: Mapping[str, str], entry: Pending
    ) -> Refusal | None:
        """Post a request, and one of ours again while the server wants it later."""
        failures = 0
        waited = 0.0
        while True:
            try:
                return await self._post(key, line, headers, entry)
            except Fault as fault:
                delay = max(fault.retry_delay or 0.0, RETRY.ceiling(failures))
                waited += delay
                if not may_wait(entry, fault) or waited > entry.max_wait:
                    raise
                entry.postpone(fault.message)
            failures += 1
            entry.written = False
            await asyncio.sleep(delay)

    async def _post(
        self, key: object, line: bytes, headers: Mapping[str, str], entry: Pending
    ) -> Refusal | None:
        """Post and read the response; return a refusal that may concern the session."""
        answered = False
        number = await self._session_for(key)
        while self.sets_log_level and (level_set := self._level_for(key)) is not None:
            await asyncio.wait([level_set])  # not the future itself: others wait for it, too
            number = await self._session_for(key)
        in_session = self._is_in_session(key)
        opens = key == self._initializing
        session = (
            "" if opens or self.era.modern or not self.era.version else self._endpoint.session_id
        )
        try:
            body = RequestBody(line, entry)
            async with await self._endpoint.request("POST", headers, body) as response:
                answered = True
                self.liveness.mark_received(self._next_id)
                if self._unreachable:
                    self._unreachable = False
                    self.warning_cleared.emit(UNREACHABLE)
                posted = PostedRequest(
                    key=key,
                    headers=headers,
                    session=session,
                    opens_session=opens,
                    in_session=in_session,
                )
                try:
                    await self._responses.read(posted, response, self.era)
                except Unanswered as unanswered:
                    if not self._elsewhere.expect(key, unanswered):
                        raise unanswered.fault from None
        except SessionForgotten as error:
            return of_unknown_session(number, error)
        except ErrorAnswer as error:
            return of_answer(number, error)
        except Fault as error:
            refusal = of_fault(number, error) if in_session else None
            if refusal is None or may_wait(entry, error):
                raise
            return refusal
        except errors.CONNECTION_ERRORS as error:
            fault = errors.broken(self.server, self._endpoint.url, error, entry, answered)
            refusal = of_fault(number, fault) if in_session else None
            if refusal is None:
                self._fail(key, fault)
            if isinstance(key, int):
                self._doubt(key)
                self._warn_unreachable(fault)
            return refusal
        return None

    def _level_for(self, key: object) -> asyncio.Future[None] | None:
        """Return what is done once the session has the log level of a call, or None if it has it.

        A call whose session was renewed meanwhile comes here with a level that is not set.
        """
        call = self._calls.get(key)
        if call is None or call.request.callbacks.on_log is None:
            return None
        return self.log_level.lower(call.request.callbacks.log_level)

    def _warn_unreachable(self, fault: Fault) -> None:
        if fault.started == "no" and not self._unreachable:
            self._unreachable = True
            self.warned.emit(
                UNREACHABLE, f"{fault.message} Its calls fail until it responds again."
            )

    async def _recover(
        self,
        refusal: Refusal,
        key: object,
        line: bytes,
        headers: Mapping[str, str],
        entry: Pending,
    ) -> None:
        """Find out whether the session is gone; then renew it, or end the connection.

        The request is sent again if it certainly did not start: if its session is unknown, or the
        server said the same to a cheap request, so that no tool can have said it.
        """
        if refusal.transient:
            self._deliver(key, refusal)  # it may have started, so it could not be sent again
            self.refusals.suspect()
            return
        if refusal.session == self._renewal.number:
            verdict = await self._check.check(refusal)
            may_pass = verdict is not None and verdict.is_barred and not self._can_renew
            if verdict is not None and not (verdict.transient or may_pass):
                self._gone = verdict
            elif refusal.session == self._renewal.number:
                if refusal.forgotten and verdict is None:
                    await self._post_again(key, line, headers, entry)
                    return
                self._deliver(key, refusal)
                if verdict is not None:
                    self.refusals.suspect()
                return
        rejected = refusal.forgotten or (refusal.rejects and refusal.words == self._gone.words)
        is_gone = refusal.forgotten or self._gone.forgotten
        old = OldSession.GONE if is_gone else OldSession.REFUSED
        if refusal.session != self._renewal.number and not rejected:
            self._deliver(key, refusal)  # an error of the request itself, in an earlier session
        elif await self._renew(refusal.session, old, entry if rejected else None):
            if rejected:
                await self._post_again(key, line, headers, entry)
            else:
                self._fail(key, session_gone(self.server, refusal))
        elif rejected:
            self._fail(key, errors.session_expired(self.server))
        else:
            self._fail(key, session_gone(self.server, refusal))

    async def _renew(self, number: int, old: OldSession, rejected: Pending | None) -> bool:
        """Return whether another session is in use than the given one; else end the connection.

        If the server can't be reached now, and the old session may exist, the connection stays.
        """
        if rejected is not None:
            rejected.written = False
        if self._can_renew or number != self._renewal.number:
            if await self._renewal.renew(number, old):
                return not self.closed.is_set
            self.refusals.suspect()
        else:
            self.end(errors.session_expired(self.server))
        return False

    async def _post_again(
        self, key: object, line: bytes, headers: Mapping[str, str], entry: Pending
    ) -> None:
        """Post a rejected request once more: a 404 means that nothing was done.

        So does a load balancer that asks the wrong server.
        """
        entry.written = False
        refusal = await self._post(key, line, headers, entry)
        if refusal is None or self.closed.is_set:
            return
        verdict = await self._check.check(refusal) if refusal.forgotten else refusal
        if verdict is not None and verdict.forgotten:
            fault = errors.session_expired(self.server)
            self._fail(key, fault)
            self.end(fault)
            return
        number, may_open = refusal.session, self._can_renew
        if verdict is None and await self._renewal.try_another(number, may_open=may_open):
            entry.written = False
            again = await self._post(key, line, headers, entry)
            is_answered = entry.written if again is None else not again.transient
            if is_answered and not (again is not None and again.forgotten):
                self._renewal.note_helped()
            if again is None or self.closed.is_set:
                return
            refusal = again
            if again.transient:
                self.refusals.suspect()
        self._deliver(key, refusal)
        if verdict is not None:
            self.refusals.suspect()

    @property
    def _can_renew(self) -> bool:
        """Whether a new session may replace this one: no configured one, and no second in vain."""
        configured = self._endpoint.session_id and not self._endpoint.session_is_ours
        return self._renews_sessions and not configured and not self._unproven

    async def renew_session(self) -> bool:
        """Open a new session; return False if the connection must be replaced instead."""
        if self.era.modern or not self._can_renew:
            return False
        await self._renewal.renew(self._renewal.number, OldSession.REFUSED)
        return True

    async def probe(self) -> Fault | None:
        """Send a cheap request, which never renews the session (see `Peer.probe`)."""
        if self.era.modern:
            return await super().probe()
        refusal = await self._probe_session()
        return None if refusal is None else refusal.as_fault(self.server)

    async def _probe_session(self) -> Refusal | None:
        """Send a cheap request in the session; return why it was refused, or None."""
        number, probe = self._renewal.number, SessionProbe()
        opts: CallOptions = {"headers": {**self.era.headers}, "timeout": PROBE_TIMEOUT}
        try:
            await self._round_trip(self.cheap_request, None, opts, self.era, probe)
        except InvalidResponse as error:
            if is_rate_limit(error.fault):
                return None
            return probe.refusal or of_fault(number, error.fault)
        except MCPError as error:
            if self.cheap_request == "ping" and error.code == METHOD_NOT_FOUND:
                return None
            refused = Refusal(number, transient=True, words=error.message)
            return probe.refusal or refused
        return None

    async def _session_for(self, key: object) -> int:
        if key == self._initializing:
            return self._renewal.number
        return await self._renewal.current_session()

    def _deliver(self, key: object, refusal: Refusal) -> None:
        entry: Pending | None = self._calls.pop(key, None) or self._requests.pop(key, None)
        if entry is not None:
            refusal.deliver(entry)

    async def _reopen(self, old: OldSession) -> bool:
        """Replace a session that the server no longer serves; return whether that succeeded.

        If not, the connection ends, unless the old session serves calls, or may do so soon.
        """
        params, opts = self._initialize
        serves = old is OldSession.SERVES
        if self._endpoint.outgoing.cookies is not None and not serves:
            self._endpoint.outgoing.cookies.clear()  # they may lead to a server that is gone
        try:
            request_opts: CallOptions = {**opts, "timeout": bounds.STARTUP_TIMEOUT}
            request_opts.pop("request_id", None)
            result = await self.send_raw_request("initialize", params, request_opts)
            if result.get("protocolVersion") != self.era.version:
                raise MCPError(INVALID_REQUEST, "its protocol version has changed")
            await self.notify("notifications/initialized", None, {"headers": {**self.era.headers}})
        except MCPError as error:
            if not serves and (old is OldSession.GONE or not is_transient(error)):
                self.end(errors.session_expired(self.server, f"{error}".rstrip(".")))
            return False
        self._unproven = True
        self.log_level.forget()
        self.on_tools_changed()
        self.reopened.emit()
        return True

    def _is_in_session(self, key: object) -> bool:
        """Return whether the session may be the reason if a request is refused.

        Before the first result the server, or its entry, is the reason.
        """
        return self._has_served and not self.era.modern and key != self._initializing

    def _handle_message(self, key: object, message: JsonRpcMessage) -> None:
        self.liveness.mark_received(self._next_id)
        if message.method is not None and not message.is_response:
            self._inbox.handle(message, self._calls.get(key))
        elif not message.is_response:
            raise errors.unreadable(self.server, "a message that is not JSON-RPC")
        elif message.id is None or request_key(message.id) == key:
            if message.has_error and self._is_pending(key) and self._is_in_session(key):
                raise ErrorAnswer(message, 200)
            entry: Pending | None = self._calls.pop(key, None) or self._requests.pop(key, None)
            if entry is not None:
                self._resolve(entry, message)
            else:
                self._count_dropped_response(key)
            if key != self._initializing:
                self._has_served, self._unproven = bool(self.era.version), False
        elif self._handle_response(message):
            self._has_served, self._unproven = bool(self.era.version), False

    def _count_stray(self) -> bool:
        self.garbage += 1
        return self.garbage == 1 and self.logged.is_first("garbage")

    def _is_pending(self, key: object) -> bool:
        return key in self._calls or key in self._requests

    def _fail(self, key: object, fault: Fault) -> None:
        entry: Pending | None = self._calls.pop(key, None) or self._requests.pop(key, None)
        if entry is not None:
            entry.fail(fault)

    # The GET stream of a legacy server.

    def _open_get_stream(self, headers: Mapping[str, str]) -> None:
        """Open the GET stream of the session, and close that of the previous session."""
        if self._get_stream is not None:
            self._get_stream.cancel()
        session = self._endpoint.session_id
        stream = GetStream(
            self.server,
            self._endpoint,
            headers,
            partial(self._events.handle_event, None),
            self.missed.emit,
            self._elsewhere.give_up,
            partial(self._stream_expired, session),
            self.refusals.suspect,
        )
        self._elsewhere.stream = stream
        self._get_stream = self._spawn(stream.run())

    def _stream_expired(self, session: str) -> None:
        if session == self._endpoint.session_id:
            self._spawn(self._renew_expired(self._renewal.number))

    async def _renew_expired(self, number: int) -> None:
        """Renew a session that another request than that for the stream does not find, either."""
        verdict = await self._probe_session()
        if verdict is not None and verdict.forgotten:
            await self._renew(number, OldSession.GONE, None)
        elif verdict is not None:
            self.refusals.suspect()

    # The end.

    async def _close(self) -> None:
        await self._check.aclose()
        await self._renewal.aclose()
        tasks = [*self._tasks.values(), *self._background]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_TIMEOUT)
        if self._endpoint.session_is_ours and self.fault is None:
            await self._endpoint.end_session(self.era.headers)
