"""A legacy server over HTTP that asks and does not take the answer: what becomes of the call."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web
from tests.conftest import BOUND

from leaseway.data_plane.core.calls.call import SERVER_METHODS, Ask, Outcome, ToolRequest
from leaseway.data_plane.mcp.http import notifications
from leaseway.data_plane.mcp.http.connection import HttpConnection
from leaseway.data_plane.mcp.protocol.messages.era import params_head
from leaseway.wire.errors import Reason
from leaseway.wire.messages.mcp import ELICIT

if TYPE_CHECKING:
    from tests.data_plane.mcp.conftest import Bench

PONG = b'{"jsonrpc":"2.0","id":1,"result":{}}'


class Asking:
    """A server whose every call asks something; what it does with the answer is a test's choice.

    Attributes:
        how: `hold` leaves posts without an answer, `redirect` sends them elsewhere, `500` fails.
        told: What it was posted besides calls.
        go_on: Has the calls end.
    """

    def __init__(self) -> None:
        self.how = "500"
        self.told: list[dict[str, Any]] = []
        self.go_on = asyncio.Event()

    async def post(self, request: web.Request) -> web.StreamResponse:
        """Take a message."""
        message = await request.json()
        if message.get("method") == "tools/call":
            return await self._call(request, message["id"])
        self.told.append(message)
        if self.how == "hold":
            await self.go_on.wait()
        if self.how == "redirect":
            raise web.HTTPTemporaryRedirect("http://elsewhere.invalid/mcp")
        return web.Response(status=500)

    async def _call(self, request: web.Request, call_id: int) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        question = {"jsonrpc": "2.0", "id": "q", "method": ELICIT, "params": {"message": "?"}}
        await response.write(f"data: {json.dumps(question)}\n\n".encode())
        await self.go_on.wait()
        answer = {"jsonrpc": "2.0", "id": call_id, "result": {"content": []}}
        await response.write(f"data: {json.dumps(answer)}\n\n".encode())
        return response


@asynccontextmanager
async def serving(bench: Bench) -> AsyncIterator[tuple[Asking, HttpConnection]]:
    asking = Asking()
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
        asking.go_on.set()
        await connection.aclose()
        await runner.cleanup()


@pytest.fixture
async def shy(bench: Bench) -> AsyncIterator[tuple[Asking, HttpConnection]]:
    async with serving(bench) as made:
        yield made


async def asked(connection: HttpConnection, **request: Any) -> tuple[Ask, asyncio.Future[Outcome]]:
    """Begin a call; return what its server asks, and its end."""
    loop = asyncio.get_running_loop()
    question: asyncio.Future[Ask] = loop.create_future()
    outcome: asyncio.Future[Outcome] = loop.create_future()
    request.setdefault("answers", SERVER_METHODS)
    call = ToolRequest("ask", params_head("ask"), b"{}", on_ask=question.set_result, **request)
    connection.call(call, outcome.set_result)
    async with asyncio.timeout(BOUND):
        return await question, outcome


async def fault_of(outcome: asyncio.Future[Outcome]) -> Any:
    async with asyncio.timeout(BOUND):
        fault = (await outcome).fault
    assert fault is not None
    assert (fault.reason, fault.started) == (Reason.SERVER_LOST, "yes")
    return fault


async def test_a_call_whose_answer_is_dropped_ends_and_says_why(
    shy: tuple[Asking, HttpConnection],
) -> None:
    asking, connection = shy
    asking.how = "hold"
    ask, outcome = await asked(connection)
    for _ in range(64):
        connection._answer(PONG)
    ask.answer(b'{"action":"accept"}')
    fault = await fault_of(outcome)
    assert "could not be sent the answer: it leaves 64 messages before this one" in fault.message
    assert connection.in_flight == 0


async def test_a_call_whose_answer_is_redirected_to_strangers_ends_and_says_where(
    shy: tuple[Asking, HttpConnection],
) -> None:
    asking, connection = shy
    asking.how = "redirect"
    ask, outcome = await asked(connection)
    ask.answer(b'{"action":"accept"}')
    assert "redirects to http://elsewhere.invalid/mcp" in (await fault_of(outcome)).message


async def test_a_call_with_a_question_that_nobody_takes_ends_where_the_server_is_not_told(
    shy: tuple[Asking, HttpConnection],
) -> None:
    asking, connection = shy
    asking.how = "redirect"
    outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    connection.call(ToolRequest("ask", params_head("ask"), b"{}"), outcome.set_result)
    await fault_of(outcome)


async def test_a_call_goes_on_where_the_server_may_do_without_the_answer(
    shy: tuple[Asking, HttpConnection], caplog: pytest.LogCaptureFixture
) -> None:
    asking, connection = shy
    ask, outcome = await asked(connection)
    ask.answer(b'{"action":"accept"}')
    async with asyncio.timeout(BOUND):
        while "it answered with HTTP status 500" not in caplog.text:
            await asyncio.sleep(0.001)
    assert "The call goes on." in caplog.text
    assert not outcome.done()
    asking.go_on.set()
    async with asyncio.timeout(BOUND):
        assert json.loads((await outcome).payload) == {"content": []}


async def test_a_call_goes_on_where_the_server_may_have_the_answer(
    shy: tuple[Asking, HttpConnection],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(notifications, "_POST_TIMEOUT", 0.05)
    asking, connection = shy
    asking.how = "hold"
    ask, outcome = await asked(connection)
    ask.answer(b'{"action":"accept"}')
    async with asyncio.timeout(BOUND):
        while "The call goes on." not in caplog.text:
            await asyncio.sleep(0.001)
    assert not outcome.done()


async def test_nothing_is_said_of_answers_to_calls_that_are_over(
    shy: tuple[Asking, HttpConnection], caplog: pytest.LogCaptureFixture
) -> None:
    asking, connection = shy
    ask, outcome = await asked(connection)
    asking.go_on.set()
    async with asyncio.timeout(BOUND):
        await outcome
        ask.refuse(-32603, "The call that asked this has ended.")
        while connection._background:
            await asyncio.wait(tuple(connection._background))
    assert asking.told
    assert caplog.text == ""
