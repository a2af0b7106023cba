"""No change of a list is lost between the first list and the stream that brings the changes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from tests.conftest import BOUND
from tests.data_plane.mcp.conftest import Bench

from leaseway.data_plane.mcp import session
from leaseway.data_plane.mcp.instance import Instance

ERAS = pytest.mark.parametrize("modern", [True, False], ids=["modern", "legacy"])
INFO = {"name": "growing", "version": "1"}
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
CHANGED = "notifications/tools/list_changed"


class GrowingServer:
    """A server that gets a second tool right after its first list, in one era.

    Args:
        modern: Whether it speaks 2026-07-28 and not 2025-11-25.
        is_late: Whether the stream of changes opens only once it has the second tool.
        notifies: Whether it declares that it tells of changes.

    Attributes:
        received: The methods of its requests; `GET` is the stream of a legacy client.
        stop: Ends its stream.
    """

    def __init__(self, *, modern: bool, is_late: bool = False, notifies: bool = True) -> None:
        self.modern = modern
        self.capabilities = {"tools": {"listChanged": True} if notifies else {}}
        self.received: list[str] = []
        self.stop = asyncio.Event()
        self._may_open = asyncio.Event()
        if not is_late:
            self._may_open.set()
        self._names = ["first"]
        self._stream: web.StreamResponse | None = None
        self._meta: dict[str, Any] = {}

    async def post(self, request: web.Request) -> web.StreamResponse:
        """Handle a message."""
        message = await request.json()
        method, key = message["method"], message.get("id")
        self.received.append(method)
        if method == "subscriptions/listen":
            self._meta = {"_meta": {SUBSCRIPTION: key}}
            acknowledged = {"notifications": message["params"]["notifications"], **self._meta}
            return await self._open(
                request, "notifications/subscriptions/acknowledged", acknowledged
            )
        if key is None:
            return web.Response(status=202)
        answer = {"jsonrpc": "2.0", "id": key} | self._answer(method)
        response = web.json_response(answer, headers={"Mcp-Session-Id": "1"})
        if method == "tools/list" and len(self._names) == 1:
            await response.prepare(request)
            await response.write_eof()
            await self._grow()
        return response

    async def get(self, request: web.Request) -> web.StreamResponse:
        """Open the stream of a legacy client, which begins with a log message."""
        self.received.append("GET")
        return await self._open(request, "notifications/message", {"level": "info", "data": "open"})

    def _answer(self, method: str) -> dict[str, Any]:
        hints = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
        if method == "server/discover" and self.modern:
            known = {"supportedVersions": ["2026-07-28"], "capabilities": self.capabilities}
            return {"result": {**known, **hints, "serverInfo": INFO}}
        if method == "initialize" and not self.modern:
            version = {"protocolVersion": "2025-11-25", "serverInfo": INFO}
            return {"result": {**version, "capabilities": self.capabilities}}
        if method == "tools/list":
            tools = [{"name": name, "inputSchema": {"type": "object"}} for name in self._names]
            return {"result": {"tools": tools, **(hints if self.modern else {})}}
        return {"error": {"code": -32601, "message": f"There is no method {method}."}}

    async def _grow(self) -> None:
        self._names.append("second")
        if self._stream is not None:
            await self._send(self._stream, CHANGED, self._meta)
        self._may_open.set()

    async def _open(
        self, request: web.Request, method: str, params: dict[str, Any]
    ) -> web.StreamResponse:
        await self._may_open.wait()
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await stream.prepare(request)
        await self._send(stream, method, params)
        self._stream = stream
        await self.stop.wait()
        return stream

    async def _send(self, stream: web.StreamResponse, method: str, params: Any) -> None:
        message = {"jsonrpc": "2.0", "method": method, "params": params}
        await stream.write(f"data: {json.dumps(message)}\n\n".encode())


@asynccontextmanager
async def started(bench: Bench, server: GrowingServer) -> AsyncIterator[Instance]:
    app = web.Application()
    app.router.add_post("/mcp", server.post)
    app.router.add_get("/mcp", server.get)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with asyncio.timeout(2 * BOUND):
            address = f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"
            yield await bench.start(bench.http_spec(address))
    finally:
        server.stop.set()
        await runner.cleanup()


@ERAS
async def test_lists_are_read_again_if_the_stream_opens_after_the_first_list(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, modern: bool
) -> None:
    monkeypatch.setattr(session, "_OPENING", 0.0)
    async with started(bench, GrowingServer(modern=modern, is_late=True)) as instance:
        assert list(instance.tools) == ["first"]
        assert await bench.changed.get() is instance
        assert list(await instance.relist()) == ["first", "second"]


async def test_the_stream_of_a_modern_server_opens_before_the_first_list(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_OPENING", BOUND)
    server = GrowingServer(modern=True)
    async with started(bench, server) as instance:
        assert await bench.changed.get() is instance  # the server itself has told
        assert server.received == ["server/discover", "subscriptions/listen", "tools/list"]


async def test_the_lists_of_a_server_that_tells_no_changes_are_read_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = asyncio.Event()
    monkeypatch.setattr(bench, "on_notification", lambda *_: opened.set())
    server = GrowingServer(modern=False, is_late=True, notifies=False)
    async with started(bench, server):
        await opened.wait()
        assert bench.changed.empty()


async def test_tools_are_listed_anew_if_a_call_lacks_headers_that_their_schemas_demand(
    bench: Bench,
) -> None:
    class StrictServer(GrowingServer):
        def _answer(self, method: str) -> dict[str, Any]:
            if method == "tools/call":
                return {"error": {"code": -32020, "message": "Mcp-Param-Region is missing."}}
            return super()._answer(method)

    server = StrictServer(modern=True, notifies=False)
    async with started(bench, server) as instance:
        fault = await bench.call_fault(instance, "first")
        assert (fault.started, "listed anew" in fault.message) == ("no", True)
        assert await bench.changed.get() is instance
