"""What the unary RPCs of one caller hold in memory is bounded, and is not taken from others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from leaseway.identity.principal import Principal, Role
from leaseway.identity.rpc_memory import CallerMemory, CallerReads
from leaseway.v1 import catalog_pb2
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.decoding import DEFAULT_LIMIT, MessageDecoder

ACME = Principal("key 1", frozenset({Role.CALLER}), tenant="acme")
BETA = Principal("key 2", frozenset({Role.CALLER}), tenant="beta")
ANYBODY = Principal("the shared key", frozenset({Role.CALLER}))
DECODE = MessageDecoder("ListTools", catalog_pb2.ListToolsRequest.FromString, DEFAULT_LIMIT)


class Rpc:
    """An RPC whose request is there, or never comes."""

    def __init__(self, request: bytes | None = None, peer: str = "ipv4:1") -> None:
        self._request, self._peer = request, peer
        self.is_reading = False
        self.on_done: list[Callable[[object], None]] = []

    def peer(self) -> str:
        return self._peer

    def add_done_callback(self, callback: Callable[[object], None]) -> None:
        self.on_done.append(callback)

    def end(self) -> None:
        for callback in self.on_done:
            callback(self)

    async def read(self) -> bytes:
        if self._request is None:
            self.is_reading = True
            await asyncio.Event().wait()
        return self._request or b""


async def test_a_caller_that_does_not_finish_its_requests_keeps_only_itself_waiting() -> None:
    reads = CallerReads(limit=2, timeout=60)

    async def ask(rpc: Any, principal: Principal) -> Any:
        return await reads.read(rpc, DECODE, principal)

    rpcs = [Rpc() for _ in range(6)]
    slow = [asyncio.create_task(ask(rpc, ACME)) for rpc in rpcs]
    request = catalog_pb2.ListToolsRequest(tenant="beta")
    for _ in range(9):
        assert await ask(Rpc(request.SerializeToString()), BETA) == request
    assert [rpc.is_reading for rpc in rpcs] == [True, True, False, False, False, False]
    for task in slow:
        task.cancel()
    await asyncio.wait(slow)
    assert not reads._turns


async def test_a_request_that_is_not_finished_in_time_is_given_up() -> None:
    rpc: Any = Rpc()
    with pytest.raises(Fault, match="too slowly") as raised:
        await CallerReads(limit=1, timeout=0.01).read(rpc, DECODE, ACME)
    assert raised.value.reason is Reason.OVERLOADED


def hold(memory: CallerMemory, rpc: Any, principal: Principal) -> None:
    memory.hold(bytes(40_000), principal, rpc)


def test_responses_count_for_their_caller_until_they_are_read() -> None:
    memory = CallerMemory(limit=100_000)
    first, second = Rpc(), Rpc()
    hold(memory, first, ACME)
    hold(memory, second, ACME)
    with pytest.raises(Fault, match="read responses") as raised:
        hold(memory, Rpc(), ACME)
    assert raised.value.metadata == {"limit": "held", "scope": "tenant"}
    hold(memory, Rpc(), BETA)
    for peer in ("ipv4:1", "ipv4:2"):
        for _ in range(2):
            hold(memory, Rpc(peer=peer), ANYBODY)
        with pytest.raises(Fault) as raised:
            hold(memory, Rpc(peer=peer), ANYBODY)
        assert raised.value.metadata["scope"] == "connection"
    first.end()
    hold(memory, Rpc(), ACME)
