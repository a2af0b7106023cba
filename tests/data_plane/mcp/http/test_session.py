"""Shared instances get a new session when an HTTP server forgets theirs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.conftest import BOUND
from tests.data_plane.mcp.conftest import Bench

from leaseway.data_plane.mcp.instance import Instance
from leaseway.data_plane.mcp.protocol.features.health import Patience
from leaseway.wire.errors import Reason


@pytest.fixture
async def address(bench: Bench) -> AsyncIterator[str]:
    """Return the address of a legacy server with sessions."""
    async with bench.serving("http_raw", "--legacy", "--get") as address:
        yield address


async def shared(bench: Bench, address: str, **more: Any) -> Instance:
    spec = bench.http_spec(f"{address}/mcp", truely_stateless=True)
    return await bench.start(spec, **more)


async def state(bench: Bench, address: str) -> dict[str, Any]:
    async with bench.http.get(f"{address}/state") as response:
        return dict(await response.json())


async def control(bench: Bench, address: str, command: str) -> None:
    async with bench.http.post(f"{address}/{command}"):
        pass


async def test_a_call_in_a_forgotten_session_succeeds_in_a_new_one(
    bench: Bench, address: str
) -> None:
    instance = await shared(bench, address)
    for number in (2, 3):
        await control(bench, address, "forget")
        assert await bench.text(instance, "echo", {"text": "on"}) == "on"
        assert (await state(bench, address))["sessions"] == [f"session-{number}"]
    assert instance.state == "ready"
    await instance.close()
    assert (await state(bench, address))["deleted"] == ["session-3"]


async def test_a_server_that_cuts_the_connection_at_discover_is_greeted_with_initialize(
    bench: Bench,
) -> None:
    async with bench.serving("http_raw", "--legacy", "--strict") as address:
        instance = await shared(bench, address)
        assert instance.protocol_version == "2025-11-25"
        assert await bench.text(instance, "echo", {"text": "on"}) == "on"


async def test_calls_in_flight_in_the_forgotten_session_finish(bench: Bench, address: str) -> None:
    instance = await shared(bench, address)
    slow = [bench.start_call(instance, "echo", {"text": "slow"}) for _ in range(5)]
    for call, _ in slow:
        await bench.written(call)
    await bench.text(instance, "echo")  # the server has received them
    await control(bench, address, "forget")
    assert await bench.text(instance, "echo", {"text": "on"}) == "on"
    async with asyncio.timeout(BOUND):
        assert [(await outcome).fault for _, outcome in slow] == [None] * 5
    assert await bench.text(instance, "echo", {"text": "on"}) == "on"
    # Their responses named the old session, but the new one stays in use.
    assert (await state(bench, address))["sessions"] == ["session-2"]


async def test_many_calls_in_a_forgotten_session_open_one_new_session(
    bench: Bench, address: str
) -> None:
    instance = await shared(bench, address)
    await control(bench, address, "forget")
    texts = [f"call {n}" for n in range(100)]
    answers = (bench.text(instance, "echo", {"text": text}) for text in texts)
    assert await asyncio.gather(*answers) == texts
    assert (await state(bench, address))["sessions"] == ["session-2"]


async def test_a_new_session_reports_changed_tools(bench: Bench, address: str) -> None:
    instance = await shared(bench, address)
    await control(bench, address, "forget")
    await bench.text(instance, "echo")
    async with asyncio.timeout(BOUND):
        assert await bench.changed.get() is instance
    assert "echo" in await instance.relist()


async def test_the_get_stream_is_opened_in_the_new_session(bench: Bench, address: str) -> None:
    instance = await shared(bench, address)
    await control(bench, address, "forget")
    await bench.text(instance, "echo")
    async with asyncio.timeout(BOUND):
        await bench.changed.get()
        while (await state(bench, address))["streams"] != 1:
            await asyncio.sleep(0.005)
        await control(bench, address, "change")
        assert await bench.changed.get() is instance


async def test_a_ping_notices_a_forgotten_session(bench: Bench, address: str) -> None:
    instance = await shared(bench, address, patience=Patience(idle=0.05, answer=BOUND))
    await control(bench, address, "forget")
    async with asyncio.timeout(BOUND):
        while (await state(bench, address))["sessions"] != ["session-2"]:
            await asyncio.sleep(0.005)
    assert instance.state == "ready"


async def test_the_connection_ends_with_the_reason_if_no_new_session_is_opened(
    bench: Bench, address: str
) -> None:
    instance = await shared(bench, address)
    await control(bench, address, "full")
    await control(bench, address, "forget")
    fault = await bench.call_fault(instance, "echo")
    assert (fault.reason, fault.started) == (Reason.SERVER_LOST, "no")
    assert "no longer knows its MCP session" in fault.message
    assert "HTTP status 503" in fault.message
    async with asyncio.timeout(BOUND):
        assert (await bench.closed.get())[0] is instance


async def test_a_server_that_forgets_each_session_is_given_up(bench: Bench, address: str) -> None:
    instance = await shared(bench, address)
    await control(bench, address, "forgetful")
    await control(bench, address, "forget")
    fault = await bench.call_fault(instance, "echo")
    assert (fault.reason, fault.started) == (Reason.SERVER_LOST, "no")
    assert "no longer knows its MCP session" in fault.message
    async with asyncio.timeout(BOUND):
        assert (await bench.closed.get())[0] is instance


async def test_a_call_cancelled_during_a_renewal_does_not_affect_others(
    bench: Bench, address: str
) -> None:
    instance = await shared(bench, address)
    await control(bench, address, "forget")
    calls = [bench.start_call(instance, "echo", {"text": "on"}) for _ in range(20)]
    for call, _ in calls:
        await bench.written(call)
    for call, _ in calls[::2]:
        call.cancel("enough")
    async with asyncio.timeout(BOUND):
        assert [(await outcome).fault for _, outcome in calls[1::2]] == [None] * 10
    assert instance.in_flight == 0


async def test_subscriptions_are_renewed_in_the_new_session(bench: Bench) -> None:
    async with bench.serving("http_raw", "--legacy", "--get", "--follow") as address:
        instance = await shared(bench, address)
        updates: asyncio.Queue[str] = asyncio.Queue()
        subscription = instance.follow("note://a", updates.put_nowait, lambda _: None)
        async with asyncio.timeout(BOUND):
            assert await updates.get() == ""
            await control(bench, address, "forget")
            await bench.text(instance, "echo")
            # Changes between the two sessions are unknown.
            assert [await updates.get(), await updates.get()] == ["", "note://a"]
            while (await state(bench, address))["streams"] != 1:
                await asyncio.sleep(0.005)
            async with bench.http.post(f"{address}/update", data="note://a/part"):
                assert await updates.get() == "note://a/part"
        assert (await state(bench, address))["followed"] == ["note://a"] * 2
        subscription.cancel("enough")
