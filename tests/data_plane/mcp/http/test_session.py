"""A server over HTTP that forgets its session: shared ones never notice, leased ones are lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest
from tests.conftest import BOUND

from leaseway.data_plane.mcp.instance import Instance
from leaseway.data_plane.mcp.protocol.features.health import Patience
from leaseway.wire.errors import Reason

if TYPE_CHECKING:
    from tests.data_plane.mcp.conftest import Bench


@pytest.fixture
async def address(bench: Bench) -> AsyncIterator[str]:
    """The address of a legacy server that keeps sessions."""
    async with bench.serving("http_raw", "--legacy", "--get") as address:
        yield address


async def shared(bench: Bench, address: str, **more: Any) -> Instance:
    spec = bench.http_spec(f"{address}/mcp", truely_stateless=True)
    return await bench.start(spec, **more)


async def state(bench: Bench, address: str) -> dict[str, Any]:
    async with bench.http.get(f"{address}/state") as response:
        return dict(await response.json())


async def tell(bench: Bench, address: str, what: str) -> None:
    async with bench.http.post(f"{address}/{what}"):
        pass


async def test_a_call_that_meets_a_forgotten_session_succeeds_in_another(
    bench: Bench, address: str
) -> None:
    instance = await shared(bench, address)
    for number in (2, 3):
        await tell(bench, address, "forget")
        assert await bench.text(instance, "echo", {"text": "on"}) == "on"
        assert (await state(bench, address))["sessions"] == [f"session-{number}"]
    assert instance.state == "ready"
    await instance.close()
    assert (await state(bench, address))["deleted"] == ["session-3"]


async def test_calls_that_run_in_the_forgotten_session_finish(bench: Bench, address: str) -> None:
    instance = await shared(bench, address)
    slow = [bench.start_call(instance, "echo", {"text": "slow"}) for _ in range(5)]
    for call, _ in slow:
        await bench.written(call)
    await bench.text(instance, "echo")  # the server has them by now
    await tell(bench, address, "forget")
    assert await bench.text(instance, "echo", {"text": "on"}) == "on"
    async with asyncio.timeout(BOUND):
        assert [(await outcome).fault for _, outcome in slow] == [None] * 5
    assert await bench.text(instance, "echo", {"text": "on"}) == "on"
    # Their answers named the old session, which is no reason to go back to it.
    assert (await state(bench, address))["sessions"] == ["session-2"]


async def test_many_calls_that_meet_a_forgotten_session_open_one_other(
    bench: Bench, address: str
) -> None:
    instance = await shared(bench, address)
    await tell(bench, address, "forget")
    texts = [f"call {n}" for n in range(100)]
    answers = (bench.text(instance, "echo", {"text": text}) for text in texts)
    assert await asyncio.gather(*answers) == texts
    assert (await state(bench, address))["sessions"] == ["session-2"]


async def test_after_another_session_is_opened_the_tools_are_looked_at_again(
    bench: Bench, address: str
) -> None:
    instance = await shared(bench, address)
    await tell(bench, address, "forget")
    await bench.text(instance, "echo")
    async with asyncio.timeout(BOUND):
        assert await bench.changed.get() is instance
    assert "echo" in await instance.relist()


async def test_the_stream_of_changes_follows_into_the_other_session(
    bench: Bench, address: str
) -> None:
    instance = await shared(bench, address)
    await tell(bench, address, "forget")
    await bench.text(instance, "echo")
    async with asyncio.timeout(BOUND):
        await bench.changed.get()
        while (await state(bench, address))["streams"] != 1:
            await asyncio.sleep(0.005)
        await tell(bench, address, "change")
        assert await bench.changed.get() is instance


async def test_a_question_for_a_sign_of_life_finds_the_session_forgotten(
    bench: Bench, address: str
) -> None:
    instance = await shared(bench, address, patience=Patience(idle=0.05, answer=BOUND))
    await tell(bench, address, "forget")
    async with asyncio.timeout(BOUND):
        while (await state(bench, address))["sessions"] != ["session-2"]:
            await asyncio.sleep(0.005)
    assert instance.state == "ready"


async def test_where_no_other_session_is_opened_the_connection_ends_and_says_why(
    bench: Bench, address: str
) -> None:
    instance = await shared(bench, address)
    await tell(bench, address, "full")
    await tell(bench, address, "forget")
    fault = (await bench.call(instance, "echo")).fault
    assert fault is not None
    assert (fault.reason, fault.started) == (Reason.SERVER_LOST, "no")
    assert "does not know its MCP session" in fault.message
    assert "HTTP status 503" in fault.message
    async with asyncio.timeout(BOUND):
        assert (await bench.closed.get())[0] is instance


async def test_a_server_that_forgets_at_once_is_not_asked_for_ever(
    bench: Bench, address: str
) -> None:
    instance = await shared(bench, address)
    await tell(bench, address, "forgetful")
    fault = (await bench.call(instance, "echo")).fault
    assert fault is not None
    assert (fault.reason, fault.started) == (Reason.SERVER_LOST, "no")
    assert "does not know its MCP session" in fault.message
    async with asyncio.timeout(BOUND):
        assert (await bench.closed.get())[0] is instance


async def test_a_call_cancelled_while_another_session_is_opened_disturbs_nobody(
    bench: Bench, address: str
) -> None:
    instance = await shared(bench, address)
    await tell(bench, address, "forget")
    calls = [bench.start_call(instance, "echo", {"text": "on"}) for _ in range(20)]
    for call, _ in calls:
        await bench.written(call)
    for call, _ in calls[::2]:
        call.cancel("enough")
    async with asyncio.timeout(BOUND):
        assert [(await outcome).fault for _, outcome in calls[1::2]] == [None] * 10
    assert instance.in_flight == 0


async def test_a_leased_server_that_forgets_its_session_is_lost(bench: Bench, address: str) -> None:
    instance = await bench.start(bench.http_spec(f"{address}/mcp"))
    await tell(bench, address, "forget")
    fault = (await bench.call(instance, "echo")).fault
    assert fault is not None
    assert (fault.reason, fault.started) == (Reason.SERVER_LOST, "no")
    async with asyncio.timeout(BOUND):
        closed, why = await bench.closed.get()
    assert closed is instance
    assert why is not None
    assert "does not know its MCP session any more" in why.message
    assert (await state(bench, address))["sessions"] == []


async def test_who_follows_a_resource_does_so_in_the_other_session_too(bench: Bench) -> None:
    async with bench.serving("http_raw", "--legacy", "--get", "--follow") as address:
        instance = await shared(bench, address)
        told: asyncio.Queue[str] = asyncio.Queue()
        followed = instance.follow("note://a", told.put_nowait, lambda _: None)
        async with asyncio.timeout(BOUND):
            assert await told.get() == ""
            await tell(bench, address, "forget")
            await bench.text(instance, "echo")
            # What changed between the two sessions nobody knows.
            assert [await told.get(), await told.get()] == ["", "note://a"]
            while (await state(bench, address))["streams"] != 1:
                await asyncio.sleep(0.005)
            async with bench.http.post(f"{address}/update", data="note://a/part"):
                assert await told.get() == "note://a/part"
        assert (await state(bench, address))["followed"] == ["note://a"] * 2
        followed.cancel("enough")
