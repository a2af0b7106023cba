"""An MCP endpoint: its requests, their headers, and its session."""

from __future__ import annotations

import asyncio
import enum
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Final, Literal

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload
from multidict import CIMultiDict
from yarl import URL

from leaseway.data_plane.core.proxies import BadProxy
from leaseway.data_plane.kinds.remote.http.errors import (
    CONNECTION_ERRORS,
    is_token_unchecked,
    redirect_target,
    unreadable,
)
from leaseway.data_plane.mcp.protocol.transport import Receipt
from leaseway.data_plane.outgoing import MAX_SENDS, Credential, Outgoing, Route, is_refused
from leaseway.wire.clients.mcp_headers import SESSION_HEADER
from leaseway.wire.errors import Fault, Reason

_can_be_sent: Final = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]*").fullmatch
"""A value that a server's header had; bytes that are no UTF-8 are read as surrogates."""

_logger = logging.getLogger(__name__)
_ACCEPT: Final = "application/json, text/event-stream"
_TIMEOUT: Final = aiohttp.ClientTimeout(total=None, sock_connect=10.0)
_MAX_REDIRECTS: Final = 4
_END_TIMEOUT: Final = 2.0
"""Seconds for the DELETE that ends a session."""
_IN_VAIN: Final = 300.0
"""Seconds from a new session that did not help refused calls until another one is tried."""


class HttpEndpoint:
    """Sends requests to one URL, with the configured headers and the session's id.

    Attributes:
        session_id: The session of requests; empty for none.
        session_is_ours: Whether we opened the session and must end it.
        lacks_token: Whether the last request has no token yet, or got none.
        route: How requests leave the worker.

    Raises:
        Fault: SERVER_NOT_READY: the URL or a header is invalid.
    """

    def __init__(
        self,
        server: str,
        url: str,
        http: aiohttp.ClientSession,
        headers: Mapping[str, str],
        session_id: str,
        outgoing: Outgoing,
    ) -> None:
        self.url = parse_url(server, url, ("http", "https"))
        self.outgoing = outgoing
        self.route = find_route(server, outgoing, self.url)
        self.session_id = session_id
        self.session_is_ours = self.lacks_token = False
        self._server = server
        self._http = http
        self._headers = check_headers(server, headers)
        _check_text(server, "session_id", session_id)
        self._headers.popall("content-type", None)  # a body has its own; files of clients have any

    def open_session(self, session_id: str) -> None:
        """Send further requests in a session of the server.

        Raises:
            Fault: SERVER_ERROR: no header may contain its id.
        """
        if not _can_be_sent(session_id):
            raise unreadable(
                self._server, "an MCP session id that has characters that no header may contain"
            )
        self.session_id = session_id
        self.session_is_ours = True

    async def end_session(self, headers: Mapping[str, str]) -> None:
        """End the session at the server, if that is quick; otherwise the server forgets it."""
        try:
            async with asyncio.timeout(_END_TIMEOUT):
                (await self.request("DELETE", headers)).release()
        except (*CONNECTION_ERRORS, Fault) as error:
            _logger.debug("The session of the server %s was not ended: %s", self._server, error)

    async def request(
        self,
        method: Literal["POST", "GET", "DELETE"],
        headers: Mapping[str, str],
        body: RequestBody | None = None,
    ) -> aiohttp.ClientResponse:
        """Send a request and return its response of any status; follow redirects.

        A request that the server refuses for want of a token is sent again if a new one may help.

        Raises:
            Fault: A redirect that must not be followed, or there is no token.
            aiohttp.ClientError: The connection could not be opened, or broke.
            OSError: Likewise.
        """
        sent = CIMultiDict(self._headers)
        sent["accept"] = _ACCEPT if method == "POST" else "text/event-stream"
        if self.session_id:
            sent[SESSION_HEADER] = self.session_id
        sent.update(headers)
        authorization = self.outgoing.authorization
        if authorization is None:
            return await self._follow(method, sent, body, None)
        for left in reversed(range(MAX_SENDS)):
            self.lacks_token = True
            credential = await authorization.credential()
            self.lacks_token = False
            response = await self._follow(method, sent, body, credential)
            status = response.status
            if not is_refused(status, response.headers):
                if credential is None or not await is_token_unchecked(response):
                    return response
                status = HTTPStatus.FORBIDDEN  # it may be the token, or not
            if body is not None:
                body.mark_written(False)  # the server did nothing with it
            try:
                self.lacks_token = True
                is_renewed = await authorization.refused(credential, status, response.headers)
                self.lacks_token = False
            except BaseException:
                response.release()
                raise
            if not is_renewed or not left:
                break
            response.release()
            body = body.again() if body is not None else None
        if body is not None:
            body.mark_written(True)
        return response

    async def _follow(
        self,
        method: str,
        sent: CIMultiDict[str],
        body: RequestBody | None,
        credential: Credential | None,
    ) -> aiohttp.ClientResponse:
        """Send a request and follow its redirects."""
        url, cookies, configured = self.url, self.outgoing.cookies, sent.get("cookie")
        for _ in range(_MAX_REDIRECTS):
            if cookies is not None:
                cookies.add_to(sent, url)
            if credential is not None:
                sent.update(credential.headers(method, url))
            route = self.route if url is self.url else self.outgoing.route(url)
            response = await self._http.request(
                method,
                url,
                data=body,
                headers=sent,
                allow_redirects=False,
                timeout=_TIMEOUT,
                proxy=route.proxy,
                proxy_headers=route.proxy_headers,
            )
            if credential is not None:
                credential.learn(response.headers)
            if cookies is not None:
                cookies.store(response)
                sent.pop("cookie", None)
                if configured is not None:
                    sent["cookie"] = configured
            try:
                target = redirect_target(response, self._server)
            except Exception:
                response.release()
                raise
            if target is None:
                return response
            response.release()
            url = target
        raise unreadable(self._server, "redirects that do not end")


