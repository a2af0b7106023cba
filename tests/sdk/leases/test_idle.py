"""Leases that nobody calls for long are given back, and whoever comes later is told."""

from __future__ import annotations

import math

import pytest
from tests.sdk.fakes import FakeWorker, until

from leaseway.sdk import AsyncClient, InvalidRequest, LeaseReleased
from leaseway.wire.bounds import LEASE_IDLE


async def test_a_lease_without_calls_is_given_back_and_its_session_is_told(
    client: AsyncClient, worker: FakeWorker
) -> None:
    session = client.session("dialog", idle=0.2)
    lease = (await session.call_tool("desk_open")).new_lease
    assert lease is not None
    await until(lambda: worker.released == [lease.id])
    await until(lambda: not session.leases())
    for _ in range(2):
        with pytest.raises(LeaseReleased, match=r"no call had run on it for 0.2 s, its idle limit"):
            await session.call_tool("desk_open")
    await session.acquire("desk")
    assert (await session.call_tool("desk_open")).text == "{}"


async def test_a_lease_that_others_call_stays_until_they_are_idle_too(
    client: AsyncClient, worker: FakeWorker
) -> None:
    worker.idle = [0.0, 0.1]  # for how long it has been idle, as its worker knows
    session = client.session("dialog", idle=0.2)
    await session.acquire("desk")
    await until(lambda: bool(worker.released))
    assert worker.idle == [], "it was asked twice before"


async def test_a_worker_that_cannot_be_told_costs_no_lease(
    client: AsyncClient, worker: FakeWorker
) -> None:
    session = client.session("dialog", idle=0.2)
    await session.acquire("desk")
    (held,) = client._runtime().leases.book.held_leases("dialog")
    before = held.used_at
    await worker.stop()
    await until(lambda: held.used_at > before)  # it was tried, and is tried again later
    assert session.leases()


async def test_how_long_a_lease_may_rest_is_its_sessions_to_say(client: AsyncClient) -> None:
    async def limit(key: str) -> float:
        await client.session(key).acquire("desk")
        (held,) = client._runtime().leases.book.held_leases(key)
        return held.idle

    kept = client.session("kept", idle=math.inf)
    await kept.acquire("desk")
    assert await limit("kept") == math.inf
    assert await limit("plain") == LEASE_IDLE
    async with client.session("block"):
        assert await limit("block") == math.inf
    async with client.session("both", idle=60):
        assert await limit("both") == 60
    later = client.session("plain", idle=30)
    await later.acquire("desk")
    assert await limit("plain") == 30


@pytest.mark.parametrize("idle", [0, -1.0])
async def test_an_idle_limit_leaves_time_for_a_call(client: AsyncClient, idle: float) -> None:
    with pytest.raises(InvalidRequest, match=r"give more than 0"):
        client.session("dialog", idle=idle)
