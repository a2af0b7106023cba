"""Sends a tool's request: bounded, with its retries and redirects, over the worker's one pool."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Container, Mapping
from typing import Final
from urllib.parse import quote

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload
from multidict import CIMultiDict
from yarl import URL

from leaseway.data_plane.http_tools.requests import HttpRequest
from leaseway.data_plane.http_tools.results import Response
from leaseway.spec.http_tools import IDEMPOTENT
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason, Started

MAX_BODY: Final = bounds.MAX_RESULT
"""Bytes of an answer's body, decompressed."""

_MAX_REDIRECTS: Final = 5
_REDIRECTS: Final = frozenset((301, 302, 303, 307, 308))
_OVERLOADED: Final = frozenset((429, 502, 503, 504))
_CONNECT: Final = 10.0
_PAUSE: Final = 0.2
_LONGEST_PAUSE: Final = 30.0
_NO_TIMEOUT: Final = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT)
_WHAT_BROKE: Final[Mapping[type[BaseException], str]] = {
    aiohttp.ClientConnectorCertificateError: "its certificate is not trusted",
    aiohttp.ClientConnectorDNSError: "its host name is not known",
    aiohttp.ConnectionTimeoutError: f"it did not take the connection within {_CONNECT:g} s",
    TimeoutError: "it took too long",
    aiohttp.ClientPayloadError: "the answer ended in the middle",
    aiohttp.ClientResponseError: "what it answers is no HTTP",
    aiohttp.ServerDisconnectedError: "it closed the connection without an answer",
    ConnectionError: "it closed the connection",
}


class Sending:
    """What is known of a request under way.

    Attributes:
        written: Whether any of it was handed to a socket.
    """

    __slots__ = ("written",)

    def __init__(self) -> None:
        self.written = False


