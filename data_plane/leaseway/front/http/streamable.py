"""MCP over Streamable HTTP for one caller, both eras: `/mcp`, and `/mcp/SERVER` for one server.

`door` listens, and finds whose request it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Coroutine, Iterator, Mapping
from functools import partial
from typing import Any, Final

import msgspec
from aiohttp import web
from mcp.shared.inbound import (
    ERROR_CODE_HTTP_STATUS,
    InboundLadderRejection,
    classify_inbound_request,
    find_duplicated_routing_header,
    unsupported_protocol_version_rejection,
    validate_mcp_param_headers,
)
from mcp_types.jsonrpc import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    PARSE_ERROR,
)
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_MODERN_VERSION

from leaseway.front.calling.handles import HANDLE_HEADER, LEADS_NOWHERE, carried_in_meta
from leaseway.front.calling.media import MEDIA_HEADER, MediaWish, media_wish
from leaseway.front.calling.relay import Listener
from leaseway.front.calling.sessions import LiveSession, SessionTable, TooManySessions, answered
from leaseway.front.catalog import Catalog
from leaseway.front.definitions import wants_headers
from leaseway.front.greeting import MODERN_MARK, initialize_result, negotiated
from leaseway.front.http.connection import Known
from leaseway.front.http.heads import Enveloped, InSession, envelope_of
from leaseway.front.http.streams import EventStream, HttpSender, Reply, json_response
from leaseway.front.messages import (
    Message,
    RpcError,
    cancelled_request,
    decode,
    error_message,
    read_message,
    result_message,
)
from leaseway.front.methods import (
    Methods,
    Request,
    changed_notification,
)
from leaseway.sdk import AsyncClient, LeasewayError
from leaseway.wire.bounds import MAX_ARGUMENTS, MIB

MAX_BODY: Final = MAX_ARGUMENTS + MIB
"""One message of a client."""
_NO_SESSION: Final = "This session has ended or never existed here. Send initialize again."
_SESSION: Final = "Mcp-Session-Id"
_VERSION: Final = "MCP-Protocol-Version"
_BODY_BOUND: Final = 30.0
"""Seconds in which a request's body has to arrive."""
_MOST_STREAMS: Final = 16
"""Streams by which one session hears of changes at once."""
_KNOWN_FOR: Final = 10.0
"""Seconds for which a server that exists is taken to exist."""

KNOWN: Final = web.RequestKey("known", Known)
"""What another request with the same head leads to."""

_log = logging.getLogger("leaseway.front")


