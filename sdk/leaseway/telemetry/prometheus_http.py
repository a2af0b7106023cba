"""An HTTP server for Prometheus: `GET /metrics` and nothing else (DESIGN §11).

The loop that writes the metrics also reads them, so no lock is needed; a thread renders the text,
so a large page delays no call. Each connection carries one request, with limits on time, size and
number. `prometheus_client`'s server starts a thread for each connection, without limits and
authentication; aiohttp's has no time limit for silent connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from leaseway.telemetry.http_listener import HttpListener, HttpRefusal, check_request
from leaseway.wire.bounds import KIB

Page = Callable[[], Callable[[str], tuple[bytes, str]]]
"""Reads the metrics and returns a function from an `Accept` header to a body and its type."""

_PATH: Final = "/metrics"
_MAX_HEAD: Final = 16 * KIB
_TIMEOUT: Final = 10.0
"""Seconds for one request, from the connection to the last byte of the response."""
_MAX_CONNECTIONS: Final = 16
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
    """The port for Prometheus."""

    noun = "metrics"
    option = "--metrics"
    path = _PATH


class _ErrorResponse(Exception):
    """An error response: a status, a sentence and optionally one more header."""

    def __init__(self, status: int, sentence: str, header: str = "") -> None:
        super().__init__(sentence)
        self.status = status
        self.header = header


async def serve_metrics(listener: MetricsListener, page: Page) -> asyncio.Server:
    """Serve the metrics until the returned server is closed.

    Args:
        listener: The port; the server closes it.
        page: Called on this loop; the function that it returns is called in a thread.
    """
    server = _MetricsServer(listener, page)
    return await asyncio.start_server(
        server.serve, sock=listener.socket, limit=_MAX_HEAD, ssl=listener.tls
    )


class _MetricsServer:
    def __init__(self, listener: MetricsListener, page: Page) -> None:
        self._listener = listener
        self._page = page
        # Connections that wait for their client, the oldest first.
        self._waiting: dict[asyncio.StreamWriter, None] = {}
        self._rendering = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Respond to one request and close its connection.

        Beyond the limit, the connection that has waited longest for its client is aborted, so that
        silent connections cannot lock Prometheus out.
        """
        if len(self._waiting) + self._rendering >= _MAX_CONNECTIONS:
            slowest = next(iter(self._waiting), writer)
            self._waiting.pop(slowest, None)
            slowest.transport.abort()
            if slowest is writer:
                return
        self._waiting[writer] = None
        try:
            async with asyncio.timeout(_TIMEOUT):
                writer.write(await self._respond(reader, writer))
                await writer.drain()
        except (TimeoutError, OSError):
            # Closing alone would wait until a slow or vanished client has read the rest.
            writer.transport.abort()
        finally:
            self._waiting.pop(writer, None)
            writer.close()

    async def _respond(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        try:
            head = await _head(reader)
            await self._check(head)
            accept = _header(head, b"accept").decode("latin-1")
            body, content_type = await self._render(writer, accept if accept.isprintable() else "")
        except _ErrorResponse as error:
            return _response(error.status, f"{error}\n".encode(), _PLAIN, error.header)
        return _response(200, body, content_type)

    async def _render(self, writer: asyncio.StreamWriter, accept: str) -> tuple[bytes, str]:
        self._waiting.pop(writer, None)
        self._rendering += 1
        try:
            return await asyncio.to_thread(self._page(), accept)
        finally:
            self._rendering -= 1
            self._waiting[writer] = None

    async def _check(self, head: list[bytes]) -> None:
        method, path, version = (*head[0].split(b" "), b"", b"")[:3]
        if not version.startswith(b"HTTP/1."):
            raise _ErrorResponse(400, "This is not an HTTP/1.1 request.")
        host = _header(head, b"host").decode("latin-1")
        sent = _header(head, b"authorization").decode("latin-1")
        try:
            await check_request(self._listener.admit, host, sent or None, self._listener.noun)
        except HttpRefusal as refusal:
            headers = "".join(f"{name}: {value}\r\n" for name, value in refusal.headers.items())
            raise _ErrorResponse(refusal.status, str(refusal), headers) from None
        if path.partition(b"?")[0] != _PATH.encode():
            raise _ErrorResponse(404, f"The only page is {_PATH}.")
        if method != b"GET":
            raise _ErrorResponse(405, f"{_PATH} accepts GET only.", "Allow: GET\r\n")


def _header(head: list[bytes], wanted: bytes) -> bytes:
    """Return the value of the first header of a name, or an empty one."""
    for line in head[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == wanted:
            return value.strip()
    return b""


async def _head(reader: asyncio.StreamReader) -> list[bytes]:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise _ErrorResponse(400, f"The request's head is longer than {_MAX_HEAD} bytes.") from None
    except asyncio.IncompleteReadError:
        raise _ErrorResponse(400, "The request ended early.") from None
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