class HttpToolClient:
    """Sends the requests of one server's tools.

    Args:
        server: The server's id, for messages.
        http: The worker's pooled client.
        headers: The configured headers, resolved.
        query: Credentials that are a part of the address. They are added last, so that no error,
            log line or span can hold them.
        credentials: Which of the headers carry credentials; anonymous requests go without.
        follow_redirects: Whether redirects of requests that change nothing are followed.
    """

    def __init__(
        self,
        server: str,
        http: aiohttp.ClientSession,
        headers: Mapping[str, str],
        query: Mapping[str, str],
        *,
        credentials: Container[str] = (),
        follow_redirects: bool = False,
    ) -> None:
        self._server = server
        self._http = http
        self._headers = headers
        self._anonymous = {
            name: value for name, value in headers.items() if name not in credentials
        }
        self._query = "&".join(
            f"{quote(name, safe='')}={quote(value, safe='', errors='replace')}"
            for name, value in query.items()
        )
        self._query_names = tuple(query)
        self._follows = follow_redirects

    async def send(
        self, request: HttpRequest, trace: Mapping[str, str], retries: int, sending: Sending,
        *, anonymous: bool = False,
    ) -> Response:  # fmt: skip
        """Send a request and return the answer.

        Args:
            request: The request.
            trace: Headers that carry the trace.
            retries: How often to send it again, where its method allows that.
            sending: Told when the request is on its way.
            anonymous: Whether it goes without credentials.

        Raises:
            Fault: SERVER_LOST: no connection, or it broke. RESULT_TOO_LARGE.
        """
        left = retries if request.method in IDEMPOTENT else 0
        while True:
            attempt = retries - left
            try:
                response = await self._once(request, trace, sending, anonymous)
            except (aiohttp.ClientError, OSError) as error:
                if not left:
                    raise self._broken(request, error, sending) from error
                pause = _backoff(attempt)
            else:
                wanted = _wanted_pause(response, attempt)
                if not left or response.status not in _OVERLOADED or wanted is None:
                    return response
                pause = wanted
            left -= 1
            await asyncio.sleep(pause)

    async def _once(
        self, request: HttpRequest, trace: Mapping[str, str], sending: Sending, anonymous: bool
    ) -> Response:
        url = URL(request.url, encoded=True)
        start = url
        headers = CIMultiDict(self._anonymous if anonymous else self._headers)
        headers.setdefault("Accept", "application/json, */*;q=0.5")
        headers.update(request.headers)
        headers.update(trace)
        at_home = True
        for _ in range(_MAX_REDIRECTS + 1):
            if not at_home:  # whatever is secret stays with the configured host
                headers = CIMultiDict({"Accept": headers["Accept"], **trace})
            sent = self._with_query(url) if at_home and not anonymous else url
            body = _Body(request.body, sending) if request.body is not None else None
            sending.written = sending.written or body is None
            async with self._http.request(
                request.method, sent, data=body, headers=headers, allow_redirects=False,
                timeout=_NO_TIMEOUT,
            ) as response:  # fmt: skip
                location = response.headers.get("location")
                if not self._may_follow(request, response.status) or location is None:
                    return await self._read(response)
            try:
                url = url.join(URL(location)).without_query_params(*self._query_names)
            except ValueError:
                break
            if url.scheme not in ("http", "https"):
                break
            at_home = _same_origin(start, url)
        raise Fault(
            Reason.SERVER_ERROR,
            f"The server {self._server} answers with redirects that do not end.",
            "yes",
            {"server": self._server},
        )

    def _with_query(self, url: URL) -> URL:
        """Return an address with the credentials that belong into it."""
        if not self._query:
            return url
        text = str(url)
        return URL(f"{text}{'&' if '?' in text else '?'}{self._query}", encoded=True)

    def _may_follow(self, request: HttpRequest, status: int) -> bool:
        return self._follows and status in _REDIRECTS and request.method in ("GET", "HEAD")

    async def _read(self, response: aiohttp.ClientResponse) -> Response:
        parts: list[bytes] = []
        size = 0
        async for part in response.content.iter_any():
            parts.append(part)
            size += len(part)
            if size > MAX_BODY:
                response.close()
                raise Fault(
                    Reason.RESULT_TOO_LARGE,
                    f"The server {self._server} answered with more than {MAX_BODY} bytes; ask the "
                    "tool for less at a time.",
                    "yes",
                    {"server": self._server, "limit": str(MAX_BODY)},
                )
        return Response(response.status, response.headers, b"".join(parts))

    def _broken(self, request: HttpRequest, error: Exception, sending: Sending) -> Fault:
        """Return the fault for a connection that could not be made, or broke."""
        refused = isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
        started: Started = "unknown" if sending.written and not refused else "no"
        did = "could not be reached" if refused else "did not answer"
        system = getattr(getattr(error, "os_error", error), "strerror", None)
        known = (text for kind, text in _WHAT_BROKE.items() if isinstance(error, kind))
        why = next(known, None) or system or "the connection failed"
        origin = URL(request.url, encoded=True).origin()
        text = f"The server {self._server} {did} at {origin}: {why}."
        return Fault(Reason.SERVER_LOST, text, started, {"server": self._server})


class _Body(Payload):
    """A request's body, which notes that it was handed to the socket."""

    def __init__(self, value: bytes, sending: Sending) -> None:
        super().__init__(value)
        self._size = len(value)
        self._sending = sending

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Return it as text (aiohttp asks for it in its own messages)."""
        return str(self._value, encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        self._sending.written = True
        await writer.write(self._value)


def _same_origin(first: URL, second: URL) -> bool:
    one = (first.scheme, first.host, first.port)
    return one == (second.scheme, second.host, second.port)


def _backoff(attempt: int) -> float:
    return random.uniform(0, min(_LONGEST_PAUSE, _PAUSE * 2**attempt))  # noqa: S311 - jitter


def _wanted_pause(response: Response, attempt: int) -> float | None:
    """Return how long to wait before a request is sent again; None if the server wants longer."""
    asked = response.headers.get("retry-after", "")
    if not asked:
        return _backoff(attempt)
    if not (asked.isascii() and asked.isdecimal()) or int(asked) > _LONGEST_PAUSE:
        return None
    return float(asked)
