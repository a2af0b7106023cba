"""A REST server for tests with slow, failing and unusual endpoints; it records its requests."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg=="
)


@dataclass
class Seen:
    """A received request."""

    method: str
    raw_path: str
    path: str
    query: list[tuple[str, str]]
    headers: dict[str, str]
    body: bytes


@dataclass
class RestApi:
    """The server's state.

    Attributes:
        url: Where it listens.
        seen: What it was sent, the oldest first.
        failures: How many of the next requests of `/flaky` fail.
        gate: Set to let requests of `/slow` end.
    """

    url: str = ""
    seen: list[Seen] = field(default_factory=list)
    failures: int = 0
    retry_after: str = ""
    elsewhere: str = ""
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def last(self) -> Seen:
        return self.seen[-1]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.seen.append(
            Seen(
                method=request.method,
                raw_path=request.raw_path,
                path=request.path,
                query=list(request.query.items()),
                headers=dict(request.headers),
                body=body,
            )
        )
        name = request.path.split("/")[1]
        answer = getattr(self, f"on_{name}", None)
        if answer is None:
            return web.json_response({"error": "no such thing"}, status=404)
        response: web.StreamResponse = await answer(request)
        return response

    async def on_users(self, request: web.Request) -> web.Response:
        user = {"name": "Ann", "tags": ["a", "b"], "id": request.path.rpartition("/")[2]}
        return web.json_response({"data": user, "query": dict(request.query)})

    async def on_echo(self, request: web.Request) -> web.Response:
        body = await request.read()
        return web.Response(body=body, content_type=request.content_type)

    async def on_status(self, request: web.Request) -> web.Response:
        status = int(request.path.rpartition("/")[2])
        headers = {"Retry-After": "7"} if status in (429, 503) else {}
        return web.Response(status=status, text=f"status {status}", headers=headers)

    async def on_flaky(self, request: web.Request) -> web.Response:
        if self.failures:
            self.failures -= 1
            headers = {"Retry-After": self.retry_after} if self.retry_after else {}
            return web.Response(status=503, text="not now", headers=headers)
        return web.json_response({"ok": True})

    async def on_drop(self, request: web.Request) -> web.Response:
        if self.failures:
            self.failures -= 1
            assert request.transport is not None
            request.transport.close()
            await asyncio.Event().wait()
        return web.json_response({"ok": True})

    async def on_slow(self, request: web.Request) -> web.Response:
        self.waiting.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.gone.set()
            raise
        return web.json_response({"ok": True})

    async def on_redirect(self, request: web.Request) -> web.Response:
        raise web.HTTPFound(f"{self.elsewhere}/users/1")

    async def on_moved(self, request: web.Request) -> web.Response:
        """Redirect with the status at the end of the path to what the query names."""
        location = f"{self.elsewhere}{request.query['to']}"
        return web.Response(
            status=int(request.path.rpartition("/")[2]), headers={"Location": location}
        )

    async def on_around(self, request: web.Request) -> web.Response:
        raise web.HTTPFound("/around")

    async def on_tell(self, request: web.Request) -> web.Response:
        """Return the address: as an error, or as a body that a template cannot read."""
        status = 200 if "as" in request.query else 403
        return web.Response(status=status, text=f"{request.raw_path} {dict(request.query)}")

    async def on_image(self, request: web.Request) -> web.Response:
        return web.Response(body=PIXEL, content_type="image/png")

    async def on_bytes(self, request: web.Request) -> web.Response:
        return web.Response(body=b"\x00\x01\x02", content_type="application/zip")

    async def on_text(self, request: web.Request) -> web.Response:
        return web.Response(
            body="größe".encode("latin-1"), headers={"Content-Type": "text/plain; charset=latin-1"}
        )

    async def on_packed(self, request: web.Request) -> web.Response:
        """Name an encoding that the body does not have."""
        encoding = request.path.rpartition("/")[2]
        return web.Response(body=b"plain", headers={"Content-Encoding": encoding})

    async def on_empty(self, request: web.Request) -> web.Response:
        return web.Response(status=204)

    async def on_large(self, request: web.Request) -> web.Response:
        size = int(request.query["size"])
        return web.json_response({"rows": ["x" * 1000] * (size // 1000)})

    async def on_html(self, request: web.Request) -> web.Response:
        return web.Response(text="<p>not JSON</p>", content_type="text/html")


@contextlib.asynccontextmanager
async def serve(**options: Any) -> AsyncIterator[RestApi]:
    """Run a server on this loop; yield its state."""
    api = RestApi(**options)
    app = web.Application(client_max_size=32 * 1024 * 1024)
    app.router.add_route("*", "/{rest:.*}", api.handle)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        api.url = f"http://{host}:{port}"
        yield api
    finally:
        api.gate.set()
        await runner.cleanup()
