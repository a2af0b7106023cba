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
from mcp_types import INVALID_REQUEST

from leaseway.data_plane.background import shielded
from leaseway.data_plane.core.calls.call import ToolRequest
from leaseway.data_plane.core.problems import UNREACHABLE
from leaseway.data_plane.mcp.http import errors
from leaseway.data_plane.mcp.http.endpoint import (
    HttpEndpoint,
    RequestBody,
    SessionForgotten,
    SessionRenewal,
)
from leaseway.data_plane.mcp.http.notifications import NotificationPoster, undelivered_answer
from leaseway.data_plane.mcp.http.param_headers import ParamHeaders
from leaseway.data_plane.mcp.http.responses import (
    EventReader,
    GetStream,
    PostedRequest,
    ResponseReader,
)
from leaseway.data_plane.mcp.protocol.connection import Peer
from leaseway.data_plane.mcp.protocol.messages.codec import (
    JsonRpcMessage,
    encode_notification,
    request_key,
)
from leaseway.data_plane.mcp.protocol.messages.pending import Pending, ToolCall
from leaseway.wire import bounds
from leaseway.wire.errors import Fault

_logger = logging.getLogger(__name__)
_CLOSE_TIMEOUT: Final = 2.0
"""Seconds for the DELETE that ends a session."""


