"""Which workers a client sends its shared calls to."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sdk.fakes import BOUND, FakeControlPlane, FakeWorker, never, until

from leaseway.sdk import AsyncClient
from leaseway.sdk.transport.identity import ClientIdentity
from leaseway.sdk.transport.workers import ServingWorkers, WorkerPool, WorkerRun, rendezvous
from leaseway.wire.bounds import WORKERS_PER_CLIENT

NUMBERS = st.integers(0, 2**64 - 1)
LENGTHS = st.integers(1, 60)


def fleet(count: int, incarnation: str = "run") -> ServingWorkers:
    return ServingWorkers(
        WorkerRun(f"w{number}", incarnation, f"127.0.0.1:{number + 1}") for number in range(count)
    )


@pytest.fixture
async def pool() -> AsyncIterator[WorkerPool]:
    pool = WorkerPool(ClientIdentity("127.0.0.1:1", "", "", None))
    yield pool
    await pool.close()


@given(NUMBERS, LENGTHS, st.data())
def test_a_worker_that_leaves_changes_at_most_one_of_the_chosen(
    client: int, count: int, data: st.DataObject
) -> None:
    workers = fleet(count)
    leaving = data.draw(st.sampled_from(workers))
    before = set(rendezvous(workers, client))
    after = set(rendezvous([worker for worker in workers if worker != leaving], client))
    assert len(before) == min(count, WORKERS_PER_CLIENT)
    assert before - after <= {leaving}
    assert len(after - before) <= 1


@given(NUMBERS, LENGTHS)
def test_a_restarted_worker_takes_its_own_place(client: int, count: int) -> None:
    chosen = rendezvous(fleet(count), client)
    again = rendezvous(fleet(count, "next run"), client)
    assert [worker.id for worker in again] == [worker.id for worker in chosen]


def test_all_workers_of_a_fleet_are_used_by_some_clients() -> None:
    clients = [random.getrandbits(64) for _ in range(2_000)]
    uses = Counter(worker for client in clients for worker in rendezvous(fleet(100), client))
    average = 2_000 * WORKERS_PER_CLIENT / 100
    assert len(uses) == 100
    assert max(uses.values()) < 1.5 * average


@pytest.mark.parametrize("count", [WORKERS_PER_CLIENT, WORKERS_PER_CLIENT + 1, 1_000])
async def test_a_client_has_connections_to_a_bounded_number_of_workers(
    pool: WorkerPool, count: int
) -> None:
    workers = fleet(count)
    picked = {pool.pick(workers).worker for _ in range(200)}
    assert len(picked) <= WORKERS_PER_CLIENT
    again = {pool.pick(workers).worker for _ in range(200)}
    assert len(picked | again) <= WORKERS_PER_CLIENT


async def test_a_call_avoids_workers_beyond_those_of_its_client(pool: WorkerPool) -> None:
    workers = fleet(40)
    near = {pool.pick(workers).worker for _ in range(500)}
    assert pool.pick(workers, near).worker not in near
    assert pool.pick(workers, set(workers)).worker in workers


async def test_calls_in_flight_are_spread_over_many_workers(plane: FakeControlPlane) -> None:
    workers = [FakeWorker(f"worker-{number}") for number in range(8)]
    for worker in workers:
        worker.answer = never
        await worker.start()
    plane.workers = workers
    client = AsyncClient(plane.address)
    try:
        calls = [asyncio.create_task(client.call_tool("time_now")) for _ in range(80)]
        async with asyncio.timeout(BOUND):
            await until(lambda: sum(len(worker.calls) for worker in workers) == 80)
        assert max(len(worker.calls) for worker in workers) <= 20
    finally:
        await client.close()
        await asyncio.gather(*calls, return_exceptions=True)
        for worker in workers:
            await worker.stop()
