"""The MCP Streamable HTTP endpoint of one caller: `/mcp`, and `/mcp/SERVER` for one server.

It serves legacy clients, with `initialize` and sessions, and modern ones, whose requests carry
version and capabilities in `_meta`. `server` listens and finds the caller.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final

from aiohttp import web

from leaseway.front.calling.conversations import COOKIE, carried_in
from leaseway.front.calling.handles import HANDLE_HEADER, UNKNOWN_HANDLE, handle_from_meta
from leaseway.front.calling.media import MEDIA_HEADER, MediaMode, parse_media_mode
from leaseway.front.calling.places import Place
from leaseway.front.calling.requests import Request
from leaseway.front.draining import Drain
from leaseway.front.http.batches import BatchReply, spoken_version
from leaseway.front.http.connection import HeadHandler
from leaseway.front.http.cookies import SessionCookie, attributes_for, cookie_of
from leaseway.front.http.direct_calls import DirectCall, DirectCalls, ModernCalls, SessionCalls
from leaseway.front.http.heads import LegacyHead, ModernHead, ParamHeaders
from leaseway.front.http.open_requests import NotificationStreams, RequestsInFlight
from leaseway.front.http.request_checks import (
    EVENT_STREAM,
    HttpError,
    SessionNotFound,
    accepted_types,
    accepts_stream,
    begins_session,
    check_occur_once,
    continues_request,
    draining_error,
    is_modern,
    read_body,
    refused,
    speaks_modern,
    status_of,
    version_in,
)
from leaseway.front.http.resumption import ResumableStreams
from leaseway.front.http.scopes import Scopes
from leaseway.front.http.streams import RESOURCE_METADATA, HttpReply, Reply, json_response, reply_to
from leaseway.front.methods import Methods
from leaseway.front.protocol.envelope import (
    Message,
    Notification,
    Refusal,
    RequestMessage,
    Response,
    is_batch,
    names_version,
    read_batch,
    read_message,
)
from leaseway.front.protocol.handshake import initialize_result, negotiate_version
from leaseway.front.protocol.messages import (
    SESSION_ENDED,
    JsonRpcError,
    check_version,
    error_message,
    initialize_params,
    internal_error,
    modern_client,
    read_name_and_meta,
    refusal_message,
    result_message,
)
from leaseway.front.sessions.ended import EndedSessions
from leaseway.front.sessions.live_session import LiveSession
from leaseway.front.sessions.table import SessionTable, TooManySessions
from leaseway.wire.bounds import MAX_META
from leaseway.wire.clients.mcp_headers import SESSION_HEADER, VERSION_HEADER
from leaseway.wire.messages.mcp import (
    DEFAULT_SESSION_RULES,
    HANDSHAKE_VERSIONS,
    HEADER_MISMATCH,
    INVALID_REQUEST,
)
from leaseway.wire.timing.running_tasks import keep_running

HEAD_HANDLER: Final = web.RequestKey("head_handler", HeadHandler)
"""Handles further requests with the same head."""

_REQUEST_ID: Final = web.RequestKey("request_id", bytes)
"""The id of the request in the body, for errors that end it before it is handled."""
_LAST_EVENT: Final = "Last-Event-ID"

_log = logging.getLogger("leaseway.front")


class HttpFront:
    """Handles the HTTP requests of one caller between `start` and `close`.

    Args:
        methods: Handles its MCP requests.
        sessions: Its sessions.
        control_plane: The digest of the control plane's address (`ancestors`), or empty.
        drain: How the front ends; None means at once.
        rules: How the session of a call is found.
        resumable: Its streams that can be resumed, among those of all callers.
    """

    def __init__(
        self,
        methods: Methods,
        sessions: SessionTable,
        drain: Drain | None = None,
        *,
        control_plane: str = "",
        rules: Sequence[str] = DEFAULT_SESSION_RULES,
        resumable: ResumableStreams | None = None,
    ) -> None:
        self._methods = methods
        self._control_plane = control_plane
        self._sessions = sessions
        self._uses_cookies = COOKIE in rules
        self._told_cookies = EndedSessions()
        self._draining = (drain or Drain()).started
        self._scopes = Scopes(methods)
        self._param_headers = ParamHeaders(methods)
        self._streams = NotificationStreams()
        self._resumable = resumable or ResumableStreams()
        self._requests = RequestsInFlight()
        self._loop = asyncio.get_running_loop()
        sessions.lists_told.connect(methods.catalog.learn_lists)
        self._closed = False

    @property
    def sessions(self) -> int:
        return len(self._sessions)

    @property
    def is_idle(self) -> bool:
        """Whether it has neither requests nor sessions."""
        return not self._requests and not self.sessions

    @property
    def is_busy(self) -> bool:
        """Whether it has requests other than streams for notifications."""
        return len(self._requests) > len(self._streams)

    def forget_session(self) -> bool:
        """Forget a session that is not in use, if possible without streams; return whether."""
        return self._sessions.forget_oldest(avoid=self._streams)

    def start(self) -> None:
        """Start to push list changes and to expire idle sessions."""
        self._unsubscribe = self._methods.catalog.subscribe(self._on_list_changed)
        expiring = keep_running(self._sessions.expire_idle, "expire sessions")
        self._expiring = asyncio.create_task(expiring, name="front reaper")

    def _on_list_changed(self, kind: str, servers: frozenset[str], client: bytes) -> None:
        """Tell the sessions that see one of the servers about a changed list."""
        for live in self._sessions:
            if client and client != live.client.encoded:
                continue
            if not live.scope or live.scope in servers:
                live.push_changed_list(kind)

    def end_streams(self) -> None:
        self._streams.end()

    async def close(self) -> None:
        """Stop all tasks; sessions keep their leases, so another front can continue them."""
        self._closed = True
        self._unsubscribe()
        self.end_streams()
        self._expiring.cancel()
        await asyncio.gather(self._expiring, return_exceptions=True)
        self._requests.cut_off_calls()
        try:
            await self._sessions.close()
        finally:
            await self._requests.cut_off_tasks()
            self._resumable.close()
            await self._methods.catalog.close()
            await self._methods.client.close()

    async def respond(self, http: web.BaseRequest) -> web.StreamResponse:
        """Return the response to an HTTP request."""
        try:
            with self._requests.counted():
                return await self._respond(http)
        except HttpError as error:
            return error.response(http.get(_REQUEST_ID, b""), modern=speaks_modern(http))
        except JsonRpcError as error:
            request_id, modern = http.get(_REQUEST_ID, b""), speaks_modern(http)
            message = error_message(request_id, error, modern=modern)
            return json_response(message, status_of(error))
        except ConnectionError:
            raise
        except Exception:  # noqa: BLE001 - one request's fault ends that request
            _log.exception("A request of an MCP client failed.")
            request_id, modern = http.get(_REQUEST_ID, b""), speaks_modern(http)
            message = error_message(request_id, internal_error(), modern=modern)
            return json_response(message, 500)

    async def _respond(self, http: web.BaseRequest) -> web.StreamResponse:
        path = http.path.rstrip("/")
        if path == "/mcp":
            scope = ""
        elif path.startswith("/mcp/") and "/" not in path[5:]:
            scope = path[5:]
            await self._scopes.check(scope)
        else:
            raise HttpError(
                404,
                "MCP is at /mcp, and at /mcp/SERVER for one server, over Streamable HTTP; "
                "the older HTTP+SSE is not supported.",
            )
        if http.method == "POST":
            return await self._post(http, scope)
        check_occur_once(http)
        if http.method == "GET":
            return await self._get(http, scope)
        if http.method == "DELETE":
            await self._sessions.end(await self._session_of(http, scope))
            return web.Response(status=204)
        raise HttpError(405, "MCP accepts POST, GET and DELETE.", {"Allow": "POST, GET, DELETE"})

    async def _post(self, http: web.BaseRequest, scope: str) -> web.StreamResponse:
        streams = accepts_stream(http)
        body = await read_body(http)
        modern = speaks_modern(http)
        if is_batch(body) and not modern:
            return await self._post_batch(http, scope, body, streams)
        message = read_message(body)
        if isinstance(message, RequestMessage):
            http[_REQUEST_ID] = message.id
        check_occur_once(http)
        modern = modern and not begins_session(message, http.headers)
        if isinstance(message, Refusal) and (modern or not message.answers):
            return refused(message, modern=modern)
        if self._draining.is_set() and not continues_request(message):
            raise draining_error()
        if modern or is_modern(message, http.headers):
            return await self._post_modern(http, scope, message, streams)
        cookie = await self._cookie(http, scope)
        media = parse_media_mode(http.headers.get(MEDIA_HEADER))
        if isinstance(message, RequestMessage) and message.method == "initialize":
            return await self._initialize(scope, message, cookie, media)
        head = await self._legacy_head(http, scope, cookie, media)
        handle = partial(self._handle_legacy, head)
        http[HEAD_HANDLER] = self._head_handler(
            scope,
            (head.live, head.carried.handle, cookie.live),
            streams,
            http.get(RESOURCE_METADATA, ""),
            names_version,
            handle,
            cancel_on_disconnect=False,
            direct=SessionCalls.of(self._methods.plain_calls, head, self._requests, handle),
        )
        if not isinstance(message, RequestMessage):
            if head.live is not None:
                head.live.handle_other(message)
            elif isinstance(message, Response):
                raise JsonRpcError(
                    INVALID_REQUEST, f"A response needs a session: {SESSION_HEADER}."
                )
            return refused(message) if isinstance(message, Refusal) else web.Response(status=202)
        sender, reply = reply_to(http, streams)
        handling = asyncio.create_task(self._handle_legacy(head, reply, message))
        await self._requests.finish(http, handling)
        return await sender.response()

    async def _legacy_head(
        self, http: web.BaseRequest, scope: str, cookie: SessionCookie, media: MediaMode | None
    ) -> LegacyHead:
        """Return what the head of a legacy request says; raises as `_protocol_session`."""
        live = await self._protocol_session(http, scope, cookie)
        handle = await self._handle_in_header(http, scope)
        return LegacyHead(
            scope=scope,
            carried=carried_in(http.headers, self._sessions, live, handle, cookie),
            live=live,
            media=media,
            has_session=SESSION_HEADER in http.headers,
            version=version_in(http.headers),
            open_stream=None if live is None else partial(self._resumable.open, live),
        )

    async def _post_batch(
        self, http: web.BaseRequest, scope: str, body: bytes, streams: bool
    ) -> web.StreamResponse:
        """Handle several messages of a client of the one version that has batches."""
        check_occur_once(http)
        cookie = await self._cookie(http, scope)
        media = parse_media_mode(http.headers.get(MEDIA_HEADER))
        head = await self._legacy_head(http, scope, cookie, media)
        messages = read_batch(body, spoken_version(head.version, head.live))
        if isinstance(messages, Refusal):
            return refused(messages)
        if self._draining.is_set() and not all(map(continues_request, messages)):
            raise draining_error()
        sender, reply = reply_to(http, streams)
        batch = BatchReply(reply)
        tasks = []
        for message in messages:
            if isinstance(message, RequestMessage):
                handling = self._handle_legacy(head, batch.part(), message)
                tasks.append(asyncio.create_task(handling))
                continue
            if isinstance(message, Refusal):
                batch.add(refusal_message(message))
            if head.live is not None:
                head.live.handle_other(message)
        await self._requests.finish(http, *tasks)
        batch.finish()
        return await sender.response()

    def _head_handler(
        self,
        scope: str,
        lives: Sequence[LiveSession | None],
        streams: bool,
        metadata: str,
        differs: Callable[[RequestMessage], bool],
        handle: Callable[[HttpReply, RequestMessage], Coroutine[Any, Any, None]],
        *,
        cancel_on_disconnect: bool,
        direct: DirectCalls | None,
    ) -> HeadHandler:
        """Build the handler of further requests with the head of the current request.

        Args:
            scope: The server in the URL, or empty.
            lives: The sessions of the ids in the head.
            streams: Whether the client accepts an event stream.
            metadata: Where clients that send tokens of their own find the front's metadata.
            differs: Returns whether a request needs other checks than the current one.
            handle: Handles a request, given its reply.
            cancel_on_disconnect: Whether a lost connection cancels the request.
            direct: Begins calls without a task, or None.
        """
        sent = [live for live in lives if live is not None]
        is_draining, use = self._draining.is_set, self._sessions.use
        create_task = self._loop.create_task
        requests, forget = self._requests, self._requests.discard

        def start(body: bytes, reply: HttpReply) -> asyncio.Task[None] | DirectCall | None:
            message = read_message(body)
            if not isinstance(message, RequestMessage) or message.method == "initialize":
                return None
            if is_draining() or self._closed or (scope and not self._scopes.is_known(scope)):
                return None
            for live in sent:
                if not use(live):
                    return None
            if direct is not None and message.method == "tools/call":
                begun = direct.begin(message, reply)
                if begun is not None:
                    return begun
            if differs(message):
                return None
            task = create_task(handle(reply, message))
            requests.add(task)
            task.add_done_callback(forget)
            return task

        return HeadHandler(start, cancel_on_disconnect, streams, metadata)

    async def _initialize(
        self, scope: str, message: RequestMessage, cookie: SessionCookie, media: MediaMode | None
    ) -> web.StreamResponse:
        params = initialize_params(message)
        version = negotiate_version(params.get("protocolVersion"))
        info = params.get("clientInfo")
        try:
            live = await self._sessions.begin(scope, version, params.get("capabilities"), info)
        except TooManySessions as error:
            raise HttpError(503, str(error), {"Retry-After": "10"}) from None
        instructions = await self._methods.instructions.text(scope)
        live.declared = await self._methods.declaring.declared(scope, media)
        result = initialize_result(version, instructions, self._control_plane, live.declared)
        response = json_response(result_message(message.id, result))
        response.headers[SESSION_HEADER] = live.id
        if self._uses_cookies:
            response.headers["Set-Cookie"] = cookie.header(live.id)
        return response

    async def _handle_legacy(
        self,
        head: LegacyHead,
        reply: Reply,
        message: RequestMessage,
        begun: DirectCall | None = None,
    ) -> None:
        """Handle a request of a client with `initialize`, which may carry no session.

        Its call may have begun without a task.
        """
        live = head.live
        request_id = message.id
        listener = head.listener(reply) if begun is None else begun.events
        request = Request(message, listener, False, head.scope, head.carried, reply)
        if head.media is not None:
            request.media = head.media
        if live is None:
            request.has_session = head.has_session
            try:
                response, _ = await self._handle(request, reply)
            except asyncio.CancelledError:
                if not self._requests.answer_cancelled(reply, request_id):
                    raise
                return
            reply.finish(response)
            return
        request.has_session = head.has_session and not live.renews
        running = live.begin_request(request_id, listener)
        try:
            response = result_message(request_id, await self._result(request, begun))
        except asyncio.CancelledError:
            if self._requests.answer_cancelled(reply, request_id):
                return
            if live.has_ended:
                reply.finish(error_message(request_id, SESSION_ENDED))
            else:
                reply.abandon()
            if not live.was_cancelled():
                raise
            return
        except Exception as error:  # noqa: BLE001 - one request's fault ends that request
            response, _ = self._failure(error, request, reply)
        finally:
            live.end_request(request_id, running)
        reply.finish(response)

    async def _post_modern(
        self, http: web.BaseRequest, scope: str, message: Message, streams: bool
    ) -> web.StreamResponse:
        match message:
            case Response() | Refusal():
                raise JsonRpcError(INVALID_REQUEST, "The body must be a JSON-RPC request.")
            case Notification():
                if VERSION_HEADER not in http.headers:
                    raise JsonRpcError(HEADER_MISMATCH, f"{VERSION_HEADER} header is missing")
                check_version(http.headers[VERSION_HEADER])
                return web.Response(status=202)
        name_and_meta = read_name_and_meta(message)
        try:
            client = modern_client(message, http.headers)
            media = parse_media_mode(http.headers.get(MEDIA_HEADER))
            handle = http.headers.get(HANDLE_HEADER) or handle_from_meta(name_and_meta[1])
        except JsonRpcError as error:
            return json_response(error_message(message.id, error), status_of(error))
        if message.method == "subscriptions/listen" and not streams:
            raise HttpError(406, "subscriptions/listen needs Accept: text/event-stream.")
        live = await self._session_of_handle(handle, scope) if handle is not None else None
        cookie = await self._cookie(http, scope)
        head = ModernHead(
            scope=scope,
            carried=carried_in(http.headers, self._sessions, None, live, cookie),
            headers=http.headers,  # the handler of its head must not keep the whole request
            client=client,
            name=name_and_meta[0],
            meta=name_and_meta[1],
            media=media,
        )
        answer = partial(self._handle_modern, head)
        if message.method == "tools/call" and len(head.meta) <= MAX_META:
            http[HEAD_HANDLER] = self._head_handler(
                scope,
                (live, cookie.live),
                streams,
                http.get(RESOURCE_METADATA, ""),
                lambda message: (
                    message.method != "tools/call" or not head.covers(*read_name_and_meta(message))
                ),
                answer,
                cancel_on_disconnect=True,
                direct=ModernCalls.of(self._methods, head, self._requests, answer),
            )
        sender, reply = reply_to(http, streams)
        await answer(reply, message)
        return await sender.response()

    async def _handle_modern(
        self,
        head: ModernHead,
        reply: HttpReply,
        message: RequestMessage,
        begun: DirectCall | None = None,
    ) -> None:
        """Handle a modern request whose `_meta` is valid; its call may have begun."""
        listener = head.listener(reply) if begun is None else begun.events
        request = Request(message, listener, True, head.scope, head.carried, reply)
        if head.media is not None:
            request.media = head.media
        try:
            if message.method == "tools/call" and begun is None:
                headers, scope = head.headers, head.scope
                error = await self._param_headers.check(headers, scope, head.name, message)
                if error is not None:
                    reply.finish(error_message(message.id, error), status_of(error))
                    return
            response, status = await self._handle(request, reply, begun)
        except asyncio.CancelledError:
            if self._requests.answer_cancelled(reply, message.id):
                return
            reply.abandon()
            raise
        reply.finish(response, status)

    async def _handle(
        self, request: Request, reply: Reply, begun: DirectCall | None = None
    ) -> tuple[bytes, int]:
        """Return the JSON-RPC response to a request, with its HTTP status."""
        try:
            result = await self._result(request, begun)
            return result_message(request.message.id, result), 200
        except Exception as error:  # noqa: BLE001 - one request's fault ends that request
            return self._failure(error, request, reply)

    def _result(self, request: Request, begun: DirectCall | None) -> Awaitable[bytes]:
        """Return the result of a request, whose call may have begun."""
        if begun is None:
            return self._methods.handle(request)
        place = Place(begun.live, is_carried=begun.live is request.carried.protocol)
        return self._methods.go_on(request, place, begun.known.tool, begun)

    def _failure(self, error: Exception, request: Request, reply: Reply) -> tuple[bytes, int]:
        """Return the response to a request that has failed, with its HTTP status."""
        request_id = request.message.id
        if isinstance(error, JsonRpcError):
            if error.needed_scope is not None:
                reply.step_up(error.needed_scope)
            return error_message(request_id, error), status_of(error) if request.modern else 200
        _log.error("A request of an MCP client failed: %s", request.message.method, exc_info=error)
        return error_message(request_id, internal_error()), 200

    async def _get(self, http: web.BaseRequest, scope: str) -> web.StreamResponse:
        """Open a stream for notifications outside of requests."""
        if EVENT_STREAM not in accepted_types(http):
            text = "This address is for MCP clients: GET needs Accept: text/event-stream."
            raise HttpError(405, text, {"Allow": "POST, DELETE"})
        if self._draining.is_set() and _LAST_EVENT not in http.headers:
            raise draining_error()
        live = await self._session_of(http, scope)
        if (last_event := http.headers.get(_LAST_EVENT)) is not None:
            return await self._resumable.resumed(live, last_event).write(http)
        await self._methods.declaring.settle(live)
        with self._streams.opened(live) as stream:
            live.push_missed()
            return await stream.write(http)

    async def _session_of(self, http: web.BaseRequest, scope: str) -> LiveSession:
        """Return the session of a request that needs one; raises `HttpError`."""
        live = await self._protocol_session(http, scope, await self._cookie(http, scope))
        if live is None:
            message = f"{SESSION_HEADER} is missing: {http.method} is about one session."
            raise HttpError(405, message, {"Allow": "POST"})
        return live

    async def _protocol_session(
        self, http: web.BaseRequest, scope: str, cookie: SessionCookie
    ) -> LiveSession | None:
        """Return the session of a legacy request, or None if it carries none.

        Raises:
            HttpError: It has ended, or the protocol version has no sessions.
            JsonRpcError: The protocol version is unknown.
        """
        version = version_in(http.headers)
        if version is not None and version not in HANDSHAKE_VERSIONS:
            check_version(version)
            raise HttpError(400, f"{VERSION_HEADER} {version} has no sessions.")
        if (session_id := http.headers.get(SESSION_HEADER)) is None:
            return cookie.live
        if (live := await self._opened(session_id, scope)) is None:
            raise SessionNotFound
        return live

    async def _handle_in_header(self, http: web.BaseRequest, scope: str) -> LiveSession | None:
        handle = http.headers.get(HANDLE_HEADER)
        return await self._session_of_handle(handle, scope) if handle else None

    async def _session_of_handle(self, handle: str, scope: str) -> LiveSession:
        if (live := await self._opened(handle, scope)) is None:
            raise HttpError(404, UNKNOWN_HANDLE)
        return live

    async def _cookie(self, http: web.BaseRequest, scope: str) -> SessionCookie:
        """Return the session of a request's cookie, if the front uses cookies."""
        session_id = cookie_of(http) if self._uses_cookies else ""
        live = await self._opened(session_id, scope) if session_id else None
        return SessionCookie(attributes_for(http), self._told_cookies, session_id, live)

    async def _opened(self, session_id: str, scope: str) -> LiveSession | None:
        try:
            return await self._sessions.open(session_id, scope)
        except TooManySessions as error:
            raise HttpError(503, str(error), {"Retry-After": "10"}) from None