class _Refused(Exception):
    """An HTTP answer that is no JSON-RPC response to a request."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers or {}


class HttpFront:
    """Answers the requests of one caller; `start` it, and `close` it in the end.

    Args:
        client: Whose tools are seen.
        catalog: Its lists.
        methods: Answers requests.
        sessions: The sessions of this caller.
    """

    def __init__(
        self,
        client: AsyncClient,
        catalog: Catalog,
        methods: Methods,
        sessions: SessionTable,
    ) -> None:
        self._client = client
        self._catalog = catalog
        self._methods = methods
        self._sessions = sessions
        self._known: dict[str, float] = {}
        self._header_tools: dict[int, bool] = {}
        self._pushes: dict[LiveSession, list[EventStream]] = {}
        self._asking: set[asyncio.Task[Any]] = set()
        self._closed = False

    @property
    def sessions(self) -> int:
        return len(self._sessions)

    @property
    def is_idle(self) -> bool:
        """Whether nothing would be lost with it."""
        return not self._asking and not self.sessions

    def start(self) -> None:
        """Tell clients of changes, and forget sessions that nobody uses, from now on."""
        self._unfollow = self._catalog.follow(self._list_changed)
        self._reaping = asyncio.create_task(self._sessions.reap(), name="front reaper")

    def end_streams(self) -> None:
        for streams in self._pushes.values():
            for stream in streams:
                stream.end()

    async def close(self) -> None:
        """Stop all; leases of sessions are left to whoever goes on with them."""
        self._closed = True
        self._unfollow()
        self.end_streams()
        self._reaping.cancel()
        await asyncio.gather(self._reaping, return_exceptions=True)
        try:
            await self._sessions.leave()
            await self._catalog.close()
            await self._client.close()
        finally:
            for task in tuple(self._asking):
                task.cancel()

    async def answer(self, http: web.BaseRequest) -> web.StreamResponse:
        try:
            with self._counted():
                return await self._answer(http)
        except _Refused as refused:
            return refusal(refused.status, str(refused), refused.headers)
        except RpcError as error:  # no request could be read
            return json_response(error_message(b"", error), _status(error))
        except ConnectionError:
            raise
        except Exception:
            _log.exception("A request of an MCP client failed.")
            return json_response(error_message(b"", _broken()), 500)

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        """Count this task as a request while the block runs."""
        task = asyncio.current_task()
        assert task is not None
        self._asking.add(task)
        try:
            yield
        finally:
            self._asking.discard(task)

    async def _answer(self, http: web.BaseRequest) -> web.StreamResponse:
        path = http.path.rstrip("/")
        if path == "/mcp":
            scope = ""
        elif path.startswith("/mcp/") and "/" not in path[5:]:
            scope = path[5:]
            await self._check_scope(scope)
        else:
            raise _Refused(
                404,
                "MCP is at /mcp, and at /mcp/SERVER for one server, over Streamable HTTP; "
                "the older HTTP+SSE is not served.",
            )
        if http.method == "POST":
            return await self._post(http, scope)
        if http.method == "GET":
            return await self._listen(http, scope)
        if http.method == "DELETE":
            await self._sessions.end(self._session_of(http, scope))
            return web.Response(status=204)
        raise _Refused(405, "MCP takes POST, GET and DELETE.", {"Allow": "POST, GET, DELETE"})

    async def _post(self, http: web.BaseRequest, scope: str) -> web.StreamResponse:
        streams = _accepts(http)
        body = await _body(http)
        message = read_message(body)
        version = http.headers.get(_VERSION)
        if version is None:
            modern = MODERN_MARK in body
        else:
            modern = version not in HANDSHAKE_PROTOCOL_VERSIONS
        if modern:
            return await self._modern(http, scope, message, streams)
        if message.method == "initialize" and message.request_id:
            return self._initialize(scope, message)
        live = self._session_of(http, scope)
        media = media_wish(http.headers.get(MEDIA_HEADER))
        http[KNOWN] = InSession(self, scope, live.id, version is not None, streams, media)
        if not message.request_id or message.method is None:
            _take_note(live, message)
            return web.Response(status=202)
        sender = HttpSender(http)
        # A client that loses its connection has not cancelled its request.
        reply = Reply(sender, streams=streams)
        task = asyncio.create_task(self.in_session(reply, live, message, media))
        await asyncio.shield(task)
        return await sender.response()

    def begin(
        self, scope: str, session_id: str | None, message: Message
    ) -> tuple[LiveSession | None, bool]:
        """Say in which session a request goes on whose head is known, and whether it does."""
        if self._closed or (scope and self._known.get(scope, 0.0) <= time.monotonic()):
            return None, False
        if not message.request_id or message.method in (None, "initialize"):
            return None, False
        if session_id is None:
            return None, True
        try:
            live = self._sessions.find(session_id, scope)
        except TooManySessions:
            return None, False
        return live, live is not None

    def begin_handle(self, scope: str) -> LiveSession:
        """Begin the session of a client that carries its id."""
        try:
            return self._sessions.begin(scope, LATEST_MODERN_VERSION, {})
        except TooManySessions as refusal:
            raise RpcError(INTERNAL_ERROR, str(refusal)) from None

    def find_handle(self, handle: str, scope: str) -> LiveSession | None:
        """Return the session whose id a client carries."""
        try:
            return self._sessions.find(handle, scope)
        except TooManySessions as refusal:
            raise RpcError(INTERNAL_ERROR, str(refusal)) from None

    async def end_handle(self, live: LiveSession) -> None:
        """End a session and give back what it leases."""
        await self._sessions.end(live)

    def run(self, request: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin to answer a request."""
        task = asyncio.create_task(request)
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)
        return task

    def _initialize(self, scope: str, message: Message) -> web.StreamResponse:
        try:
            params = decode(message.params)
        except msgspec.DecodeError:
            params = None
        if not isinstance(params, dict):
            params = {}
        version = negotiated(params.get("protocolVersion"))
        capabilities = params.get("capabilities")
        try:
            live = self._sessions.begin(
                scope, version, capabilities if isinstance(capabilities, dict) else {}
            )
        except TooManySessions as refusal:
            raise _Refused(503, str(refusal), {"Retry-After": "10"}) from None
        live.push = partial(self._push, live)
        answer = result_message(message.request_id, initialize_result(version))
        response = json_response(answer)
        response.headers[_SESSION] = live.id
        return response

    async def in_session(
        self, reply: Reply, live: LiveSession, message: Message, media: MediaWish | None
    ) -> None:
        """Answer a request in a session."""
        listener = Listener(reply.send)
        listener.log_level = live.log_level
        listener.lease_ttl = live.lease_ttl
        if live.answers and reply.streams:
            listener.answers = live.answers
            listener.ask = lambda question: live.ask(question, reply.ask)
            listener.withdraw = lambda question: live.withdraw(question, reply.ask)
        request = Request(message, listener, False, live.scope, live, media=media)
        with live.running(message.request_id):
            try:
                answer, _ = await self._settle(request)
            except asyncio.CancelledError:
                reply.abandon()
                if not live.was_cancelled():
                    raise
                return
            reply.finish(answer)

    async def _modern(
        self, http: web.BaseRequest, scope: str, message: Message, streams: bool
    ) -> web.StreamResponse:
        version = http.headers.get(_VERSION, "")
        if message.method is None:
            raise RpcError(INVALID_REQUEST, "A body is one JSON-RPC request or notification.")
        if not message.request_id:
            rejected = unsupported_protocol_version_rejection(version)
            if rejected is not None:
                return _rejection(message, rejected)
            return web.Response(status=202)
        envelope = envelope_of(message)
        try:
            route = self._route(http, message)
            media_wish(http.headers.get(MEDIA_HEADER))
            handle = http.headers.get(HANDLE_HEADER) or carried_in_meta(bytes(envelope.meta))
        except RpcError as error:
            return json_response(error_message(message.request_id, error), _status(error))
        if isinstance(route, InboundLadderRejection):
            return _rejection(message, route)
        if message.method == "subscriptions/listen" and not streams:
            raise _Refused(406, "A stream of changes is a text/event-stream; accept that.")
        live = self._session(handle, scope, LEADS_NOWHERE) if handle is not None else None
        if message.method == "tools/call":
            http[KNOWN] = Enveloped(
                self, scope, http.headers, envelope, handle, answered(route), streams
            )
        sender = HttpSender(http)
        reply = Reply(sender, streams=streams)
        await self.enveloped(reply, message, scope, http.headers, answered(route), live)
        return await sender.response()

    async def enveloped(
        self,
        reply: Reply,
        message: Message,
        scope: str,
        headers: Mapping[str, str],
        answers: tuple[str, ...],
        live: LiveSession | None,
    ) -> None:
        """Answer a modern client's request, whose envelope is good."""
        listener = Listener(reply.send)
        listener.answers = answers
        listener.passes_input = True
        if live is not None:
            listener.lease_ttl = live.lease_ttl
        media = media_wish(headers.get(MEDIA_HEADER))
        request = Request(message, listener, True, scope, live, handles=self, media=media)
        try:
            if message.method == "tools/call":
                rejected = await self._header_rejection(headers, scope, message)
                if rejected is not None:
                    error = RpcError(rejected.code, rejected.message, rejected.data)
                    reply.finish(error_message(message.request_id, error), _status(error))
                    return
            answer, status = await self._settle(request)
        except asyncio.CancelledError:
            reply.abandon()
            raise
        reply.finish(answer, status)

    def _route(
        self, http: web.BaseRequest, message: Message
    ) -> dict[str, Any] | InboundLadderRejection:
        """Return a modern client's capabilities, or why its request is refused."""
        duplicated = find_duplicated_routing_header(http.headers.items())
        if duplicated is not None:
            return InboundLadderRejection(
                code=HEADER_MISMATCH, message=f"{duplicated} header appears more than once"
            )
        try:
            params = decode(message.params) if message.params else None
        except msgspec.DecodeError:
            raise RpcError(INVALID_PARAMS, "The params are no JSON object.") from None
        envelope = {"method": message.method, "params": params}
        route = classify_inbound_request(envelope, headers=http.headers)
        if isinstance(route, InboundLadderRejection):
            return route
        capabilities = route.client_capabilities
        return capabilities if isinstance(capabilities, dict) else {}

    async def _header_rejection(
        self, headers: Mapping[str, str], scope: str, message: Message
    ) -> InboundLadderRejection | None:
        """Return why the headers that repeat arguments are wrong, where a tool wants any."""
        name = envelope_of(message).name
        if name is None:
            return None
        try:
            tool = await self._methods.tool(name, scope)
        except LeasewayError:
            return None  # the call itself says so
        if tool is None or not self._wants_headers(tool):
            return None
        arguments = decode(message.params).get("arguments")
        if not isinstance(arguments or {}, dict):
            return None
        return validate_mcp_param_headers(tool.input_schema, arguments or {}, headers)

    def _wants_headers(self, tool: Any) -> bool:
        known = self._header_tools.get(id(tool))
        if known is None:
            if len(self._header_tools) > 10_000:
                self._header_tools.clear()
            known = self._header_tools[id(tool)] = wants_headers(tool)
        return known

    async def _settle(self, request: Request) -> tuple[bytes, int]:
        """Return the response to a request, with its HTTP status."""
        request_id = request.message.request_id
        try:
            return result_message(request_id, await self._methods.answer(request)), 200
        except RpcError as error:
            return error_message(request_id, error), _status(error) if request.modern else 200
        except Exception:
            _log.exception("A request of an MCP client failed: %s", request.message.method)
            return error_message(request_id, _broken()), 200

    async def _listen(self, http: web.BaseRequest, scope: str) -> web.StreamResponse:
        if "text/event-stream" not in http.headers.get("Accept", ""):
            raise _Refused(405, "A GET opens a text/event-stream.", {"Allow": "POST, DELETE"})
        live = self._session_of(http, scope)
        stream = EventStream(ends_when_full=True)
        streams = self._pushes.setdefault(live, [])
        if len(streams) >= _MOST_STREAMS:
            message = f"This session has {_MOST_STREAMS} streams open, as many as it may: end some."
            raise _Refused(429, message, {"Retry-After": "1"})
        streams.append(stream)
        try:
            return await stream.write(http)
        finally:
            streams.remove(stream)
            if not streams:
                self._pushes.pop(live, None)

    def _push(self, live: LiveSession, message: bytes) -> bool:
        """Send what belongs to no request on one of a session's streams."""
        return any(stream.put(message) for stream in self._pushes.get(live, ()))

    def _list_changed(self, kind: str, servers: frozenset[str]) -> None:
        for live in tuple(self._pushes):
            if not live.scope or live.scope in servers:
                self._push(live, changed_notification(kind))

    def _session_of(self, http: web.BaseRequest, scope: str) -> LiveSession:
        session_id = http.headers.get(_SESSION)
        if session_id is None:
            raise _Refused(400, f"{_SESSION} is missing: begin with initialize.")
        version = http.headers.get(_VERSION)
        if version is not None and version not in HANDSHAKE_PROTOCOL_VERSIONS:
            raise _Refused(400, f"{_VERSION} {version[:40]!r} is none that has sessions.")
        return self._session(session_id, scope, _NO_SESSION)

    def _session(self, session_id: str, scope: str, missing: str) -> LiveSession:
        try:
            live = self._sessions.find(session_id, scope)
        except TooManySessions as refusal:
            raise _Refused(503, str(refusal), {"Retry-After": "10"}) from None
        if live is None:
            raise _Refused(404, missing)
        live.push = partial(self._push, live)
        return live

    async def _check_scope(self, scope: str) -> None:
        """Refuse an address of a server that does not exist."""
        now = time.monotonic()
        if self._known.get(scope, 0.0) > now:
            return
        try:
            await self._client.list_tools([scope])
        except LeasewayError as error:
            raise _Refused(404, error.message) from None
        if len(self._known) > 10_000:
            self._known.clear()
        self._known[scope] = now + _KNOWN_FOR


