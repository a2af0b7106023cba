"""Sends a tool's HTTP request over the worker's pool, with retries and redirects."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, nullcontext
from typing import Final, NamedTuple
from urllib.parse import quote

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload
from multidict import CIMultiDict
from yarl import URL

from leaseway.data_plane.core.origin import same_origin
from leaseway.data_plane.core.proxies import BadProxy
from leaseway.data_plane.core.resolved_values import SentCredential
from leaseway.data_plane.kinds.http_api.redirects import Sending, next_sending
from leaseway.data_plane.kinds.http_api.requests import HttpRequest
from leaseway.data_plane.kinds.http_api.results import HttpResponse, is_packed, unpacked
from leaseway.data_plane.mcp.host import http_client
from leaseway.data_plane.outgoing import MAX_SENDS, Credential, Outgoing, Route, is_refused
from leaseway.spec.kinds.http_tools import IDEMPOTENT, OF_AUTH, SAFE_METHODS
from leaseway.wire import bounds
from leaseway.wire.channels.encryption import leaves_encryption, untrusted
from leaseway.wire.channels.fetching import MAX_REDIRECTS, Guard, in_thread, leads_inside
from leaseway.wire.errors import Fault, Reason, Started
from leaseway.wire.timing.retry_after import retry_delay

MAX_BODY: Final = bounds.MAX_RESULT
"""Maximum bytes of a response's body, decompressed."""

_OVERLOADED: Final = frozenset((429, 502, 503, 504))
_MAX_PACKED: Final = 2
"""How often a text is decompressed that is still compressed, as by a server and its gateway."""
_OF_HEADERS: Final = ("HEAD", "OPTIONS")
_CONNECT_TIMEOUT: Final = 10.0
_INITIAL_BACKOFF: Final = 0.2
_MAX_BACKOFF: Final = 30.0
_NOT_REACHED: Final = (
    aiohttp.ClientConnectorError,
    aiohttp.ConnectionTimeoutError,
    aiohttp.ClientHttpProxyError,
)
_NOT_IMPLIED: Final = ("Content-Type",)
"""aiohttp would call a body that is not there bytes, which strict APIs refuse (415)."""
_UNREADABLE_ENCODING: Final = re.compile(r"Can not decode content-encoding: ([\w-]{1,32})")
_NO_TIMEOUT: Final = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT)
_DESCRIPTIONS: Final[Mapping[type[BaseException], str]] = {
    aiohttp.ClientProxyConnectionError: "its proxy could not be reached",
    aiohttp.ClientHttpProxyError: "its proxy refused the connection; check proxy in its entry",
    aiohttp.ClientConnectorDNSError: "its host name is not known",
    aiohttp.ConnectionTimeoutError: f"it did not accept a connection within {_CONNECT_TIMEOUT:g} s",
    TimeoutError: "it took too long",
    aiohttp.ClientPayloadError: "the response was incomplete",
    aiohttp.ClientResponseError: "its response is not HTTP, or has too many headers",
    aiohttp.ServerDisconnectedError: "it closed the connection without a response",
    ConnectionError: "it closed the connection",
}


class SendState:
    """The state of a request.

    Attributes:
        written: Whether any of it was handed to a socket.
        is_done: Whether it was answered with a redirect to what it has made.
        url: Where it was sent last, without credentials; None if nowhere yet.
    """

    __slots__ = ("is_done", "url", "written")

    def __init__(self) -> None:
        self.written = self.is_done = False
        self.url: URL | None = None


class Carried(NamedTuple):
    """What the requests of a tool have of their server's configuration."""

    headers: CIMultiDict[str]
    query: str = ""
    """Credentials. They are added last, so that no error, log line or span contains them."""
    has_token: bool = False
    has_cookies: bool = False
    """Whether they send and keep the cookies that the API sets."""


