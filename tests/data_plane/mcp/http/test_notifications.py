"""HTTP servers that do not accept notifications, or the answers to their requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from tests.conftest import BOUND
from tests.data_plane.mcp.conftest import Bench, fault_of, until

from leaseway.data_plane.core.calls.call import SERVER_METHODS, Ask, Callbacks, Outcome, ToolRequest
from leaseway.data_plane.kinds.remote.http import notifications
from leaseway.data_plane.kinds.remote.http.connection import HttpConnection
from leaseway.data_plane.mcp.protocol.messages.era import params_head
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.mcp import ELICIT

PONG = b'{"jsonrpc":"2.0","id":1,"result":{}}'


class AskingServer:
    """A server that sends a request in each call; tests choose how it handles the answer.

    Attributes:
        mode: `hold` delays POSTs, `redirect` redirects them, `500` fails.
        posted: The posted messages except calls.
        proceed: Completes the calls.
    """

    def __init__(self) -> None:
        self.mode = "500"
        self.posted: list[dict[str, Any]] = []
        self.proceed = asyncio.Event()

    async def post(self, request: web.Request) -> web.StreamResponse:
        """Handle a message."""
        message = await request.json()
        if message.get("method") == "tools/call":
            return await self._call(request, message["id"])
        self.posted.append(message)
        if self.mode == "hold":
            await self.proceed.wait()
        if self.mode == "redirect":
            raise web.HTTPTemporaryRedirect("http://elsewhere.invalid/mcp")
        return web.Response(status=500)

    async def _call(self, request: web.Request, call_id: int) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        question = {"jsonrpc": "2.0", "id": "q", "method": ELICIT, "params": {"message": "?"}}
        await response.write(f"data: {json.dumps(question)}\n\n".encode())
        await self.proceed.wait()
        answer = {"jsonrpc": "2.0", "id": call_id, "result": {"content": []}}
        await response.write(f"data: {json.dumps(answer)}\n\n".encode())
        return response


@asynccontextmanager
async def serving(bench: Bench) -> AsyncIterator[tuple[AskingServer, HttpConnection]]:
    asking = AskingServer()
    app = web.Application()
    app.router.add_post("/mcp", asking.post)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    connection = HttpConnection("shy", f"http://127.0.0.1:{runner.addresses[0][1]}/mcp", bench.http)
    try:
        yield asking, connection
    finally:
        asking.proceed.set()
        await connection.aclose()
        await runner.cleanup()


@pytest.fixture
async def shy(bench: Bench) -> AsyncIterator[tuple[AskingServer, HttpConnection]]:
    async with serving(bench) as served:
        yield served


async def start_call(
    connection: HttpConnection, **request: Any
) -> tuple[Ask, asyncio.Future[Outcome]]:
    """Start a call; return its server's request, and its outcome."""
    loop = asyncio.get_running_loop()
    question: asyncio.Future[Ask] = loop.create_future()
    outcome: asyncio.Future[Outcome] = loop.create_future()
    request.setdefault("answers", SERVER_METHODS)
    callbacks = Callbacks(on_ask=question.set_result, **request)
    call = ToolRequest("ask", params_head("ask"), b"{}", callbacks=callbacks)
    connection.call(call, outcome.set_result)
    async with asyncio.timeout(BOUND):
        return await question, outcome


async def lost(outcome: asyncio.Future[Outcome]) -> Fault:
    fault = await fault_of(outcome)
    assert (fault.reason, fault.started) == (Reason.SERVER_LOST, "yes")
    return fault


async def test_a_call_whose_answer_is_dropped_fails_with_the_reason(
    shy: tuple[AskingServer, HttpConnection],
) -> None:
    asking, connection = shy
    asking.mode = "hold"
    ask, outcome = await start_call(connection)
    for _ in range(64 + 1024):
        connection._respond(PONG)
    ask.answer(b'{"action":"accept"}')
    fault = await lost(outcome)
    assert "be delivered: 1088 messages to it are still pending" in fault.message
    assert connection.in_flight == 0


