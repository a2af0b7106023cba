"""The port for Prometheus: `GET /metrics` and nothing else (design.md#traces-metrics-and-logs).

The loop that writes the metrics also reads them, so no lock is needed; a thread renders the text,
one page at a time, so a large page delays no call.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Final

from leaseway.telemetry.http_listener import HttpListener, HttpRefusal, check_request

if TYPE_CHECKING:
    from aiohttp import web

Page = Callable[[], Callable[[str], tuple[bytes, str]]]
"""Reads the metrics and returns a function from an `Accept` header to a body and its type."""

_PATH: Final = "/metrics"
_IDLE: Final = 75.0
"""Seconds between two requests of a connection, more than Prometheus's usual interval."""
_HEADERS: Final = {"Cache-Control": "no-store", "Server": "leaseway"}


class MetricsListener(HttpListener):
    """The port for Prometheus."""

    noun = "metrics"
    option = "--metrics"
    path = _PATH


@contextlib.asynccontextmanager
async def serve_metrics(
    listener: MetricsListener, page: Page, **limits: float
) -> AsyncIterator[None]:
    """Serve the metrics while the block runs.

    Args:
        listener: The port; it is closed at the end.
        page: Called on this loop; the function that it returns is called in a thread.
        limits: Limits of `HttpListener.serve`.
    """
    from aiohttp import web

    app = web.Application()
    app.router.add_route("*", "/{any:.*}", _Site(listener, page).answer)
    async with listener.serve(app, **{"idle": _IDLE, **limits}):
        yield


class _Site:
    def __init__(self, listener: MetricsListener, page: Page) -> None:
        self._listener = listener
        self._page = page
        self._one_at_a_time = asyncio.Lock()

    async def answer(self, request: web.Request) -> web.Response:
        """Check a request and return the page."""
        try:
            await check_request(
                self._listener.admit,
                request.headers.get("Host", ""),
                request.headers.get("Authorization"),
                self._listener.noun,
            )
        except HttpRefusal as refusal:
            return _error(refusal.status, str(refusal), refusal.headers)
        if request.path != _PATH:
            return _error(404, f"The only page is {_PATH}.")
        if request.method != "GET":
            return _error(405, f"{_PATH} accepts GET only.", {"Allow": "GET"})
        accept = request.headers.get("Accept", "")
        async with self._one_at_a_time:
            render = self._page()
            body, kind = await asyncio.to_thread(render, accept if accept.isprintable() else "")
        return _response(200, body, kind, {})


def _error(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> web.Response:
    return _response(status, f"{sentence}\n".encode(), "text/plain; charset=utf-8", headers or {})


def _response(status: int, body: bytes, kind: str, headers: Mapping[str, str]) -> web.Response:
    from aiohttp import web

    # As a header, because aiohttp changes the parameters of `content_type`.
    headers = {**_HEADERS, **headers, "Content-Type": kind}
    return web.Response(status=status, body=body, headers=headers)
