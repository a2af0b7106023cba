"""The release of idle leases."""

from __future__ import annotations

import math

import pytest
from tests.sdk.fakes import FakeWorker, until

from leaseway.sdk import AsyncClient, InvalidRequest, LeaseReleased
from leaseway.wire.bounds import LEASE_IDLE


async def test_an_idle_lease_is_released_and_later_calls_fail(
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


async def test_a_lease_in_use_by_another_client_is_not_released(
    client: AsyncClient, worker: FakeWorker
) -> None:
    worker.idle = [0.0, 0.1]  # idle seconds that the worker reports
    session = client.session("dialog", idle=0.2)
    await session.acquire("desk")
    await until(lambda: bool(worker.released))
    assert worker.idle == [], "the worker reported twice that the lease was in use"


async def test_an_idle_lease_is_kept_if_its_worker_is_unreachable(
    client: AsyncClient, worker: FakeWorker
) -> None:
    session = client.session("dialog", idle=0.2)
    await session.acquire("desk")
    (held,) = client._runtime().leases.book.held_leases("dialog")
    before = held.used_at
    await worker.stop()
    await until(lambda: held.used_at > before)  # the release failed, and is retried later
    assert session.leases()


async def test_the_idle_limit_is_set_by_the_session(client: AsyncClient) -> None:
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
async def test_an_idle_limit_is_above_zero(client: AsyncClient, idle: float) -> None:
    with pytest.raises(InvalidRequest, match=r"pass more than 0"):
        client.session("dialog", idle=idle)
