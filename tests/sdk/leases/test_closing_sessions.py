"""The release of leases when a session or a client closes."""

from __future__ import annotations

import asyncio

import pytest
from tests.sdk.fakes import BOUND, FakeControlPlane, FakeWorker, Gate, until

from leaseway.sdk import AsyncClient


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
        assert client.session("dialog").leases() == []


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


async def test_closing_the_client_releases_the_leases_of_open_sessions(
    plane: FakeControlPlane, worker: FakeWorker
) -> None:
    client = AsyncClient(plane.address)
    await client.session("dialog").call_tool("desk_open")
    await client.close()
    assert len(worker.released) == 1
