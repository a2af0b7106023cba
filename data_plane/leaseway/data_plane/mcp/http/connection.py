"""MCP over streamable HTTP, both eras.

Each request is a POST of its own in a task of its own: what fails there fails that request only.
Connections come from the worker's one pool. Legacy servers may add a GET stream for what they
send of their own accord, and may continue a broken response stream there.
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
from leaseway.data_plane.mcp.http import errors as answers
from leaseway.data_plane.mcp.http.endpoint import HttpEndpoint, RequestBody
from leaseway.data_plane.mcp.http.get_stream import BROKEN, Follower
from leaseway.data_plane.mcp.http.notifications import NotificationPoster, unanswered
from leaseway.data_plane.mcp.http.param_headers import ParamHeaders
from leaseway.data_plane.mcp.http.responses import AnswerReader, EventReader, PostedRequest
from leaseway.data_plane.mcp.http.session_renewal import Renewal, SessionForgotten
from leaseway.data_plane.mcp.protocol.connection import Peer
from leaseway.data_plane.mcp.protocol.messages.codec import (
    Envelope,
    encode_notification,
    request_key,
)
from leaseway.data_plane.mcp.protocol.messages.pending import Pending, ToolCall
from leaseway.wire import bounds
from leaseway.wire.errors import Fault

_logger = logging.getLogger(__name__)
_FAREWELL: Final = 2.0
"""Seconds for the DELETE that ends a session."""


class HttpConnection(Peer):
    """One MCP connection to a URL.

    Of the `transport` seam it has `transport_type`, and `open` and `aclose` stand for `connect` and
    `disconnect`. There is no `send` apart from a `receive`: an answer belongs to the POST that asks
    for it, and so do a failure, a cancellation and what the server says meanwhile.

    Args:
        server: The server's id, for messages.
        url: The endpoint.
        http: The worker's pooled client.
        headers: Configured headers, resolved.
        session_id: A session that exists already, or empty. It is sent from the first request
            on; the handshake is made all the same, and the session is not ended at close.
        on_tools_changed: Called when the server says that its tools changed, or may have.
        renews_sessions: Whether a session that the server has forgotten is opened anew. If state is
            kept in it, the connection ends instead.

    Raises:
        Fault: SERVER_NOT_READY: the URL is none.
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
        self._renewal = Renewal(server, self._endpoint, self._open_again)
        self._initialize: tuple[Mapping[str, Any] | None, CallOptions] = (None, {})
        self._initializing: object = None
        self._tasks: dict[object, asyncio.Task[None]] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._poster = NotificationPoster(server, self._endpoint, self._background, self._spawn)
        self._inbox.answer_asks_by(self._answer_ask)
        self._params = ParamHeaders(server)
        self._events = EventReader(server, self._endpoint, self._take, self._waits)
        self._answers = AnswerReader(server, self._endpoint, self._events, self._take, self._waits)
        self._following: asyncio.Task[None] | None = None
        self._unreachable = False
        self._closing: asyncio.Task[None] | None = None

    @property
    def session_id(self) -> str:
        """The session that the server has opened; empty for a configured one, a secret perhaps."""
        return self._endpoint.session_id if self._endpoint.session_is_ours else ""

    def accept(self, tools: dict[str, bytes]) -> dict[str, bytes]:
        """Note which arguments go into headers; refuse tools that ask for impossible ones."""
        return self._params.accept(tools) if self.era.modern else tools

    async def aclose(self, *, hurry: bool = False) -> None:
        """End what is under way, and the session where it is ours. Idempotent."""
        if self._closing is None:
            self._end(self.fault)
            self._closing = asyncio.get_running_loop().create_task(self._say_farewell())
        await shielded(self._closing)

    # Sending.

    def _refusal(self, size: int) -> Fault | None:
        return self._ended_fault("no") if self.closed.is_set() else None

    def _call_headers(self, request: ToolRequest) -> Mapping[str, str]:
        if not self.era.modern:
            return self.era.headers
        return {**self.era.headers, **self._params.of(request)}

    def _is_stuck(self) -> bool:
        return True  # what was not sent yet waits for a connection to the server

    def _send(self, key: object, line: bytes, headers: Mapping[str, str], entry: Pending) -> None:
        task = asyncio.get_running_loop().create_task(self._exchange(key, line, headers, entry))
        self._tasks[key] = task

    def _answer(self, line: bytes) -> None:
        self._poster.later(line, self.era.headers)

    def _answer_ask(self, line: bytes, call: ToolCall | None) -> None:
        """Send the answer to a question; a call that waits for it ends where that is in vain."""
        on_undelivered = partial(self._end_unanswered, call) if call is not None else None
        self._poster.later(line, self.era.headers, on_undelivered)

    def _end_unanswered(self, call: ToolCall, why: str, is_certain: bool) -> None:
        if call.id not in self._calls:
            return
        fault = unanswered(self.server, why)
        if not is_certain:  # it may have the answer, or not need it any more
            _logger.warning("%s The call goes on.", fault.message)
            return
        self._forget(call.id)
        self._abandon(call.id, call, "its question could not be answered", True)
        call.fail(fault)

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        """Send any request (see `Peer`); the answer to `initialize` may open a session."""
        if method != "initialize":
            return await super().send_raw_request(method, params, opts)
        options = opts or {}
        self._initialize = (params, options)
        self._initializing = options.get("request_id") or self._mint()
        try:
            asked: CallOptions = {**options, "request_id": self._initializing}
            return await super().send_raw_request(method, params, asked)
        finally:
            self._initializing = None

    async def notify(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> None:
        """Send a notification; after `initialized`, the server may talk of its own accord."""
        await super().notify(method, params, opts)
        if method == "notifications/initialized" and self._endpoint.session_id:
            self._follow((opts or {}).get("headers") or {})

    async def _notify(self, line: bytes, headers: Mapping[str, str] | None) -> None:
        await self._poster.now(line, headers or self.era.headers)

    def _abandon(self, key: object, entry: Pending, reason: str, notify: bool) -> None:
        task = self._tasks.pop(key, None)
        if task is not None:
            task.cancel()  # closes the response stream, which is how modern servers are told
        if notify and entry.written and not self.era.modern and not self.closed.is_set():
            params = {"requestId": key, "reason": reason}
            line = encode_notification("notifications/cancelled", params)
            self._poster.later(line, self.era.headers)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    # One request's answer.

    async def _exchange(
        self, key: object, line: bytes, headers: Mapping[str, str], entry: Pending
    ) -> None:
        try:
            forgotten = await self._post(key, line, headers, entry)
            if forgotten is not None and not self.closed.is_set():
                await self._post_again(forgotten, key, line, headers, entry)
        except Fault as fault:
            self._fail(key, fault)
        except Exception:  # whoever waits must learn that it is in vain
            _logger.exception("A request to the server %s failed unexpectedly.", self.server)
            self._fail(key, answers.unexpected(self.server, entry))
        finally:
            self._tasks.pop(key, None)

    async def _post(
        self, key: object, line: bytes, headers: Mapping[str, str], entry: Pending
    ) -> str | None:
        """Post and take the answer; return the session if the server has forgotten it."""
        answered = False
        session = await self._session_for(key)
        try:
            body = RequestBody(line, entry)
            async with await self._endpoint.request("POST", headers, body) as response:
                answered = True
                self.signs.hear(self._next_id)
                if self._unreachable:
                    self._unreachable = False
                    self.on_mended(UNREACHABLE)
                await self._answers.read(
                    PostedRequest(key, headers, session, opens=key == self._initializing),
                    response,
                    self.era,
                )
        except SessionForgotten:
            entry.written = False  # refused, so nothing was begun
            return session
        except BROKEN as error:
            fault = answers.broken(self.server, self._endpoint.url, error, entry, answered)
            self._fail(key, fault)
            if isinstance(key, int):
                self._doubt(key)
                self._tell_unreachable(fault)
        return None

    def _tell_unreachable(self, fault: Fault) -> None:
        if fault.started == "no" and not self._unreachable:
            self._unreachable = True
            self.on_warning(UNREACHABLE, f"{fault.message} Its calls fail until it answers again.")

    async def _post_again(
        self, forgotten: str, key: object, line: bytes, headers: Mapping[str, str], entry: Pending
    ) -> None:
        if self._renews_sessions and self._endpoint.session_is_ours:
            await self._renewal.renew(forgotten)
            if self.closed.is_set() or await self._post(key, line, headers, entry) is None:
                return
        self._session_is_gone(key)

    async def _session_for(self, key: object) -> str:
        if key == self._initializing:
            return ""
        return await self._renewal.settled()

    def _session_is_gone(self, key: object) -> None:
        fault = answers.session_gone(self.server)
        self._fail(key, fault)
        self._end(fault)

    async def _open_again(self) -> None:
        """Open another session in place of one that the server has forgotten."""
        params, opts = self._initialize
        try:
            asked: CallOptions = {**opts, "timeout": bounds.STARTUP_TIMEOUT}
            asked.pop("request_id", None)
            result = await self.send_raw_request("initialize", params, asked)
            if result.get("protocolVersion") != self.era.version:
                raise MCPError(INVALID_REQUEST, "it speaks another protocol version now")
            await self.notify("notifications/initialized", None, {"headers": {**self.era.headers}})
        except MCPError as error:
            self._end(answers.session_gone(self.server, f"{error}".rstrip(".")))
        else:
            self._on_tools_changed()
            self._on_reopened()

    def _take(self, key: object, message: Envelope) -> None:
        self.signs.hear(self._next_id)
        if message.method is not None:
            self._inbox.take(message, self._calls.get(key))
        elif not message.is_response:
            raise answers.unreadable(self.server, "a message that is no JSON-RPC")
        elif message.id is None or request_key(message.id) == key:
            entry: Pending | None = self._forget(key) or self._requests.pop(key, None)
            if entry is not None:
                entry.resolve(message)
            else:
                self._drop_reply(key)
        else:
            self._settle(message)

    def _waits(self, key: object) -> bool:
        return key in self._calls or key in self._requests

    def _fail(self, key: object, fault: Fault) -> None:
        entry: Pending | None = self._forget(key) or self._requests.pop(key, None)
        if entry is not None:
            entry.fail(fault)

    # What a legacy server says of its own accord.

    def _follow(self, headers: Mapping[str, str]) -> None:
        """Keep a GET stream of the session open, instead of the one before."""
        if self._following is not None:
            self._following.cancel()
        session = self._endpoint.session_id
        follower = Follower(
            self.server,
            self._endpoint,
            headers,
            lambda event: self._events.take(None, event),
            lambda: self._stream_expired(session),
        )
        self._following = self._spawn(follower.run())

    def _stream_expired(self, session: str) -> None:
        if self._renews_sessions and self._endpoint.session_is_ours:
            self._spawn(self._renewal.renew(session))
        else:
            self._end(answers.session_gone(self.server))

    # The end.

    async def _say_farewell(self) -> None:
        await self._renewal.aclose()
        tasks = [*self._tasks.values(), *self._background]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_FAREWELL)
        if self._endpoint.session_is_ours and self.fault is None:
            try:
                async with asyncio.timeout(_FAREWELL):
                    (await self._endpoint.request("DELETE", self.era.headers)).release()
            except (*BROKEN, Fault) as error:
                _logger.debug("The session of the server %s was not ended: %s", self.server, error)
