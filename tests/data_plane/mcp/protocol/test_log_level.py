"""Calls that want to know what a legacy server logs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.conftest import BOUND
from tests.data_plane.doubles.transport import MemoryTransport

from leaseway.data_plane.core.calls.call import Callbacks, Outcome, PendingCall, ToolRequest
from leaseway.data_plane.mcp.protocol.messages import log_level
from leaseway.data_plane.mcp.protocol.stream_connection import StreamPeer


class Server:
    """A server that handles requests in any order, such as one on the official Go SDK.

    Attributes:
        received: What it was sent.
        peer: Its client.
    """

    def __init__(self) -> None:
        self.received: list[dict[str, Any]] = []
        near, self._far = MemoryTransport.pair()
        self.peer = StreamPeer("concurrent", near)
        self.peer.sets_log_level = True

    async def open(self) -> None:
        await self._far.connect(self)  # type: ignore[arg-type]
        await self.peer.open()

    def receive(self, messages: list[bytes]) -> None:
        """Read messages."""
        self.received += map(json.loads, messages)

    def lost(self, _fault: object) -> None:
        """The connection has ended."""

    def call(self, level: str = "") -> PendingCall:
        """Start a call that wants to know what is logged from a level."""
        request = ToolRequest("echo", b'"name":"echo","arguments":', b"{}")
        if level:
            request.callbacks = Callbacks(on_log=lambda *_: None, log_level=level)
        outcomes: list[Outcome] = []
        return self.peer.call(request, outcomes.append)

    @property
    def methods(self) -> list[str]:
        return [message["method"] for message in self.received]

    async def gets(self, *methods: str) -> None:
        """Wait until it has been sent these requests, and no others."""
        await until(lambda: len(self.methods) >= len(methods))
        assert self.methods == list(methods)

    def answer(self, number: int, **answer: Any) -> None:
        """Answer a request that it has been sent."""
        message = {"jsonrpc": "2.0", "id": self.received[number]["id"], **answer}
        self.peer.receive([json.dumps(message).encode()])


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(BOUND):
        while not condition():
            await asyncio.sleep(0)


async def handle_all() -> None:
    """Let everything run that is due."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    await server.open()
    yield server
    await server.peer.aclose(hurry=True)


@pytest.mark.parametrize(
    "answer", [{"result": {}}, {"error": {"code": -32601, "message": "not supported"}}]
)
async def test_a_call_is_sent_when_the_server_has_answered_its_level(
    server: Server, answer: dict[str, Any]
) -> None:
    server.call("debug")
    server.call("error")  # which is not lower
    server.call()  # which wants no logs
    await server.gets("logging/setLevel", "tools/call")
    await handle_all()
    assert len(server.received) == 2
    server.answer(0, **answer)
    await server.gets("logging/setLevel", *["tools/call"] * 3)
    server.call("info")
    await server.gets("logging/setLevel", *["tools/call"] * 4)


async def test_a_lower_level_is_requested_once_the_higher_one_is_set(server: Server) -> None:
    server.call("error")
    server.call("debug")
    await server.gets("logging/setLevel")
    await handle_all()
    assert len(server.received) == 1
    server.answer(0, result={})
    await server.gets("logging/setLevel", "tools/call", "logging/setLevel")
    await handle_all()
    assert len(server.received) == 3
    server.answer(2, result={})
    await server.gets("logging/setLevel", "tools/call", "logging/setLevel", "tools/call")
    assert [message["params"].get("level") for message in server.received[::2]] == [
        "error",
        "debug",
    ]


async def test_a_call_that_is_cancelled_before_is_not_sent(server: Server) -> None:
    call = server.call("debug")
    await server.gets("logging/setLevel")
    call.cancel("nobody waits")
    server.answer(0, result={})
    await handle_all()
    assert server.methods == ["logging/setLevel"]


async def test_a_server_that_does_not_answer_holds_calls_up_for_a_bounded_time(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_level, "PATIENCE", 0.01)
    server.call("debug")
    await server.gets("logging/setLevel", "tools/call")
