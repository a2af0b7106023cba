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

    reading = most_reading = 0

    def __init__(self, request: bytes | None = None, peer: str = "ipv4:1") -> None:
        self._request, self._peer = request, peer
        self.on_done: list[Callable[[object], None]] = []

    def peer(self) -> str:
        return self._peer

    def add_done_callback(self, callback: Callable[[object], None]) -> None:
        self.on_done.append(callback)

    def end(self) -> None:
        for callback in self.on_done:
            callback(self)

    async def read(self) -> bytes:
        if self._request is not None:
            return self._request
        Rpc.reading += 1
        Rpc.most_reading = max(Rpc.most_reading, Rpc.reading)
        try:
            await asyncio.sleep(0.2)
        finally:
            Rpc.reading -= 1
        return b""


async def test_a_caller_that_does_not_finish_its_requests_keeps_only_itself_waiting() -> None:
    reads = CallerReads(limit=2, timeout=0.1)

    async def ask(rpc: Any, principal: Principal) -> Any:
        return await reads.read(rpc, DECODE, principal)

    slow = [asyncio.create_task(ask(Rpc(), ACME)) for _ in range(6)]
    await asyncio.sleep(0)
    request = catalog_pb2.ListToolsRequest(tenant="beta")
    assert await ask(Rpc(request.SerializeToString()), BETA) == request
    outcomes = await asyncio.gather(*slow, return_exceptions=True)
    assert {getattr(outcome, "reason", outcome) for outcome in outcomes} == {Reason.OVERLOADED}
    assert Rpc.most_reading <= 4  # those that were given up end with their RPC
    assert not reads._turns


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