def refusal(status: int, message: str, headers: Mapping[str, str]) -> web.Response:
    """Return an HTTP answer that is no JSON-RPC response to a request."""
    response = json_response(error_message(b"", RpcError(INVALID_REQUEST, message)), status)
    response.headers.update(headers)
    return response


def _take_note(live: LiveSession, message: Message) -> None:
    """Take a notification, or the answer to a question."""
    if message.method is None:
        if not live.answer(message):
            _log.debug("A client answered what nobody asks any more.")
    elif message.method == "notifications/cancelled":
        live.cancel(cancelled_request(message))


async def _body(http: web.BaseRequest) -> bytes:
    """Return a request's body, within bounds."""
    if http.content_type != "application/json":
        raise _Refused(415, "A message is sent as application/json.")
    if (http.content_length or 0) > MAX_BODY:
        raise _Refused(413, f"A message has at most {MAX_BODY} bytes.", {"Connection": "close"})
    try:
        async with asyncio.timeout(_BODY_BOUND):
            return await http.read()
    except web.HTTPRequestEntityTooLarge:
        raise _Refused(
            413, f"A message has at most {MAX_BODY} bytes.", {"Connection": "close"}
        ) from None
    except TimeoutError:
        raise _Refused(
            408, f"The message did not arrive within {_BODY_BOUND:g} s.", {"Connection": "close"}
        ) from None


def _accepts(http: web.BaseRequest) -> bool:
    """Return whether a client takes streams; one that takes no JSON is refused."""
    accept = http.headers.get("Accept", "*/*")
    if "application/json" not in accept and "*/*" not in accept and "application/*" not in accept:
        raise _Refused(406, "Accept application/json and text/event-stream.")
    return "text/event-stream" in accept


def _broken() -> RpcError:
    return RpcError(INTERNAL_ERROR, "The front failed; its log says why.")


def _status(error: RpcError) -> int:
    return ERROR_CODE_HTTP_STATUS.get(error.code, 400 if error.code == PARSE_ERROR else 200)


def _rejection(message: Message, rejected: InboundLadderRejection) -> web.Response:
    error = RpcError(rejected.code, rejected.message, rejected.data)
    return json_response(error_message(message.request_id, error), _status(error))
