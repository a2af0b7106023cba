"""Answers that a server sends on the GET stream, and not in the response to their request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.conftest import BOUND
from tests.data_plane.mcp.conftest import Bench

from leaseway.data_plane.kinds.remote.http import responses
from leaseway.wire.errors import Reason

GREETING = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "elsewhere", "version": "1"},
}
TOOLS = {"tools": [{"name": "say", "inputSchema": {"type": "object"}}]}
RESULT = {"content": [{"type": "text", "text": "said"}]}
CONFIRMED = ["202", "accepted", "empty"]


class Elsewhere:
    """A server that confirms calls in a given way, and answers them on its GET stream.

    Attributes:
        answers: Whether it answers them at all.
        opened: Set while it has its stream.
        called: Set once it has confirmed a call.
        stop: Ends its stream.
    """

    def __init__(self, confirms: str) -> None:
        self.answers = True
        self.opened, self.called, self.stop = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._confirms = confirms
        self._stream = web.StreamResponse()

    async def post(self, request: web.Request) -> web.StreamResponse:
        """Handle a message."""
        message = await request.json()
        method, key = message["method"], message.get("id")
        if key is None:
            return web.Response(status=202)
        if method != "tools/call":
            known = {"initialize": GREETING, "tools/list": TOOLS}
            said = {"result": known[method]} if method in known else {"error": {"code": -32601}}
            answer = {"jsonrpc": "2.0", "id": key, **said}
            return web.json_response(answer, headers={"Mcp-Session-Id": "1"})
        response = self._confirmation(key)
        await response.prepare(request)
        await response.write_eof()
        self.called.set()
        if self.answers:
            await self.opened.wait()
            answer = {"jsonrpc": "2.0", "id": key, "result": RESULT}
            await self._stream.write(f"data: {json.dumps(answer)}\n\n".encode())
        return response

    def _confirmation(self, key: int) -> web.Response:
        if self._confirms == "answer":
            answer = {"jsonrpc": "2.0", "id": key, "result": RESULT}
            return web.json_response(answer, status=202)
        if self._confirms == "accepted":
            return web.json_response({"accepted": True})
        if self._confirms == "empty":
            return web.Response(content_type="text/event-stream")
        return web.Response(status=202)

    async def get(self, request: web.Request) -> web.StreamResponse:
        """Open the stream."""
        self._stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await self._stream.prepare(request)
        self.opened.set()
        await self.stop.wait()
        return self._stream


@pytest.fixture(params=CONFIRMED)
async def server(request: pytest.FixtureRequest) -> Elsewhere:
    """Return a server that confirms calls in each way."""
    return Elsewhere(request.param)


@pytest.fixture
async def address(server: Elsewhere) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/mcp", server.post)
    app.router.add_get("/mcp", server.get, allow_head=False)
    running = TestServer(app)
    await running.start_server(shutdown_timeout=0.1)
    yield str(running.make_url("/mcp"))
    server.stop.set()
    await running.close()


async def test_an_answer_may_come_on_the_get_stream_after_the_response_to_the_call(
    bench: Bench, server: Elsewhere, address: str
) -> None:
    instance = await bench.start(bench.http_spec(address))
    assert [await bench.text(instance, "say") for _ in range(3)] == ["said"] * 3


async def test_a_call_whose_answer_was_to_come_on_the_get_stream_fails_when_that_ends(
    bench: Bench, server: Elsewhere, address: str
) -> None:
    server.answers = False
    instance = await bench.start(bench.http_spec(address))
    async with asyncio.timeout(BOUND):
        await server.opened.wait()
        _, outcome = bench.start_call(instance, "say")
        await server.called.wait()
        server.stop.set()
        fault = (await outcome).fault
    assert fault is not None
    assert fault.started == "yes"


@pytest.mark.parametrize("server", ["accepted"], indirect=True)
async def test_a_body_that_is_no_message_fails_its_call_if_no_answer_comes_soon(
    bench: Bench, server: Elsewhere, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(responses, "_LATE", 0.0)
    server.answers = False
    instance = await bench.start(bench.http_spec(address))
    fault = await bench.call_fault(instance, "say")
    assert fault.reason is Reason.SERVER_ERROR
    assert "a message that is not JSON-RPC" in fault.message


@pytest.mark.parametrize("server", ["answer"], indirect=True)
async def test_an_answer_may_be_the_body_of_a_confirmation(
    bench: Bench, server: Elsewhere, address: str
) -> None:
    server.answers = False
    instance = await bench.start(bench.http_spec(address))
    assert await bench.text(instance, "say") == "said"
