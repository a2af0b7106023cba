"""Leased servers that ask for roots when no call can answer, such as at their start."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.conftest import BOUND
from tests.data_plane.doubles.transport import MemoryTransport

from leaseway.data_plane.core.calls.call import Ask, Callbacks, Outcome, ToolRequest, answerable
from leaseway.data_plane.mcp.protocol.messages import notices
from leaseway.data_plane.mcp.protocol.stream_connection import StreamPeer
from leaseway.wire.messages.mcp import ELICIT, ROOTS, ROOTS_CHANGED

FOLDERS = b'{"roots":[{"uri":"file:///work"}]}'


class Server:
    """A server that asks for roots whenever it is told that they have changed.

    Attributes:
        received: What it was sent.
        peer: Its client.
        asks: Whether it asks.
        asked: What its callers were asked and have not answered.
    """

    def __init__(self, *, leased: bool = True) -> None:
        self.received: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.near, self.far = MemoryTransport.pair()
        self.peer = StreamPeer("rooted", self.near)
        self.peer.leased = leased
        self.asks = True
        self.asked: asyncio.Queue[Ask] = asyncio.Queue()

    def receive(self, messages: list[bytes]) -> None:
        """Read messages."""
        for message in map(json.loads, messages):
            self.received.put_nowait(message)
            if self.asks and message.get("method") == ROOTS_CHANGED:
                asyncio.get_running_loop().call_soon(self.ask)

    def lost(self, _fault: object) -> None:
        """The connection has ended."""

    def ask(self) -> None:
        """Ask for the roots."""
        self.peer.receive([json.dumps({"jsonrpc": "2.0", "id": "q", "method": ROOTS}).encode()])

    async def next(self) -> dict[str, Any]:
        """Return the next message that it was sent."""
        async with asyncio.timeout(BOUND):
            return await self.received.get()

    async def next_method(self) -> str:
        return str((await self.next())["method"])

    async def question(self) -> Ask:
        """Return the next question to a caller."""
        async with asyncio.timeout(BOUND):
            return await self.asked.get()

    def call(self, tool: str, *answers: str) -> None:
        """Call a tool for a caller that answers some methods."""
        request = ToolRequest(tool, b'"name":"%s","arguments":' % tool.encode(), b"{}")
        request.callbacks = Callbacks(on_ask=self.asked.put_nowait, answers=answerable(answers))
        outcomes: list[Outcome] = []
        self.peer.call(request, outcomes.append)


@asynccontextmanager
async def asking(*, leased: bool = True) -> AsyncIterator[Server]:
    """Connect to a server that has asked for roots before the first call."""
    server = Server(leased=leased)
    await server.far.connect(server)  # type: ignore[arg-type]
    await server.peer.open()
    try:
        server.ask()
        assert "during their calls" in (await server.next())["error"]["message"]
        yield server
    finally:
        await server.peer.aclose(hurry=True)


async def test_the_first_call_that_answers_waits_until_the_server_has_its_roots() -> None:
    async with asking() as server:
        server.call("first", ELICIT)
        assert (await server.next())["params"]["name"] == "first"
        server.call("second", ROOTS)
        server.call("third")
        assert await server.next_method() == ROOTS_CHANGED
        (await server.question()).answer(FOLDERS)
        assert (await server.next())["result"] == json.loads(FOLDERS)
        assert (await server.next())["params"]["name"] == "second"
        assert (await server.next())["params"]["name"] == "third"
        server.call("fourth", ROOTS)
        assert (await server.next())["params"]["name"] == "fourth"


async def test_the_server_has_a_moment_to_use_its_roots_before_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(notices, "SETTLING", BOUND)
    async with asking() as server:
        server.call("first", ROOTS)
        assert await server.next_method() == ROOTS_CHANGED
        (await server.question()).answer(FOLDERS)
        assert (await server.next())["result"] == json.loads(FOLDERS)
        for _ in range(20):  # let everything run that is due
            await asyncio.sleep(0)
        assert server.received.empty()


async def test_a_server_that_does_not_ask_again_delays_one_call_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(notices, "PAUSE", 0.01)
    async with asking() as server:
        server.asks = False
        server.call("first", ROOTS)
        assert await server.next_method() == ROOTS_CHANGED
        result = {"jsonrpc": "2.0", "id": (await server.next())["id"], "result": {"content": []}}
        server.peer.receive([json.dumps(result).encode()])
        server.ask()
        assert "error" in await server.next()
        server.call("second", ROOTS)
        assert await server.next_method() == "tools/call"


async def test_a_client_that_does_not_answer_delays_its_call_only_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(notices, "MAX_HELD", 0.01)
    async with asking() as server:
        server.call("first", ROOTS)
        assert [await server.next_method() for _ in range(2)] == [ROOTS_CHANGED, "tools/call"]
        assert (await server.question()).is_open


@asynccontextmanager
async def asking_a_waiting_call() -> AsyncIterator[tuple[Server, Ask]]:
    """Connect to a server that asks for roots while a call waits; yield it and its question."""
    server = Server()
    waiting = Callbacks(on_ask=server.asked.put_nowait, answers=answerable([ROOTS]))
    server.peer.ask_waiting({ROOTS: waiting}.pop)
    await server.far.connect(server)  # type: ignore[arg-type]
    await server.peer.open()
    try:
        server.ask()
        yield server, await server.question()
    finally:
        await server.peer.aclose(hurry=True)


async def test_a_call_that_waits_for_the_start_answers_and_is_sent_after_its_answer() -> None:
    async with asking_a_waiting_call() as (server, question):
        server.call("first", ROOTS)
        question.answer(FOLDERS)
        assert (await server.next())["result"] == json.loads(FOLDERS)
        assert (await server.next())["params"]["name"] == "first"


async def test_a_start_does_not_wait_long_for_the_answer_of_a_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(notices, "MAX_HELD", 0.01)
    async with asking_a_waiting_call() as (server, question):
        assert "has not answered" in (await server.next())["error"]["message"]
        assert not question.is_open


async def test_a_shared_server_is_told_nothing() -> None:
    async with asking(leased=False) as server:
        server.call("first", ROOTS)
        assert await server.next_method() == "tools/call"
