"""The end of a front: calls in flight finish, streams end, new requests are refused."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from tests.conftest import BOUND
from tests.front.fakes import META, Pipe

from leaseway.front.app import McpListener
from leaseway.front.draining import Drain
from leaseway.front.http.callers import Callers
from leaseway.front.http.request_checks import AccessCheck
from leaseway.front.http.server import HttpServer
from leaseway.front.http.streamable import HttpFront
from leaseway.front.methods import Methods
from leaseway.front.protocol.handshake import SERVER_META
from leaseway.front.sessions.sealing import Owner, Sealer
from leaseway.front.sessions.table import SessionTable
from leaseway.front.stdio import StdioFront
from leaseway.sdk import AsyncClient
from leaseway.sdk.testing import CallContext, FakeLeaseway
from leaseway.wire.channels.endpoint import Endpoint

JSON = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"elicitation": {"form": {}}},
        "clientInfo": {"name": "t", "version": "1"},
    },
}
LISTEN = {
    "jsonrpc": "2.0",
    "id": 7,
    "method": "subscriptions/listen",
    "params": {"notifications": {"toolsListChanged": True}, "_meta": META},
}
MODERN = {**JSON, "MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "subscriptions/listen"}


def call(tool: str, number: int = 2) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": {"name": tool}}


class Gate:
    """Holds the calls of `slow` until it is opened."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def fake(gate: Gate) -> Iterator[FakeLeaseway]:
    with FakeLeaseway() as made:
        desk = made.server("desk", stateful=True)

        @made.tool
        async def slow() -> str:
            gate.entered.set()
            await asyncio.to_thread(gate.opened.wait, BOUND)
            return "finished"

        @desk.tool
        async def ask(context: CallContext) -> str:
            gate.entered.set()
            params = {"message": "?", "requestedSchema": {"type": "object", "properties": {}}}
            answer: Any = await context.ask("elicitation/create", params)
            return str(answer["action"])

        yield made
    gate.opened.set()


class Front:
    """A front over HTTP in this process."""

    def __init__(self, server: HttpServer, drain: Drain, url: str) -> None:
        self.server = server
        self.drain = drain
        self.url = url
        self.http = aiohttp.ClientSession()

    async def post(self, message: dict[str, Any], **headers: str) -> Any:
        return await self.http.post(
            f"{self.url}/mcp", json=message, headers={**JSON, **headers}, timeout=TIMEOUT
        )

    async def initialize(self) -> str:
        answer = await self.post(INITIALIZE)
        return str(answer.headers["Mcp-Session-Id"])

    def start_drain(self) -> asyncio.Task[None]:
        self.drain.request()
        return asyncio.create_task(self.server.drain())


TIMEOUT = aiohttp.ClientTimeout(BOUND)


@asynccontextmanager
async def front(fake: FakeLeaseway, timeout: float = BOUND) -> AsyncIterator[Front]:
    drain = Drain(timeout)

    def build(tenant: str, *_: object) -> HttpFront:
        client = fake.async_client()
        table = SessionTable(client, Sealer("key", "mcp session"), Owner(tenant))
        return HttpFront(Methods(client, ending=drain.started), table, drain)

    listener = McpListener(Endpoint("127.0.0.1", 0), None)
    callers = Callers(build, "default", "mcp", None, None)
    server = HttpServer(AccessCheck(listener.endpoint, None), callers, drain=drain)
    async with callers.running(), server.serving(listener.socket):
        made = Front(server, drain, f"http://{listener.endpoint}")
        async with made.http:
            yield made


async def entered(gate: Gate) -> None:
    assert await asyncio.to_thread(gate.entered.wait, BOUND)


async def body_of(answer: Any) -> dict[str, Any]:
    text = await answer.text()
    lines = [line for line in text.splitlines() if line.startswith("data: ")]
    found: dict[str, Any] = json.loads(lines[-1].removeprefix("data: ") if lines else text)
    return found


async def test_a_call_in_flight_finishes_while_new_requests_are_refused(
    fake: FakeLeaseway, gate: Gate
) -> None:
    async with front(fake) as made:
        session = {"Mcp-Session-Id": await made.initialize()}
        for _ in range(2):  # the second one has a known head, and goes the short way
            gate.entered.clear()
            gate.opened.set()
            await (await made.post(call("slow"), **session)).read()
        gate.entered.clear()
        gate.opened.clear()
        running = asyncio.create_task(made.post(call("slow"), **session))
        await entered(gate)
        draining = made.start_drain()
        for message in (INITIALIZE, call("slow", 3)):
            refused = await made.post(message, **session)
            assert refused.status == 503
            assert refused.headers["Retry-After"] == "1"
            assert refused.headers["Connection"] == "close"
            assert "shutting down" in (await body_of(refused))["error"]["message"]
        for ask in (made.http.get, made.http.head):  # some probes send HEAD
            assert (await ask(f"{made.url}/healthz")).status == 503
        assert not draining.done()
        gate.opened.set()
        result = (await body_of(await running))["result"]
        assert result["content"][0]["text"] == "finished"
        async with asyncio.timeout(BOUND):
            await draining