async def test_messages_wait_for_a_slow_server(shy: tuple[AskingServer, HttpConnection]) -> None:
    asking, connection = shy
    asking.mode = "hold"
    ask, outcome = await start_call(connection)
    for _ in range(200):
        connection._respond(PONG)
    ask.answer(b'{"action":"accept"}')
    asking.proceed.set()
    await until(lambda: len(asking.posted) == 201)
    assert asking.posted[-1]["result"] == {"action": "accept"}
    async with asyncio.timeout(BOUND):
        assert (await outcome).fault is None


async def test_a_call_whose_answer_is_redirected_to_another_host_fails(
    shy: tuple[AskingServer, HttpConnection],
) -> None:
    asking, connection = shy
    asking.mode = "redirect"
    ask, outcome = await start_call(connection)
    ask.answer(b'{"action":"accept"}')
    assert "redirects to http://elsewhere.invalid/mcp" in (await lost(outcome)).message


async def test_a_call_whose_rejection_can_not_be_delivered_fails(
    shy: tuple[AskingServer, HttpConnection],
) -> None:
    asking, connection = shy
    asking.mode = "redirect"
    outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    connection.call(ToolRequest("ask", params_head("ask"), b"{}"), outcome.set_result)
    await lost(outcome)


async def test_a_call_continues_if_the_server_may_not_need_the_answer(
    shy: tuple[AskingServer, HttpConnection], caplog: pytest.LogCaptureFixture
) -> None:
    asking, connection = shy
    ask, outcome = await start_call(connection)
    ask.answer(b'{"action":"accept"}')
    await until(lambda: "it answered with HTTP status 500" in caplog.text)
    assert "The call continues." in caplog.text
    assert not outcome.done()
    asking.proceed.set()
    async with asyncio.timeout(BOUND):
        assert json.loads((await outcome).payload) == {"content": []}


async def test_a_call_continues_if_the_server_may_have_the_answer(
    shy: tuple[AskingServer, HttpConnection],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timeouts: list[asyncio.Timeout] = []

    def timeout(seconds: float) -> asyncio.Timeout:
        timeouts.append(asyncio.timeout(seconds))
        return timeouts[-1]

    monkeypatch.setattr(notifications, "asyncio", SimpleNamespace(timeout=timeout))
    asking, connection = shy
    asking.mode = "hold"
    ask, outcome = await start_call(connection)
    ask.answer(b'{"action":"accept"}')
    await until(lambda: asking.posted)
    timeouts[-1].reschedule(0.0)
    await until(lambda: "The call continues." in caplog.text)
    assert not outcome.done()


async def test_undelivered_answers_of_ended_calls_are_not_logged(
    shy: tuple[AskingServer, HttpConnection], caplog: pytest.LogCaptureFixture
) -> None:
    asking, connection = shy
    ask, outcome = await start_call(connection)
    asking.proceed.set()
    async with asyncio.timeout(BOUND):
        await outcome
        ask.refuse(-32603, "The call that asked this has ended.")
        while connection._background:
            await asyncio.wait(tuple(connection._background))
    assert asking.posted
    assert caplog.text == ""


@pytest.fixture
async def silent(bench: Bench) -> AsyncIterator[HttpConnection]:
    """Return a connection to a server that accepts connections and never responds."""
    writers: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: writers.append(writer), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    connection = HttpConnection("silent", f"http://127.0.0.1:{port}/mcp", bench.http)
    try:
        yield connection
    finally:
        await connection.aclose()
        server.close()
        for writer in writers:
            writer.close()


async def test_posts_without_a_response_time_out(
    silent: HttpConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "_POST_TIMEOUT", 0.05)
    silent._respond(PONG)
    (task,) = silent._background
    async with asyncio.timeout(BOUND):
        await task
        await silent.notify("notifications/initialized", None)


async def test_pending_posts_are_limited(
    silent: HttpConnection, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(64 + 1024 + 8):
        silent._respond(PONG)
    assert len(silent._background) == 64
    assert caplog.text.count("does not accept messages") == 1