class HttpToolClient:
    """Sends the requests of one server's tools.

    Args:
        headers: The configured headers, resolved.
        credentials: The credentials, by name.
        follow_redirects: Whether redirects are followed, as `next_sending` says.
        outgoing: The proxies, the token, and the cookies unless callers share the instance.
    """

    def __init__(
        self,
        server: str,
        http: aiohttp.ClientSession,
        headers: Mapping[str, str],
        credentials: Mapping[str, SentCredential],
        *,
        follow_redirects: bool = False,
        outgoing: Outgoing | None = None,
    ) -> None:
        self._outgoing = outgoing or Outgoing(keeps_cookies=False)
        self._server = server
        self._near = nullcontext(http)  # to the API's own host
        self._headers = headers
        self._credentials = credentials
        self._carried: dict[tuple[str, ...] | None, Carried] = {}
        self._query_names = tuple(
            credential.name for credential in credentials.values() if credential.position == "query"
        )
        self._follows_redirects = follow_redirects

    def carried(self, names: tuple[str, ...] | None) -> Carried:
        """Return what requests have with some credentials, by name; None means all.

        It is made once: tools have few different choices.
        """
        if names not in self._carried:
            self._carried[names] = self._with_credentials(names)
        return self._carried[names]

    def _with_credentials(self, names: tuple[str, ...] | None) -> Carried:
        chosen = [
            credential
            for name, credential in self._credentials.items()
            if names is None or name in names
        ]
        cookies = [f"{name}={value}" for name, value in _at("cookie", chosen)]
        headers = {**self._headers, **dict(_at("header", chosen))}
        return Carried(
            _with_accept(headers | ({"Cookie": "; ".join(cookies)} if cookies else {})),
            "&".join(
                f"{quote(name, safe='')}={quote(value, safe='', errors='replace')}"
                for name, value in _at("query", chosen)
            ),
            has_token=names is None or OF_AUTH in names,
            has_cookies=names != (),
        )

    async def send(
        self, request: HttpRequest, trace: Mapping[str, str], retries: int, sending: SendState,
        carried: Carried,
    ) -> HttpResponse:  # fmt: skip
        """Send a request, with trace headers and retries if it is idempotent; return the response.

        Args:
            request: The request.
            trace: The trace headers.
            retries: How often it may be sent again.
            sending: Notes whether any of it was sent.
            carried: What it has of the server's configuration.

        Raises:
            Fault: SERVER_LOST: the connection failed. RESULT_TOO_LARGE.
        """
        remaining = retries if request.method in IDEMPOTENT else 0
        while True:
            attempt = retries - remaining
            try:
                response = await self._send_authorized(request, trace, sending, carried)
            except (aiohttp.ClientError, OSError) as error:
                if not remaining:
                    raise self._broken(request, error, sending) from error
                pause = _backoff(attempt)
            else:
                if not remaining or response.status not in _OVERLOADED:
                    return response
                delay = _pause(response, attempt)
                if delay is None:
                    return response
                pause = delay
            remaining -= 1
            await asyncio.sleep(pause)

    async def _send_authorized(
        self, request: HttpRequest, trace: Mapping[str, str], sending: SendState, carried: Carried
    ) -> HttpResponse:
        """Send a request with the token in use; again if a new one may help.

        Raises:
            Fault: There is no token.
        """
        authorization = self._outgoing.authorization if carried.has_token else None
        if authorization is None:
            return await self._send_once(request, trace, sending, carried, None)
        for _ in range(MAX_SENDS):
            credential = await authorization.credential()
            response = await self._send_once(request, trace, sending, carried, credential)
            if sending.is_done or not is_refused(response.status, response.headers):
                return response
            sending.written = False  # the server did nothing with it
            if not await authorization.refused(credential, response.status, response.headers):
                break
        sending.written = True
        return response

    async def _send_once(
        self, request: HttpRequest, trace: Mapping[str, str], sending: SendState,
        carried: Carried, credential: Credential | None,
    ) -> HttpResponse:  # fmt: skip
        start = URL(request.url, encoded=True)
        now = Sending(request.method, start, request.body)
        headers = carried.headers.copy()
        configured_cookies = headers.get("Cookie")
        headers.update(request.headers)
        if configured_cookies and "Cookie" in request.headers:
            headers["Cookie"] = f"{configured_cookies}; {request.headers['Cookie']}"
        headers.update(trace)
        is_own = True
        cookies = self._outgoing.cookies if carried.has_cookies else None
        for _ in range(MAX_REDIRECTS + 1):
            method, url, content = now
            if not is_own:  # secrets are only sent to the configured host
                headers = CIMultiDict({"Accept": headers["Accept"], **trace})
            sending.url = url
            sent = _with_query(url, carried.query) if is_own else url
            body = _TrackedBody(content, sending) if content is not None else None
            sending.written = sending.written or body is None
            route = self._route(url)
            told = headers.copy() if cookies is not None or credential is not None else headers
            if cookies is not None and is_own:
                cookies.add_to(told, url)
            if credential is not None and is_own:
                told.update(credential.headers(method, sent))
            is_near = url.host == start.host
            connections = self._near if is_near else self._guarded(start, url, route)
            async with connections as http, http.request(
                method, sent, data=body, headers=told, allow_redirects=False,
                skip_auto_headers=None if "Content-Type" in told else _NOT_IMPLIED,
                timeout=_NO_TIMEOUT, proxy=route.proxy, proxy_headers=route.proxy_headers,
            ) as response:  # fmt: skip
                if credential is not None and is_own:
                    credential.learn(response.headers)
                if cookies is not None and is_own:
                    cookies.store(response)
                following = self._redirect(now, response)
                if following is None:
                    return await self._read(response, method in _OF_HEADERS)
            if following.body is None:
                headers.pop("Content-Type", None)
            sending.is_done |= following.method != method and method not in SAFE_METHODS
            now = following
            is_own = same_origin(start, now.url)
        raise Fault(
            Reason.SERVER_ERROR,
            f"The server {self._server} answers with redirects that do not end.",
            "yes",
            {"server": self._server},
        )

    def _route(self, url: URL) -> Route:
        try:
            return self._outgoing.route(url)
        except BadProxy as error:
            text = f"The server {self._server} can't be reached: the proxy {error}."
            raise Fault(Reason.SERVER_LOST, text, "no", {"server": self._server}) from None

    @asynccontextmanager
    async def _guarded(
        self, start: URL, url: URL, route: Route
    ) -> AsyncIterator[aiohttp.ClientSession]:
        """Yield what connects to a URL at another host than the API's: to no inner address.

        Raises:
            Fault: SERVER_ERROR: it leads further inside than the API.
        """
        guard = Guard([start])
        try:
            await guard.admit(url, proxied=route.proxy is not None)
            if route.proxy is not None:
                await guard.check_name(url)
            async with http_client(guard.connector()) as http:
                yield http
        except (aiohttp.ClientError, OSError) as error:
            if leads_inside(error) is None:
                raise
            raise self._not_followed(url, "inside this network") from None

    def _redirect(self, sent: Sending, response: aiohttp.ClientResponse) -> Sending | None:
        """Return what a response redirects to, or None if it is not followed.

        Raises:
            Fault: SERVER_ERROR: it leads out of encryption.
        """
        if not self._follows_redirects:
            return None
        location = response.headers.get("location")
        following = next_sending(sent, response.status, location, self._query_names)
        if following is not None and leaves_encryption(sent.url.scheme, following.url.scheme):
            raise self._not_followed(following.url, "without encryption")
        return following

    def _not_followed(self, target: URL, why: str) -> Fault:
        return Fault(
            Reason.SERVER_ERROR,
            f"The server {self._server} redirects to {target.origin()}, which is {why}; this is"
            " not followed. If it is right, set base_url of its entry to that address.",
            "yes",
            {"server": self._server},
        )

    async def _read(self, response: aiohttp.ClientResponse, is_of_headers: bool) -> HttpResponse:
        parts: list[bytes] = []
        size = 0
        async for part in response.content.iter_any():
            parts.append(part)
            size += len(part)
            if size > MAX_BODY:
                response.close()
                raise self._too_large()
        read = HttpResponse(response.status, response.headers, b"".join(parts), is_of_headers)
        for _ in range(_MAX_PACKED):
            if not is_packed(read):
                break
            read = await in_thread(unpacked, read, MAX_BODY)
            if len(read.body) > MAX_BODY:
                raise self._too_large()
        return read

    def _too_large(self) -> Fault:
        return Fault(
            Reason.RESULT_TOO_LARGE,
            f"The server {self._server} answered with more than {MAX_BODY} bytes; ask the tool for"
            " less at a time.",
            "yes",
            {"server": self._server, "limit": str(MAX_BODY)},
        )

    def _broken(self, request: HttpRequest, error: Exception, sending: SendState) -> Fault:
        """Return the fault for a failed connection."""
        refused = isinstance(error, _NOT_REACHED)
        is_unsent = refused and not sending.is_done
        started: Started = "unknown" if sending.written and not is_unsent else "no"
        failure = "could not be reached" if refused else "did not answer"
        system = getattr(getattr(error, "os_error", error), "strerror", None)
        descriptions = (text for kind, text in _DESCRIPTIONS.items() if isinstance(error, kind))
        cause = untrusted(error) or next(descriptions, None) or system or "the connection failed"
        encoding = _UNREADABLE_ENCODING.search(str(error))
        if encoding is not None:
            cause = f"its response cannot be decompressed ({encoding[1]})"
        origin = (sending.url or URL(request.url, encoded=True)).origin()
        text = f"The server {self._server} {failure} at {origin}: {cause}."
        return Fault(Reason.SERVER_LOST, text, started, {"server": self._server})