async def test_streams_for_notifications_end_and_listen_gets_its_result(
    fake: FakeLeaseway,
) -> None:
    async with front(fake) as made:
        session = {"Mcp-Session-Id": await made.initialize()}
        get = await made.http.get(
            f"{made.url}/mcp", headers={"Accept": "text/event-stream", **session}
        )
        listen = await made.post(LISTEN, **MODERN)
        assert b"acknowledged" in await listen.content.readuntil(b"\n\n")
        async with asyncio.timeout(BOUND):
            await made.start_drain()
            assert await get.read() == b": ping\n\n"
            last = (await listen.read()).split(b"data: ")[-1]
        assert json.loads(last) == {
            "jsonrpc": "2.0",
            "id": 7,
            "result": {
                "resultType": "complete",
                "_meta": {"io.modelcontextprotocol/subscriptionId": 7, **SERVER_META},
            },
        }
        assert (await made.http.get(f"{made.url}/mcp", headers=session)).status >= 400


async def test_answers_to_server_requests_are_accepted_while_draining(
    fake: FakeLeaseway, gate: Gate
) -> None:
    async with front(fake) as made:
        session = {"Mcp-Session-Id": await made.initialize()}
        running = await made.post(call("ask"), **session)
        asked = json.loads((await running.content.readuntil(b"\n\n")).split(b"data: ")[-1])
        draining = made.start_drain()
        answer = {"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "decline"}}
        assert (await made.post(answer, **session)).status == 202
        last = json.loads((await running.read()).split(b"data: ")[-1])
        assert last["result"]["content"][0]["text"] == "decline"
        async with asyncio.timeout(BOUND):
            await draining


@pytest.mark.parametrize("skip", [True, False])
async def test_the_wait_ends_with_its_time_or_a_second_signal(
    fake: FakeLeaseway, gate: Gate, skip: bool
) -> None:
    async with front(fake, BOUND if skip else 0.1) as made:
        session = {"Mcp-Session-Id": await made.initialize()}
        running = asyncio.create_task(made.post(call("slow"), **session))
        await entered(gate)
        draining = made.start_drain()
        if skip:
            made.drain.request()
        async with asyncio.timeout(BOUND / 2):
            await draining
            error = (await body_of(await running))["error"]
        assert error["data"] == {"reason": "CANCELLED", "started": "unknown"}


@pytest.mark.parametrize("calls_before", [0, 2])  # with a known head a call goes the short way
@pytest.mark.parametrize("way", ["session", "sessionless", "batch", "modern"])
async def test_the_client_of_a_call_that_is_cut_off_is_told(
    fake: FakeLeaseway, gate: Gate, way: str, calls_before: int
) -> None:
    async with front(fake, 0.1) as made:
        headers, message = {"MCP-Protocol-Version": "2025-11-25"}, call("slow")
        if way == "session":
            headers["Mcp-Session-Id"] = await made.initialize()
        elif way == "modern":
            message["params"]["_meta"] = META
            headers = {**MODERN, "Mcp-Method": "tools/call", "Mcp-Name": "slow"}
        elif way == "batch":
            headers = {"MCP-Protocol-Version": "2025-03-26"}
        sent: Any = [message] if way == "batch" else message
        gate.opened.set()
        for _ in range(calls_before):
            await (await made.post(sent, **headers)).read()
        gate.entered.clear()
        gate.opened.clear()
        running = asyncio.create_task(made.post(sent, **headers))
        await entered(gate)
        async with asyncio.timeout(BOUND / 2):
            await made.start_drain()
            response: Any = await body_of(await running)
        told = response[0] if way == "batch" else response
        assert told["id"] == 2
        assert told["error"]["data"] == {"reason": "CANCELLED", "started": "unknown"}


async def test_a_front_on_stdio_finishes_its_calls_and_answers_listen(
    fake: FakeLeaseway, gate: Gate
) -> None:
    source, target = os.pipe()
    drain, pipe = Drain(BOUND), Pipe(target)
    responder: Any = pipe
    async with asyncio.timeout(2 * BOUND), AsyncClient(fake.address) as client:
        methods = Methods(client, ending=drain.started)
        stdio = StdioFront(methods, "default", "", responder, drain)
        serving = asyncio.create_task(stdio.serve())
        await pipe.connected.wait()
        for message in (INITIALIZE, LISTEN, call("slow")):
            await pipe.send(message)
        await entered(gate)
        drain.request()
        await pipe.send(call("slow", 3))
        gate.opened.set()
        await serving
        await methods.catalog.close()
    os.close(target)
    with os.fdopen(source) as responses:
        messages = [json.loads(line) for line in responses]
    answers = {message["id"]: message for message in messages if "id" in message}
    assert answers[2]["result"]["content"][0]["text"] == "finished"
    assert "shutting down" in answers[3]["error"]["message"]
    assert answers[7]["result"]["resultType"] == "complete"
