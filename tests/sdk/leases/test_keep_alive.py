"""Leases outlive their time to live while their client does, and no longer."""

from __future__ import annotations

import asyncio
import gc

import pytest
from tests.sdk.fakes import FakeControlPlane, FakeWorker, until

from leaseway.sdk import AsyncClient, LeaseExpired, LeaseRevoked
from leaseway.sdk.leases import lease as client_lease
from leaseway.sdk.leases.book import LeaseBook
from leaseway.sdk.transport.exchange import Exchange
from leaseway.sdk.transport.workers import WorkerRun
from leaseway.wire.errors import Fault, Reason


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renew leases of a minute every 0.2 s, so that they survive pauses of this process.

    A lease of a day is not renewed within the bound of any test.
    """
    monkeypatch.setattr(client_lease, "_RENEW_AT", 1 / 300)


async def test_an_idle_lease_is_renewed_at_a_third_of_its_time(
    client: AsyncClient, worker: FakeWorker
) -> None:
    loop = asyncio.get_running_loop()
    begun = loop.time()
    lease = await client.session("dialog").acquire("desk", ttl=4)
    first = lease.expires_at
    await until(lambda: len(worker.renewals) >= 2)
    assert loop.time() - begun > 2.5
    assert worker.renewals[0] == [lease.id]
    assert lease.expires_at > first


@pytest.mark.usefixtures("often")
async def test_one_keep_alive_renews_all_leases_on_a_worker(
    client: AsyncClient, worker: FakeWorker
) -> None:
    leases = [await client.session(key).acquire("desk", ttl=60) for key in "abc"]
    held = sorted(lease.id for lease in leases)
    await until(lambda: held in [sorted(renewed) for renewed in worker.renewals])


@pytest.mark.usefixtures("often")
async def test_renewals_continue_after_an_unexpected_error(
    client: AsyncClient,
    worker: FakeWorker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    renew, failed = Exchange.keep_alive, asyncio.Event()

    async def fail_once(exchange: Exchange, leases: list[str], sessions: list[str]) -> object:
        if not failed.is_set():
            failed.set()
            raise ValueError("odd")
        return await renew(exchange, leases, sessions)

    monkeypatch.setattr(Exchange, "keep_alive", fail_once)
    lease = await client.session("dialog").acquire("desk", ttl=60)
    await until(lambda: worker.renewals)
    assert failed.is_set()
    assert worker.renewals[0] == [lease.id]
    assert "could not be renewed" in caplog.text


@pytest.mark.usefixtures("often")
async def test_a_shorter_lease_brings_the_next_renewal_forward(
    client: AsyncClient, worker: FakeWorker
) -> None:
    await client.session("a").acquire("desk", ttl=86400)
    await client.session("b").acquire("desk", ttl=60)
    await until(lambda: worker.renewals)


async def test_a_lease_that_is_due_later_costs_no_look_at_all_leases_of_its_worker(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.session("first").acquire("desk", ttl=600)
    looks = 0
    look = LeaseBook.next_due

    def count_look(book: LeaseBook, held_by: WorkerRun) -> float | None:
        nonlocal looks
        looks += 1
        return look(book, held_by)

    monkeypatch.setattr(LeaseBook, "next_due", count_look)
    for number in range(20):
        await client.session(f"s{number}").acquire("desk", ttl=600)
    assert looks == 0


async def test_calls_renew_so_that_a_busy_lease_needs_no_keep_alive(
    client: AsyncClient, worker: FakeWorker
) -> None:
    loop = asyncio.get_running_loop()
    session = client.session("dialog")
    await session.acquire("desk", ttl=12)
    end = loop.time() + 4.5
    while loop.time() < end:
        await session.call_tool("desk_open")
        await asyncio.sleep(0.05)
    assert worker.renewals == []


@pytest.mark.usefixtures("often")
async def test_renewals_continue_without_a_control_plane(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker
) -> None:
    await client.session("dialog").acquire("desk", ttl=60)
    await plane.stop()
    await until(lambda: len(worker.renewals) >= 4)


@pytest.mark.usefixtures("often")
async def test_a_renewal_that_finds_the_lease_ended_fails_the_next_call(
    client: AsyncClient, worker: FakeWorker
) -> None:
    session = client.session("dialog")
    lease = await session.acquire("desk", ttl=60)
    worker.lease_faults[lease.id] = Fault(Reason.LEASE_REVOKED, "An operator ended it.")
    await until(lambda: not session.leases())
    with pytest.raises(LeaseRevoked, match="operator") as caught:
        await session.call_tool("desk_open")
    assert caught.value.lease_id == lease.id
    assert worker.calls == []


async def test_a_silent_worker_does_not_keep_a_lease_past_its_time(
    client: AsyncClient, worker: FakeWorker
) -> None:
    session = client.session("dialog")
    lease = await session.acquire("desk", ttl=1)
    worker.silent = True
    await until(lambda: not session.leases())
    with pytest.raises(LeaseExpired, match="could not be renewed") as caught:
        await session.call_tool("desk_open")
    assert caught.value.lease_id == lease.id
    assert worker.calls == []


@pytest.mark.usefixtures("often")
async def test_a_stream_that_was_cut_is_reopened_to_renew(
    client: AsyncClient, worker: FakeWorker
) -> None:
    lease = await client.session("dialog").acquire("desk", ttl=60)
    port = int(worker.ref.address.rpartition(":")[2])
    await until(lambda: worker.renewals)
    await worker.stop()
    await worker.start(port=port)
    done = len(worker.renewals)
    await until(lambda: len(worker.renewals) > done)
    assert lease in client.session("dialog").leases()


@pytest.mark.usefixtures("often")
async def test_a_released_lease_is_not_renewed(client: AsyncClient, worker: FakeWorker) -> None:
    session = client.session("dialog")
    await session.acquire("desk", ttl=60)
    other = await client.session("other").acquire("desk", ttl=60)
    await session.release("desk")
    await until(lambda: [other.id] in worker.renewals)  # those before may have been on their way
    done = len(worker.renewals)
    await until(lambda: len(worker.renewals) > done)
    assert worker.renewals[done] == [other.id]


@pytest.mark.usefixtures("often")
async def test_a_client_that_was_dropped_stops_renewing(
    plane: FakeControlPlane, worker: FakeWorker
) -> None:
    client = AsyncClient(plane.address)
    await client.session("dialog").acquire("desk", ttl=60)
    await client.call_tool("time_now")
    await until(lambda: worker.renewals)
    holder = [client]
    del client
    with pytest.warns(ResourceWarning, match="unclosed <AsyncClient"):
        holder.clear()
    gc.collect()
    await until(lambda: worker.open_streams == 0)
    await until(lambda: plane.watchers == 0)


async def test_a_session_keeps_its_client(plane: FakeControlPlane, worker: FakeWorker) -> None:
    session = AsyncClient(plane.address).session("dialog")
    gc.collect()
    assert (await session.call_tool("desk_open")).new_lease is not None
    client = session._client
    assert isinstance(client, AsyncClient)
    await client.close()