def _with_accept(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """Return configured headers with one that says what is read, if they do not."""
    told = CIMultiDict(headers)
    told.setdefault("Accept", "application/json, */*;q=0.5")
    return told


NOTHING: Final = Carried(_with_accept({}))
"""Of a request to another server than the configured one."""


def _at(position: str, chosen: Iterable[SentCredential]) -> Iterable[tuple[str, str]]:
    """Yield the names and values of the credentials at a position."""
    return (
        (credential.name, credential.value)
        for credential in chosen
        if credential.position == position
    )


def _with_query(url: URL, query: str) -> URL:
    """Return a URL with credentials in its query."""
    if not query:
        return url
    text = str(url)
    return URL(f"{text}{'&' if '?' in text else '?'}{query}", encoded=True)


class _TrackedBody(Payload):
    """A request's body; updates the state when it is handed to the socket."""

    def __init__(self, value: bytes, sending: SendState) -> None:
        super().__init__(value)
        self._size = len(value)
        self._sending = sending

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Return it as text, for aiohttp's own messages."""
        return str(self._value, encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        self._sending.written = True
        await writer.write(self._value)


def _backoff(attempt: int) -> float:
    return random.uniform(0, min(_MAX_BACKOFF, _INITIAL_BACKOFF * 2**attempt))  # noqa: S311 - jitter


def _pause(response: HttpResponse, attempt: int) -> float | None:
    """Return the seconds before a retry, or None if the server requests more than the maximum."""
    delay = retry_delay(response.headers)
    if delay is None:
        return _backoff(attempt)
    return delay if delay <= _MAX_BACKOFF else None
