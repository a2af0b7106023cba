"""A server that answers but serves nothing is noticed, by whatever wording it refuses."""

from __future__ import annotations

import importlib

import pytest
from tests.data_plane.mcp.conftest import Bench, until

from leaseway.data_plane.mcp.protocol.features.health import Patience
from leaseway.wire.errors import Reason

pytestmark = pytest.mark.usefixtures("leak_guard")


async def test_a_shared_process_that_refuses_everything_is_replaced(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("faulty", "wears_out", truely_stateless=True))
    assert await bench.text(instance, "call") == "fine"
    for arguments in ({"wear": "out"}, {}, {}):
        fault = await bench.call_fault(instance, "call", arguments)
        assert fault.reason is Reason.SERVER_ERROR
    closed, lost = await bench.next_closed()
    assert closed is instance
    assert lost is not None
    assert lost.reason is Reason.SERVER_LOST
    assert "refuses every request" in lost.message
    assert "the catalogue burnt" in lost.message


async def test_a_leased_process_that_refuses_everything_is_kept_and_reported(
    bench: Bench,
) -> None:
    instance = await bench.start(bench.stdio("faulty", "wears_out"), patience=Patience(answer=0.1))
    for _ in range(3):
        await bench.call_fault(instance, "call", {"wear": "out"})
    await until(lambda: bench.warned)
    [(reason, text)] = {*bench.warned}
    assert reason == "SERVER_REFUSING"
    assert "the catalogue burnt" in text
    assert instance.state == "ready"


async def test_a_tool_that_always_fails_does_not_end_the_instance(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("faulty", "complains", truely_stateless=True))
    peer = instance._peer
    assert peer is not None
    for _ in range(10):
        await bench.call_fault(instance, "call")
    await until(lambda: not peer.refusals.wake.is_set)
    assert instance.state == "ready"
    assert bench.warned == []


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "leased"])
@pytest.mark.parametrize("transport", ["sse", "websocket"])
async def test_a_connection_that_refuses_everything_is_given_up(
    bench: Bench, transport: str, shared: bool
) -> None:
    server = importlib.import_module("tests.servers.stream_raw").RawServer()
    await server.start()
    try:
        scheme, path = ("http", "sse") if transport == "sse" else ("ws", "ws")
        url = f"{scheme}://{server.base}/{path}/good"
        spec = bench.at(transport, url, protocol="legacy", truely_stateless=shared)
        instance = await bench.start(spec, patience=Patience(answer=0.1))
        for _ in range(3):
            await bench.call_fault(instance, "say", {"text": "refuse"})
        closed, lost = await bench.next_closed()
        assert closed is instance
        assert lost is not None
        assert "who are you?" in lost.message
    finally:
        await server.stop()


async def test_a_shared_modern_server_that_refuses_everything_is_replaced(bench: Bench) -> None:
    async with bench.serving("http_raw") as address:
        instance = await bench.start(bench.http_spec(f"{address}/mcp", truely_stateless=True))
        assert instance.protocol_version == "2026-07-28"
        async with bench.http.post(f"{address}/closed"):
            pass
        for _ in range(3):
            assert (await bench.call_fault(instance, "echo")).reason is Reason.SERVER_ERROR
        closed, lost = await bench.next_closed()
        assert closed is instance
        assert lost is not None
        assert "HTTP status 409" in lost.message
