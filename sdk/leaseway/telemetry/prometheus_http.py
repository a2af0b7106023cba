"""A listener for Prometheus: `GET /metrics` and nothing else (DESIGN §11).

It runs on the loop that writes the numbers, so that no lock is needed, and turns them into text in
a thread, so that a large page delays no call. Every connection carries one request, within bounds:
`prometheus_client`'s own server is a thread for each connection, without bounds and without keys;
aiohttp's gives a connection that says nothing no time limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from leaseway.telemetry.http_listener import Admit, HttpListener
from leaseway.wire.bounds import KIB
from leaseway.wire.errors import Fault, Reason

Page = Callable[[], Callable[[str], tuple[bytes, str]]]
"""Reads the numbers; what it returns takes an `Accept` header and makes a body and its type."""

_PATH: Final = "/metrics"
_LONGEST_HEAD: Final = 16 * KIB
_TIMEOUT: Final = 10.0
"""Seconds that one request has, from its connection to the last byte of its answer."""
_MOST_AT_ONCE: Final = 16
_PLAIN: Final = "text/plain; charset=utf-8"

_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
}


class MetricsListener(HttpListener):
    """Where Prometheus asks a process for its metrics."""

    noun = "metrics"
    option = "--metrics"
    path = _PATH


class _Answer(Exception):
    """What to answer instead of the page: a status and a sentence, with one more header."""

    def __init__(self, status: int, sentence: str, header: str = "") -> None:
        super().__init__(sentence)
        self.status = status
        self.header = header


async def serve_metrics(listener: MetricsListener, page: Page) -> asyncio.Server:
    """Serve a page until the returned server is closed.

    Args:
        listener: Where; it is the server's from now on.
        page: Called on this loop; what it returns is called in a thread.
    """
    site = _Site(listener, page)
    return await asyncio.start_server(
        site.serve, sock=listener.socket, limit=_LONGEST_HEAD, ssl=listener.tls
    )


class _Site:
    def __init__(self, listener: MetricsListener, page: Page) -> None:
        self._listener = listener
        self._page = page
        # The oldest first; those whose page is being made are not among them.
        self._waiting: dict[asyncio.StreamWriter, None] = {}
        self._making = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request and close its connection.

        Beyond the bound, whoever has waited longest for its peer makes way: connections that say
        nothing must not keep Prometheus out.
        """
        if len(self._waiting) + self._making >= _MOST_AT_ONCE:
            slowest = next(iter(self._waiting), writer)
            self._waiting.pop(slowest, None)
            slowest.transport.abort()
            if slowest is writer:
                return
        self._waiting[writer] = None
        try:
            async with asyncio.timeout(_TIMEOUT):
                writer.write(await self._answer(reader, writer))
                await writer.drain()
        except (TimeoutError, OSError):
            # A peer that is too slow, or gone, gets nothing more: closing alone would wait for
            # it to read the rest.
            writer.transport.abort()
        finally:
            self._waiting.pop(writer, None)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        try:
            head = await _head(reader)
            await self._check(head)
            accept = _header(head, b"accept").decode("latin-1")
            body, content_type = await self._make(writer, accept if accept.isprintable() else "")
        except _Answer as answer:
            return _response(answer.status, f"{answer}\n".encode(), _PLAIN, answer.header)
        return _response(200, body, content_type)

    async def _make(self, writer: asyncio.StreamWriter, accept: str) -> tuple[bytes, str]:
        self._waiting.pop(writer, None)
        self._making += 1
        try:
            return await asyncio.to_thread(self._page(), accept)
        finally:
            self._making -= 1
            self._waiting[writer] = None

    async def _check(self, head: list[bytes]) -> None:
        method, path, version = (*head[0].split(b" "), b"", b"")[:3]
        if not version.startswith(b"HTTP/1."):
            raise _Answer(400, "This is no HTTP/1.1 request.")
        if not self._listener.knows_host(_header(head, b"host").decode("latin-1")):
            raise _Answer(403, "Ask for this page as localhost or 127.0.0.1.")
        if self._listener.admit is not None:
            await self._check_sender(self._listener.admit, head)
        if path.partition(b"?")[0] != _PATH.encode():
            raise _Answer(404, f"There is only {_PATH} here.")
        if method != b"GET":
            raise _Answer(405, f"{_PATH} takes GET only.", "Allow: GET\r\n")

    async def _check_sender(self, admit: Admit, head: list[bytes]) -> None:
        sent = _header(head, b"authorization").decode("latin-1")
        try:
            await admit(sent or None)
        except Fault as fault:
            if fault.reason is Reason.UNAUTHENTICATED:
                raise _Answer(401, fault.message, "WWW-Authenticate: Bearer\r\n") from None
            raise _Answer(403, fault.message) from None


def _header(head: list[bytes], wanted: bytes) -> bytes:
    """Return the first header of a name, or an empty one."""
    for line in head[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == wanted:
            return value.strip()
    return b""


async def _head(reader: asyncio.StreamReader) -> list[bytes]:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise _Answer(400, f"The request's head is longer than {_LONGEST_HEAD} bytes.") from None
    except asyncio.IncompleteReadError:
        raise _Answer(400, "The request ended early.") from None
    return head.split(b"\r\n")


def _response(status: int, body: bytes, content_type: str, header: str = "") -> bytes:
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\n"
        f"Content-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\n"
        f"Cache-Control: no-store\r\n{header}"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body