class SessionForgotten(Exception):
    """The server answered a request in a session with 404: it does not know the session.

    Or something else in between, or behind the tool, was not found: a cheap request tells.

    Attributes:
        fault: That error of the request, if its session turns out to be known.
    """

    def __init__(self, fault: Fault) -> None:
        super().__init__()
        self.fault = fault


class OldSession(enum.Enum):
    """What is known of a session that a new one is to replace."""

    GONE = enum.auto()
    """The server does not know it: without a new one, the connection ends."""
    REFUSED = enum.auto()
    """The server refuses everything in it, perhaps for a moment."""
    SERVES = enum.auto()
    """The server refuses only some calls in it: without a new one, it stays."""


class SessionRenewal:
    """Opens one new session for all requests whose session a legacy server no longer serves.

    Rejected requests are sent again in the new session; requests in the old one continue.

    Args:
        server: The server's id.
        endpoint: Has the session.
        open_session: Opens a session in place of the old one; returns whether it did. It never
            raises.

    Attributes:
        number: The number of the session in use; sessions without an id have one, too.
    """

    def __init__(
        self,
        server: str,
        endpoint: HttpEndpoint,
        open_session: Callable[[OldSession], Awaitable[bool]],
    ) -> None:
        self.number = 0
        self._server = server
        self._endpoint = endpoint
        self._open_session = open_session
        self._opening: asyncio.Task[None] | None = None
        self._next_trial = float("-inf")

    async def current_session(self) -> int:
        """Return the session's number, after waiting for one that is being opened."""
        while self._opening is not None:
            await asyncio.wait([self._opening])
        return self.number

    async def renew(self, number: int, old: OldSession) -> bool:
        """Replace a session; return whether another one is in use.

        If no other could be opened, and the old one is not gone, the old one stays.
        """
        if self._opening is None and self.number == number:
            _logger.info(
                "The server %s no longer serves its session; a new one is opened.", self._server
            )
            self._opening = asyncio.get_running_loop().create_task(self._open(old))
        return await self.current_session() != number

    async def try_another(self, number: int, *, may_open: bool) -> bool:
        """Return whether a call has another session than one in which it gets 404.

        Cheap requests are served in that one. Some servers accept those in any session, so that
        only a new session shows whether they have forgotten it, or the 404 is about what the call
        wants. A new session that does not help is the last one for a while.

        Args:
            number: Of the session of the call.
            may_open: Whether a session may be opened.
        """
        if await self.current_session() != number:
            return True
        if not may_open or time.monotonic() < self._next_trial:
            return False
        self._next_trial = time.monotonic() + _IN_VAIN
        return await self.renew(number, OldSession.SERVES)

    def note_helped(self) -> None:
        """Note that a call got no 404 in the other session: it may be forgotten soon, too."""
        self._next_trial = float("-inf")

    async def _open(self, old: OldSession) -> None:
        old_id, self._endpoint.session_id = self._endpoint.session_id, ""
        try:
            if await self._open_session(old):
                self.number += 1
            else:
                self._endpoint.session_id = old_id
        finally:
            self._opening = None

    async def aclose(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])


class RequestBody(Payload):
    """A request's body; marks its receipt when it is handed to the socket."""

    def __init__(self, value: bytes, entry: Receipt | None = None) -> None:
        super().__init__(value, content_type="application/json")
        self._size = len(value)
        self._entry = entry

    def again(self) -> RequestBody:
        """Return the body for the same request once more."""
        return RequestBody(self._value, self._entry)

    def mark_written(self, written: bool) -> None:
        """Note whether the server may have started the request."""
        if self._entry is not None:
            self._entry.written = written

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Return it as text, for aiohttp's own messages."""
        return str(self._value, encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        self.mark_written(True)
        await writer.write(self._value)


def find_route(server: str, outgoing: Outgoing, url: URL) -> Route:
    """Return how requests to a server leave the worker.

    Raises:
        Fault: SERVER_NOT_READY: its proxy can't be used.
    """
    try:
        return outgoing.route(url)
    except BadProxy as error:
        raise _start_fault(
            server, f"The server {server} can't be reached: the proxy {error}."
        ) from None


def check_headers(server: str, headers: Mapping[str, str]) -> CIMultiDict[str]:
    """Return configured headers for requests.

    Raises:
        Fault: SERVER_NOT_READY: one is invalid.
    """
    for name, value in headers.items():
        _check_text(server, f"headers.{name}", value)
    return CIMultiDict(headers)


def _check_text(server: str, setting: str, text: str) -> None:
    if not text.isprintable():
        raise _start_fault(
            server,
            f"{setting} of the server {server} contains a character "
            "that no header may contain (a line break, say): write it as one line.",
        )


def parse_url(server: str, url: str, schemes: tuple[str, str]) -> URL:
    """Return a URL of one of two schemes.

    Raises:
        Fault: SERVER_NOT_READY: it is invalid.
    """
    try:
        parsed = URL(url)
        if parsed.scheme in schemes and parsed.host:
            return parsed
    except ValueError:
        pass
    raise _start_fault(
        server,
        f"The url of the server {server} is not a {schemes[0]} or {schemes[1]} URL: write it like "
        f"{schemes[0]}://host:port/mcp.",
    )


def _start_fault(server: str, text: str) -> Fault:
    metadata = {"server": server, "problem": "START_FAILED"}
    return Fault(Reason.SERVER_NOT_READY, text, metadata=metadata)
