"""The release of leases when a session or a client closes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection

import pytest
from tests.calls import ReceivedCall
from tests.sdk.fakes import BOUND, FakeControlPlane, FakeWorker, Gate, text_result, until

from leaseway.sdk import AsyncClient, Cancelled
from leaseway.wire.bounds import LEASE_IDLE
from leaseway.wire.errors import Fault, Reason


async def test_closing_a_session_releases_what_this_client_acquired(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker
) -> None:
    async with AsyncClient(plane.address) as other:
        shared = await other.session("dialog").acquire("desk")
        plane.add("board", "draw", shared=False)
        worker.stateful.add("board")
        async with client.session("dialog") as session:
            assert await session.acquire("desk") == shared
            own = (await session.call_tool("board_draw")).new_lease
            assert own is not None
        assert worker.released == [own.id]
        assert worker.left == [(shared.id, 0.0)]  # for this client only
        assert client.session("dialog").leases() == []


async def test_a_cancellation_at_the_end_of_a_block_keeps_no_lease(
    client: AsyncClient, worker: FakeWorker
) -> None:
    session = client.session("dialog")
    await session.__aenter__()
    lease = await session.acquire("desk")
    leaving = asyncio.create_task(session.__aexit__(None, None, None))
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    await until(lambda: worker.released == [lease.id])


async def test_a_cancellation_at_the_end_of_a_client_keeps_no_lease(
    plane: FakeControlPlane, worker: FakeWorker
) -> None:
    client = AsyncClient(plane.address)
    lease = await client.acquire("desk")
    closing = asyncio.create_task(client.__aexit__(None, None, None))
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await until(lambda: worker.released == [lease.id])


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("ticks", range(12))
async def test_a_call_ends_with_its_client_however_far_it_has_come(
    plane: FakeControlPlane, worker: FakeWorker, ticks: int, is_known: bool
) -> None:
    client = AsyncClient(plane.address)
    if is_known:
        await client.call_tool("time_now")
    worker.answer = Gate()
    call = asyncio.create_task(client.call_tool("time_now"))
    for _ in range(ticks):
        await asyncio.sleep(0)
    await client.close()
    async with asyncio.timeout(BOUND):
        with pytest.raises((Cancelled, RuntimeError), match="closed"):
            await call


async def test_a_lease_granted_after_its_session_closed_is_released(
    client: AsyncClient, worker: FakeWorker
) -> None:
    worker.answer = gate = Gate()
    async with client.session("dialog") as session:
        call = asyncio.create_task(session.call_tool("desk_open"))
        await until(lambda: worker.calls)
    assert worker.released == []
    gate.open()
    async with asyncio.timeout(BOUND):
        result = await call
    late = result.new_lease
    assert late is not None
    await until(lambda: worker.released == [late.id])
    assert session.leases() == []


async def test_a_call_or_acquisition_that_is_given_up_after_its_block_leaves_no_lease(
    client: AsyncClient, worker: FakeWorker
) -> None:
    worker.answer = Gate()
    worker.answers_acquires.clear()
    async with client.session("called") as called:
        call = asyncio.create_task(called.call_tool("desk_open"))
        await until(lambda: worker.calls)
    async with client.session("acquired") as acquired:
        acquisition = asyncio.create_task(acquired.acquire("desk"))
        await until(lambda: worker.acquires)
    assert len(worker.leases) == 2
    for task in (call, acquisition):
        task.cancel()
    await until(lambda: not worker.leases)
    assert len(worker.released) == 2


async def test_a_reopened_session_keeps_the_lease_of_a_call_in_flight(
    client: AsyncClient, worker: FakeWorker
) -> None:
    worker.answer = gate = Gate()
    async with client.session("dialog") as session:
        call = asyncio.create_task(session.call_tool("desk_open"))
        await until(lambda: worker.calls)
    async with client.session("dialog") as again:
        gate.open()
        async with asyncio.timeout(BOUND):
            result = await call
        assert [lease.id for lease in again.leases()] == [result.new_lease and result.new_lease.id]
        assert worker.released == []
    assert len(worker.released) == 1


async def test_a_session_entered_twice_closes_with_its_last_block(
    client: AsyncClient, worker: FakeWorker
) -> None:
    async with client.session("dialog") as session:
        await session.acquire("desk")
        async with client.session("dialog") as again:
            assert again is session
        assert worker.released == []
        await session.call_tool("desk_open")
    assert len(worker.released) == 1
    with pytest.raises(RuntimeError, match="is closed"):
        await session.call_tool("desk_open")


async def test_closing_the_client_keeps_the_leases_of_sessions_until_they_are_idle(
    plane: FakeControlPlane, worker: FakeWorker
) -> None:
    client = AsyncClient(plane.address)
    limits: dict[str, float | None] = {"plain": None, "brief": 30.0, "endless": math.inf}
    kept: dict[str, float] = {}
    for key, idle in limits.items():
        lease = (await client.session(key, idle=idle).call_tool("desk_open")).new_lease
        assert lease is not None
        kept[lease.id] = LEASE_IDLE if idle in (None, math.inf) else 30.0
    await client.close()
    assert dict(worker.left) == kept
    assert worker.released == []


async def test_closing_the_client_releases_the_leases_of_blocks_and_of_no_session(
    plane: FakeControlPlane, worker: FakeWorker
) -> None:
    client = AsyncClient(plane.address)
    async with client.session("dialog") as session:
        own = (await client.call_tool("desk_open")).new_lease
        of_block = (await session.call_tool("desk_open")).new_lease
        await client.close()
    assert own is not None
    assert of_block is not None
    assert sorted(worker.released) == sorted([own.id, of_block.id])
    assert worker.left == []


async def test_closing_the_client_keeps_a_lease_that_an_abandoned_call_acquired(
    plane: FakeControlPlane, worker: FakeWorker
) -> None:
    client = AsyncClient(plane.address)
    worker.answer = Gate()
    call = asyncio.create_task(client.session("dialog", idle=30).call_tool("desk_open"))
    await until(lambda: worker.calls)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    await client.close()
    (lease,) = worker.leases.values()
    assert worker.left == [(lease.id, 30.0)]


async def test_a_call_that_is_placed_while_its_client_closes_acquires_no_lease(
    plane: FakeControlPlane, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = AsyncClient(plane.address)
    plane.hold_place = asyncio.Event()
    call = asyncio.create_task(client.session("dialog").call_tool("desk_open"))
    await until(lambda: plane.places)
    assert client._open_runtime is not None
    leases, hold = client._open_runtime.leases, plane.hold_place
    leave_all = leases.leave_all

    async def leave_slowly(ended: Collection[str]) -> None:
        await leave_all(ended)
        hold.set()
        await asyncio.wait([call])

    monkeypatch.setattr(leases, "leave_all", leave_slowly)
    await client.close()
    with pytest.raises(Cancelled, match="The client was closed") as error:
        await call
    assert error.value.started == "no"
    assert worker.leases == {}


async def test_calls_in_flight_say_that_their_client_was_closed_not_that_it_left_their_lease(
    plane: FakeControlPlane, worker: FakeWorker
) -> None:
    async def end_with_lease(fake: FakeWorker, call: ReceivedCall, arguments: bytes) -> bytes:
        if b"slow" in arguments:
            await until(lambda: fake.released)
            raise Fault(Reason.LEASE_RELEASED, "It was released.", "yes")
        return text_result("quick")

    worker.answer = end_with_lease
    client = AsyncClient(plane.address)
    async with client.session("dialog") as session:
        await session.call_tool("desk_open")
        call = asyncio.create_task(session.call_tool("desk_open", {"slow": True}))
        await until(lambda: len(worker.calls) == 2)
        assert client._open_runtime is not None
        await client._open_runtime.leases.leave_all({"dialog"})
        with pytest.raises(Cancelled, match="The client was closed") as error:
            await call
        assert error.value.started == "yes"
        await client.close()