class HttpConnection(Peer):
    """An MCP connection to a URL.

    It has no `Transport`: responses, errors and cancellations belong to the POST of their request.

    Args:
        session_id: An existing session, or empty. It is sent from the first request on; the
            handshake happens nevertheless, and closing does not end the session.
        on_tools_changed: Called when the tools changed, or may have.
        renews_sessions: Whether a forgotten session is replaced by a new one. Otherwise, because
            its state is lost, the connection ends.

    Raises:
        Fault: SERVER_NOT_READY: the URL is invalid.
    """

    transport_type = "streamable_http"
    correlates = True

    def __init__(
        self,
        server: str,
        url: str,
        http: aiohttp.ClientSession,
        *,
        headers: Mapping[str, str] | None = None,
        session_id: str = "",
        on_tools_changed: Callable[[], None] = lambda: None,
        renews_sessions: bool = False,
    ) -> None:
        super().__init__(server, on_tools_changed)
        self._endpoint = HttpEndpoint(server, url, http, headers or {}, session_id)
        self._on_tools_changed = on_tools_changed
        self._renews_sessions = renews_sessions
        self._renewal = SessionRenewal(server, self._endpoint, self._reopen)
        self._initialize: tuple[Mapping[str, Any] | None, CallOptions] = (None, {})
        self._initializing: object = None
        self._tasks: dict[object, asyncio.Task[None]] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._poster = NotificationPoster(server, self._endpoint, self._background, self._spawn)
        self._inbox.send_answers_by(self._send_answer)
        self._params = ParamHeaders(server)
        handlers = (self._handle_message, self._is_pending)
        self._events = EventReader(server, self._endpoint, *handlers, self.log_repair)
        self._responses = ResponseReader(server, self._endpoint, self._events, *handlers)
        self._get_stream: asyncio.Task[None] | None = None
        self._unreachable = False
        self._closing: asyncio.Task[None] | None = None

    @property
    def session_id(self) -> str:
        """The session that the server opened; empty for a configured one, which may be a secret."""
        return self._endpoint.session_id if self._endpoint.session_is_ours else ""

    def accept(self, tools: dict[str, bytes]) -> dict[str, bytes]:
        """Register arguments that are sent in headers; skip tools with invalid ones."""
        return self._params.accept(tools) if self.era.modern else tools

    async def aclose(self, *, hurry: bool = False) -> None:
        """Cancel all requests, and end the session if it is ours. Idempotent."""
        if self._closing is None:
            self.end(self.fault)
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await shielded(self._closing)

    # Sending.

    def _rejection(self, size: int) -> Fault | None:
        return self.ended_fault("no") if self.closed.is_set() else None

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

    def _send_answer(self, line: bytes, call: ToolCall | None) -> None:
        """Send a caller's answer; fail its call if the answer can't be delivered."""
        on_undelivered = partial(self._fail_undelivered, call) if call is not None else None
        self._poster.post_later(line, self.era.headers, on_undelivered)

    def _fail_undelivered(self, call: ToolCall, cause: str, is_certain: bool) -> None:
        if call.id not in self._calls:
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
        options = opts or {}
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
        if notify and entry.written and not self.era.modern and not self.closed.is_set():
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
            forgotten = await self._post(key, line, headers, entry)
            if forgotten is not None and not self.closed.is_set():
                await self._post_again(forgotten, key, line, headers, entry)
        except Fault as fault:
            self._fail(key, fault)
        except Exception:  # the caller must be notified of any failure
            _logger.exception("A request to the server %s failed unexpectedly.", self.server)
            self._fail(key, errors.unexpected(self.server, entry))
        finally:
            self._tasks.pop(key, None)

    async def _post(
        self, key: object, line: bytes, headers: Mapping[str, str], entry: Pending
    ) -> str | None:
        """Post and read the response; return the session if the server has forgotten it."""
        answered = False
        session = await self._session_for(key)
        try:
            body = RequestBody(line, entry)
            async with await self._endpoint.request("POST", headers, body) as response:
                answered = True
                self.liveness.mark_received(self._next_id)
                if self._unreachable:
                    self._unreachable = False
                    self.on_warning_cleared(UNREACHABLE)
                await self._responses.read(
                    PostedRequest(key, headers, session, opens_session=key == self._initializing),
                    response,
                    self.era,
                )
        except SessionForgotten:
            entry.written = False  # rejected, so nothing was started
            return session
        except errors.CONNECTION_ERRORS as error:
            fault = errors.broken(self.server, self._endpoint.url, error, entry, answered)
            self._fail(key, fault)
            if isinstance(key, int):
                self._doubt(key)
                self._warn_unreachable(fault)
        return None

    def _warn_unreachable(self, fault: Fault) -> None:
        if fault.started == "no" and not self._unreachable:
            self._unreachable = True
            self.on_warning(UNREACHABLE, f"{fault.message} Its calls fail until it responds again.")

    async def _post_again(
        self, forgotten: str, key: object, line: bytes, headers: Mapping[str, str], entry: Pending
    ) -> None:
        if self._renews_sessions and self._endpoint.session_is_ours:
            await self._renewal.renew(forgotten)
            if self.closed.is_set() or await self._post(key, line, headers, entry) is None:
                return
        self._fail_session(key)

    async def _session_for(self, key: object) -> str:
        if key == self._initializing:
            return ""
        return await self._renewal.current_session()

    def _fail_session(self, key: object) -> None:
        fault = errors.session_expired(self.server)
        self._fail(key, fault)
        self.end(fault)

    async def _reopen(self) -> None:
        """Replace a session that the server has forgotten."""
        params, opts = self._initialize
        try:
            request_opts: CallOptions = {**opts, "timeout": bounds.STARTUP_TIMEOUT}
            request_opts.pop("request_id", None)
            result = await self.send_raw_request("initialize", params, request_opts)
            if result.get("protocolVersion") != self.era.version:
                raise MCPError(INVALID_REQUEST, "its protocol version has changed")
            await self.notify("notifications/initialized", None, {"headers": {**self.era.headers}})
        except MCPError as error:
            self.end(errors.session_expired(self.server, f"{error}".rstrip(".")))
        else:
            self._on_tools_changed()
            self._on_reopened()

    def _handle_message(self, key: object, message: JsonRpcMessage) -> None:
        self.liveness.mark_received(self._next_id)
        if message.method is not None:
            self._inbox.handle(message, self._calls.get(key))
        elif not message.is_response:
            raise errors.unreadable(self.server, "a message that is not JSON-RPC")
        elif message.id is None or request_key(message.id) == key:
            entry: Pending | None = self._calls.pop(key, None) or self._requests.pop(key, None)
            if entry is not None:
                self._resolve(entry, message)
            else:
                self._count_dropped_response(key)
        else:
            self._handle_response(message)

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
            lambda: self._stream_expired(session),
        )
        self._get_stream = self._spawn(stream.run())

    def _stream_expired(self, session: str) -> None:
        if self._renews_sessions and self._endpoint.session_is_ours:
            self._spawn(self._renewal.renew(session))
        else:
            self.end(errors.session_expired(self.server))

    # The end.

    async def _close(self) -> None:
        await self._renewal.aclose()
        tasks = [*self._tasks.values(), *self._background]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_TIMEOUT)
        if self._endpoint.session_is_ours and self.fault is None:
            try:
                async with asyncio.timeout(_CLOSE_TIMEOUT):
                    (await self._endpoint.request("DELETE", self.era.headers)).release()
            except (*errors.CONNECTION_ERRORS, Fault) as error:
                _logger.debug("The session of the server %s was not ended: %s", self.server, error)
