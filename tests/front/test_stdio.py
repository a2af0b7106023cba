"""MCP over stdio: invalid handshakes, and whose sessions are found."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from tests.conftest import BOUND
from tests.e2e.system import eventually
from tests.front.fakes import META, FakeMethods, Pipe

from leaseway.front import stdio
from leaseway.front.calling.requests import Request
from leaseway.front.draining import Drain
from leaseway.front.methods import Methods
from leaseway.front.stdio import StdioFront
from leaseway.sdk.testing import CallContext, FakeLeaseway


class FakeHandshake:
    """Passes lines to the front."""

    answered = None

    def __init__(self, target: int) -> None:
        self.target = target
        self.connected = asyncio.Event()

    def connect(self, on_line: Callable[[bytes | None], None]) -> None:
        self.on_line = on_line
        self.connected.set()


@asynccontextmanager
async def serving(
    methods: Any, target: int, drain: Drain | None = None
) -> AsyncIterator[tuple[StdioFront, FakeHandshake]]:
    """Serve until the input has ended, which the block says with the line None."""
    handshake = FakeHandshake(target)
    front = StdioFront(methods, "default", "", cast("Any", handshake), drain)
    async with asyncio.timeout(BOUND), asyncio.TaskGroup() as tasks:
        tasks.create_task(front.serve())
        await handshake.connected.wait()
        yield front, handshake


@pytest.mark.parametrize("params", [b"", b',"params":[1]', b',"params":7'])
async def test_initialize_without_a_params_object_is_an_error(params: bytes) -> None:
    source, target = os.pipe()
    methods: Any = FakeMethods()
    async with serving(methods, target) as (_, handshake):
        for line in (b'{"jsonrpc":"2.0","id":1,"method":"initialize"%b}' % params, None):
            await asyncio.to_thread(handshake.on_line, line)
    os.close(target)
    with os.fdopen(source) as responses:
        assert json.loads(responses.readline())["error"]["code"] == -32602


@pytest.mark.parametrize("is_read", [True, False])
async def test_nothing_is_read_from_a_client_that_does_not_read_much(
    is_read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stdio, "_MAX_UNREAD", 100_000)
    source, target = os.pipe()
    methods: Any = FakeMethods()
    handled: list[Request] = []

    async def handle(request: Request) -> bytes:
        handled.append(request)
        return b'"%b"' % (b"x" * 300_000)

    methods.handle = handle
    async with serving(methods, target) as (front, handshake):
        ping = b'{"jsonrpc":"2.0","id":%d,"method":"ping"}'
        await asyncio.to_thread(handshake.on_line, ping % 1)
        await eventually(lambda: not front._writer.has_room.is_set())
        await asyncio.to_thread(handshake.on_line, ping % 2)
        await eventually(front._lines.empty)
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(handled) == 1
        with os.fdopen(source) as responses:
            if is_read:
                await asyncio.to_thread(responses.readline)
                await eventually(lambda: len(handled) == 2)
                await asyncio.to_thread(responses.readline)
        await eventually(lambda: len(handled) == 2)
        await asyncio.to_thread(handshake.on_line, None)
    os.close(target)


async def test_requests_that_were_sent_before_the_input_ended_are_answered() -> None:
    source, target = os.pipe()
    methods: Any = FakeMethods()
    drain = Drain()

    async def handle(_: Request) -> bytes:
        await drain.started.wait()
        await asyncio.sleep(0)
        return b"{}"

    methods.handle = handle
    async with serving(methods, target, drain) as (_, handshake):
        for line in (b'{"jsonrpc":"2.0","id":1,"method":"ping"}', None):
            await asyncio.to_thread(handshake.on_line, line)
    os.close(target)
    with os.fdopen(source) as responses:
        assert json.loads(responses.readline())["result"] == {}


async def test_a_client_that_is_gone_holds_up_no_end() -> None:
    source, target = os.pipe()
    methods: Any = FakeMethods()
    methods.handle = lambda _: asyncio.Event().wait()
    async with serving(methods, target, Drain(timeout=10 * BOUND)) as (_, handshake):
        await asyncio.to_thread(handshake.on_line, b'{"jsonrpc":"2.0","id":1,"method":"ping"}')
        os.close(source)
        await asyncio.to_thread(handshake.on_line, None)
    os.close(target)


@pytest.mark.parametrize("more", [0, 1])
async def test_a_result_at_which_official_clients_end_the_connection_is_an_error(
    more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stdio, "_MAX_OUTPUT", 1_000)
    source, target = os.pipe()
    methods: Any = FakeMethods()

    async def handle(_: Request) -> bytes:
        envelope = len(b'{"jsonrpc":"2.0","id":1,"result":""}')
        return b'"%b"' % (b"x" * (1_000 - envelope + more))

    methods.handle = handle
    async with serving(methods, target) as (_, handshake):
        for line in (b'{"jsonrpc":"2.0","id":1,"method":"ping"}', None):
            await asyncio.to_thread(handshake.on_line, line)
    os.close(target)
    with os.fdopen(source) as responses:
        answer = json.loads(responses.readline())
    assert ("result" in answer) == (more == 0)
    assert ("RESULT_TOO_LARGE" in json.dumps(answer)) == (more == 1)


async def test_a_connection_whose_requests_are_all_taken_still_reads_what_ends_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stdio, "_MAX_REQUESTS", 2)
    monkeypatch.setattr(stdio, "_MAX_WAITING", 2)
    source, target = os.pipe()
    methods: Any = FakeMethods()
    started, go_on = [], asyncio.Event()

    async def handle(request: Request) -> bytes:
        started.append(int(request.message.id))
        await go_on.wait()
        return b"{}"

    methods.handle = handle
    handshake: Any = FakeHandshake(target)
    front = StdioFront(methods, "default", "", handshake)

    def send(method: str, **members: Any) -> Awaitable[None]:
        message = {"jsonrpc": "2.0", "method": method, **members}
        return asyncio.to_thread(handshake.on_line, json.dumps(message).encode())

    async with asyncio.timeout(BOUND), asyncio.TaskGroup() as tasks:
        tasks.create_task(front.serve())
        await handshake.connected.wait()
        for number in (1, 2, 3):
            await send("ping", id=number)
        await send("notifications/cancelled", params={"requestId": 1})
        await eventually(lambda: started == [1, 2, 3])
        for number in (4, 5, 6):
            await send("ping", id=number)
        with os.fdopen(source) as responses:
            refused = json.loads(await asyncio.to_thread(responses.readline))
            assert (refused["id"], refused["error"]["data"]["started"]) == (6, "no")
            go_on.set()
            ended = [json.loads(await asyncio.to_thread(responses.readline)) for _ in range(4)]
            assert sorted(response["id"] for response in ended) == [2, 3, 4, 5]
            await asyncio.to_thread(handshake.on_line, None)
    os.close(target)


@asynccontextmanager
async def connection(fake: FakeLeaseway) -> AsyncIterator[Callable[..., Awaitable[Any]]]:
    """Connect a client over pipes; yield a function that calls `count` or another tool."""
    source, target = os.pipe()
    responder: Any = (pipe := Pipe(target))
    async with fake.async_client() as client:
        methods = Methods(client)
        serving = asyncio.create_task(StdioFront(methods, "default", "", responder).serve())
        await pipe.connected.wait()
        with os.fdopen(source) as responses:

            async def call(name: str = "count", meta: Any = None, **arguments: Any) -> Any:
                params = {"name": name, "arguments": arguments, "_meta": {**META, **(meta or {})}}
                request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
                await pipe.send(request)
                return json.loads(await asyncio.to_thread(responses.readline))

            yield call
            await asyncio.to_thread(pipe.on_line, None)
            await serving
        await methods.catalog.close()
    os.close(target)


async def test_sessions_of_a_connection_are_found_and_worth_nothing_to_others() -> None:
    with FakeLeaseway() as fake:
        counter = fake.server("counter", stateful=True)

        @counter.tool
        def count(ctx: CallContext) -> int:
            """Count."""
            ctx.state["n"] = ctx.state.get("n", 0) + 1
            return int(ctx.state["n"])

        def number(answer: Any) -> int:
            return int(answer["result"]["content"][0]["text"])

        async with asyncio.timeout(BOUND), connection(fake) as mine, connection(fake) as other:
            assert [number(await mine()), number(await mine())] == [1, 2]
            acquired = await mine("lease_acquire", serverId="counter")
            handle = acquired["result"]["structuredContent"]["handle"]
            assert [number(await mine(session=handle)) for _ in range(2)] == [1, 2]
            chats = [{"openai/session": name} for name in ("a", "b", "a")]
            assert [number(await mine(meta=chat)) for chat in chats] == [1, 1, 2]
            assert number(await other(meta=chats[0])) == 1
            forged = handle[:-1] + ("A" if handle[-1] != "A" else "B")
            for call, session in ((other, handle), (mine, forged)):
                refused = (await call(session=session))["result"]
                assert refused["isError"]
                assert "Unknown session" in refused["content"][0]["text"]
                refused = await call(meta={"leaseway/session": session})
                assert "Unknown handle" in refused["error"]["message"]
            await mine("lease_release", handle=handle)
            assert (await mine(session=handle))["result"]["isError"], "a replay after its release"
            assert number(await mine()) == 3
        assert not fake.leases


async def test_a_batch_is_one_line_of_responses() -> None:
    source, target = os.pipe()
    responder: Any = (pipe := Pipe(target))
    with FakeLeaseway() as fake, os.fdopen(source) as responses:
        async with asyncio.timeout(BOUND), fake.async_client() as client:
            methods = Methods(client)
            serving = asyncio.create_task(StdioFront(methods, "default", "", responder).serve())
            await pipe.connected.wait()
            params = {"protocolVersion": "2025-03-26"}
            ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
            await pipe.send({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
            await asyncio.to_thread(responses.readline)
            await pipe.send([ping, {**ping, "id": 3}, {**ping, "id": 4, "jsonrpc": "1.0"}, []])
            answers = json.loads(await asyncio.to_thread(responses.readline))
            assert sorted(str(answer["id"]) for answer in answers) == ["2", "3", "4", "None"]
            assert [answer["id"] for answer in answers if "result" in answer] == [2, 3]
            await asyncio.to_thread(pipe.on_line, None)
            await serving
            await methods.catalog.close()
    os.close(target)


async def test_another_initialize_answers_the_requests_that_it_ends() -> None:
    source, target = os.pipe()
    responder: Any = (pipe := Pipe(target))
    started = threading.Event()
    with FakeLeaseway() as fake, os.fdopen(source) as responses:

        @fake.tool
        async def wait() -> str:
            started.set()
            await asyncio.Event().wait()
            return "never"

        async with asyncio.timeout(BOUND), fake.async_client() as client:
            methods = Methods(client)
            serving = asyncio.create_task(StdioFront(methods, "default", "", responder).serve())
            await pipe.connected.wait()

            async def answer(message: Any) -> Any:
                await pipe.send({"jsonrpc": "2.0", **message})
                return json.loads(await asyncio.to_thread(responses.readline))

            params = {"protocolVersion": "2025-06-18"}
            initialize = {"id": 1, "method": "initialize", "params": params}
            assert "result" in await answer(initialize)
            call = {"id": 2, "method": "tools/call", "params": {"name": "wait"}}
            await pipe.send({"jsonrpc": "2.0", **call})
            await asyncio.to_thread(started.wait, BOUND)
            ended = await answer(initialize)
            assert (ended["id"], "`initialize` again" in ended["error"]["message"]) == (2, True)
            assert (await answer({"id": 3, "method": "ping"}))["id"] == 1
            assert json.loads(await asyncio.to_thread(responses.readline))["id"] == 3
            await asyncio.to_thread(pipe.on_line, None)
            await serving
            await methods.catalog.close()
    os.close(target)
