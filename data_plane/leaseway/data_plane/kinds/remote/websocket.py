"""MCP over a websocket, subprotocol `mcp`: a text frame for each JSON-RPC message.

MCP does not define this transport: it has no session id, no resumption, and no authorization except
the configured headers. The connection is the session. `mcp` 2 has no client for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any, Final

import aiohttp
from aiohttp import WSCloseCode, WSMsgType
from multidict import CIMultiDict

from leaseway.data_plane.kinds.remote.http.endpoint import check_headers, find_route, parse_url
from leaseway.data_plane.kinds.remote.http.errors import (
    describe_error,
    not_followed,
    redirect_target,
    status_fault,
    unreachable,
)
from leaseway.data_plane.mcp.protocol.transport import PullTransport
from leaseway.data_plane.outgoing import MAX_SENDS, Credential, Outgoing, handshake_url, is_refused
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason

SUBPROTOCOL: Final = "mcp"
_HEARTBEAT: Final = 60.0
"""Seconds of silence before a ping; its response may take half as long. More than the health check
allows an idle server, since a server that computes may not respond for a while."""

_CLOSE_TIMEOUT: Final = aiohttp.ClientWSTimeout(ws_close=2.0)
_MAX_REASON: Final = 200


class WebSocketTransport(PullTransport):
    """A websocket at a ws or wss URL.

    Raises:
        Fault: SERVER_NOT_READY: the URL or a header is invalid.
    """

    transport_type = "websocket"

    def __init__(
        self,
        server: str,
        url: str,
        http: aiohttp.ClientSession,
        headers: Mapping[str, str],
        outgoing: Outgoing,
    ) -> None:
        self._server = server
        self._url = parse_url(server, url, ("ws", "wss"))
        self._outgoing = outgoing
        self._route = find_route(server, self._outgoing, self._url)
        self._http = http
        self._headers = check_headers(server, headers)
        self._session: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None

    async def connect(self) -> None:
        """Open the websocket.

        Raises:
            Fault: SERVER_LOST or SERVER_ERROR with the error of the server or the network.
        """
        self._session = self._create_session()
        authorization = self._outgoing.authorization
        for left in reversed(range(MAX_SENDS)):
            credential = await authorization.credential() if authorization is not None else None
            try:
                await self._open(self._session, credential)
            except aiohttp.WSServerHandshakeError as error:
                headers = error.headers or CIMultiDict()
                if authorization is None or not is_refused(error.status, headers):
                    raise self._refusal(error) from None
                if credential is not None:
                    credential.learn(headers)
                is_renewed = await authorization.refused(credential, error.status, headers)
                if not is_renewed or not left:
                    raise self._refusal(error) from None
            else:
                return

    async def _open(self, session: aiohttp.ClientSession, credential: Credential | None) -> None:
        headers, cookies = CIMultiDict(self._headers), self._outgoing.cookies
        if credential is not None:
            headers.update(credential.headers("GET", handshake_url(self._url)))
        if cookies is not None:
            cookies.add_to(headers, self._url)
        try:
            self._socket = await session.ws_connect(
                handshake_url(self._url),  # a proxy knows no scheme ws
                protocols=(SUBPROTOCOL,),
                headers=headers,
                proxy=self._route.proxy,
                proxy_headers=self._route.proxy_headers,
                max_msg_size=bounds.MAX_LINE,
                heartbeat=_HEARTBEAT,
                timeout=_CLOSE_TIMEOUT,
            )
        except aiohttp.WSServerHandshakeError:
            raise
        except (aiohttp.ClientError, OSError) as error:
            raise unreachable(self._server, self._url, error) from None

    def _refusal(self, error: aiohttp.WSServerHandshakeError) -> Fault:
        if error.status < HTTPStatus.BAD_REQUEST:
            return self._no_websocket(error)
        return status_fault(self._server, error.status, error.headers or {}, self._url)

    async def disconnect(self) -> None:
        """Send a close frame and close."""
        try:
            if self._socket is not None:
                await self._socket.close()
        finally:  # also after a timeout of the close frame
            if self._session is not None:
                await self._session.close()

    async def send(self, message: bytes) -> None:
        """Send one message; wait while the server does not read."""
        assert self._socket is not None
        await self._socket.send_frame(message.rstrip(b"\n"), WSMsgType.TEXT)

    async def receive(self) -> bytes:
        """Return the next message."""
        assert self._socket is not None
        frame = await self._socket.receive()
        if frame.type is WSMsgType.TEXT:
            return str(frame.data).encode()
        if frame.type is WSMsgType.BINARY:
            return bytes(frame.data)
        raise self._closed_fault(frame.type, frame.data, frame.extra)

    def _create_session(self) -> aiohttp.ClientSession:
        # aiohttp follows redirects of a handshake to any host, with all headers. A trace hook can
        # prevent that; its own session keeps the hook from other requests.
        tracing = aiohttp.TraceConfig()
        tracing.on_request_redirect.append(self._refuse_redirect)
        tracing.on_request_end.append(self._keep_cookies)
        return aiohttp.ClientSession(
            connector=self._http.connector,
            connector_owner=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=self._http.headers,
            trace_configs=[tracing],
        )

    async def _keep_cookies(
        self,
        session: aiohttp.ClientSession,
        context: SimpleNamespace,
        end: aiohttp.TraceRequestEndParams,
    ) -> None:
        if self._outgoing.cookies is not None:
            self._outgoing.cookies.store(end.response)

    async def _refuse_redirect(
        self,
        session: aiohttp.ClientSession,
        context: SimpleNamespace,
        redirect: aiohttp.TraceRequestRedirectParams,
    ) -> None:
        response = redirect.response
        try:
            target = redirect_target(response, self._server) or redirect.url
        finally:
            response.release()
        raise not_followed(self._server, target, response.status)

    def _no_websocket(self, error: aiohttp.WSServerHandshakeError) -> Fault:
        text = (
            f"The server {self._server} does not accept a websocket ({error.message}): check its "
            "url and transport."
        )
        return Fault(Reason.SERVER_LOST, text, metadata={"server": self._server})

    def _closed_fault(self, kind: WSMsgType, data: Any, reason: str | None) -> Fault:
        metadata = {"server": self._server}
        head = f"The websocket of the server {self._server}"
        if kind is WSMsgType.ERROR:
            return self._broken(head, data, metadata)
        code = data if kind is WSMsgType.CLOSE else None
        if code is None:
            text = f"{head} broke: its connection ended without a close frame."
            return Fault(Reason.SERVER_LOST, text, metadata=metadata)
        cause = f": {reason[:_MAX_REASON].rstrip('.')}" if reason else ""
        metadata["close_code"] = str(code)
        text = f"{head} was closed by the server with code {code}{_meaning(code)}{cause}."
        return Fault(Reason.SERVER_LOST, text, metadata=metadata)

    def _broken(self, head: str, error: Any, metadata: dict[str, str]) -> Fault:
        if getattr(error, "code", None) == WSCloseCode.MESSAGE_TOO_BIG:
            metadata["limit"] = str(bounds.MAX_LINE)
            text = (
                f"{head} was closed: the server sent a message of more than {bounds.MAX_LINE} "
                f"bytes ({bounds.MAX_LINE // bounds.MIB} MiB, the limit). Ask its tools for less "
                "at a time."
            )
        elif isinstance(error, aiohttp.ServerTimeoutError):
            text = f"{head} was closed: it has not answered a ping for {_HEARTBEAT / 2:g} s."
        else:
            text = f"{head} broke: {f'{error}'.rstrip('.') or describe_error(error)}."
        return Fault(Reason.SERVER_LOST, text, metadata=metadata)


def _meaning(code: int) -> str:
    try:
        return f" ({WSCloseCode(code).name.lower().replace('_', ' ')})"
    except ValueError:
        return ""
