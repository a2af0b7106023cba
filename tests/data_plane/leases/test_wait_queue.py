"""The wait queue for leases: order, limits, and what ends a wait."""

from __future__ import annotations

import asyncio
import random

import pytest
from tests.conftest import BOUND
from tests.data_plane.conftest import rpc_fault, worker_bench
from tests.data_plane.leases.test_manager import Bench, acquire

from leaseway.data_plane.core.leases.table import LeaseLimitReached, LeaseTable, WorkerLease
from leaseway.data_plane.leases.wait_queue import Granted, LeaseWaitQueue
from leaseway.spec.model import InstancePolicy, VariantKey
from leaseway.v1 import leases_pb2
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.names import LeaseKey
from leaseway.wire.timing.durations import duration


class Room:
    """A lease table with a wait queue, and the order of the grants."""

    def __init__(self, capacity: int = 1, server_limit: int = 256) -> None:
        self.table = LeaseTable("run", capacity)
        self.queue = LeaseWaitQueue()
        self.server_limit = server_limit
        self.order: list[str] = []

    async def acquire(self, session: str, server: str = "db", wait: float = BOUND) -> WorkerLease:
        key = LeaseKey("default", session, server)

        def attempt() -> Granted:
            lease, created = self.table.acquire(
                key,
                0.0,
                variant=VariantKey(server),
                launch_hash="h",
                server_limit=self.server_limit,
            )
            self.order.append(session)
            return lease, created, None

        try:
            return attempt()[0]
        except LeaseLimitReached as error:
            limit = error
        return (await self.queue.wait(key, attempt, limit, wait))[0]

    def release(self, lease: WorkerLease) -> None:
        self.table.end(lease.id, "released", 0.0)
        self.queue.serve()


async def queued(room: Room, *names: str, server: str = "db") -> list[asyncio.Task[WorkerLease]]:
    """Queue sessions in this order."""
    tasks = []
    for name in names:
        tasks.append(asyncio.create_task(room.acquire(name, server)))
        waiting = len(room.queue)
        async with asyncio.timeout(BOUND):
            while len(room.queue) == waiting:
                await asyncio.sleep(0)
    return tasks


async def test_callers_are_served_in_order() -> None:
    room = Room()
    held = await room.acquire("first")
    tasks = await queued(room, "a", "b", "c")
    for task in tasks:
        room.release(held)
        async with asyncio.timeout(BOUND):
            held = await task
    assert room.order == ["first", "a", "b", "c"]


@pytest.mark.parametrize("capacity", [1, 9])
async def test_waiters_for_the_same_lease_are_served_together(capacity: int) -> None:
    room = Room(capacity, server_limit=1)
    held = await room.acquire("first")
    first, other, second = await queued(room, "mine", "theirs", "mine")
    room.release(held)
    async with asyncio.timeout(BOUND):
        assert (await second).id == (await first).id
    assert not other.done()
    other.cancel()


async def test_a_newcomer_does_not_overtake_waiters() -> None:
    room = Room()
    held = await room.acquire("first")
    [patient] = await queued(room, "patient")
    room.release(held)
    with pytest.raises(LeaseLimitReached):
        await room.acquire("newcomer", wait=0)
    async with asyncio.timeout(BOUND):
        await patient
    assert room.order == ["first", "patient"]


async def test_one_place_wakes_one_caller() -> None:
    room = Room()
    held = await room.acquire("first")
    tasks = await queued(room, "a", "b", "c")
    room.release(held)
    async with asyncio.timeout(BOUND):
        await tasks[0]
    assert len(room.queue) == 2
    room.queue.reject_all(Fault(Reason.DRAINING, "over"))
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_full_server_does_not_hold_up_callers_of_another_one() -> None:
    room = Room(capacity=2, server_limit=1)
    first, other = await room.acquire("first", "db"), await room.acquire("other", "fs")
    [of_db] = await queued(room, "of db", server="db")
    [of_fs] = await queued(room, "of fs", server="fs")
    room.release(other)
    async with asyncio.timeout(BOUND):
        await of_fs
    assert not of_db.done()
    room.release(first)
    async with asyncio.timeout(BOUND):
        await of_db


async def test_a_cancelled_waiter_takes_no_place() -> None:
    room = Room()
    held = await room.acquire("first")
    cancelled, next_one = await queued(room, "gone", "next")
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    room.release(held)
    async with asyncio.timeout(BOUND):
        await next_one
    assert room.order == ["first", "next"]


async def test_a_wait_ends_with_its_time_and_a_fault_ends_every_wait() -> None:
    room = Room()
    await room.acquire("first")
    with pytest.raises(LeaseLimitReached):
        await room.acquire("hasty", wait=0.01)
    tasks = await queued(room, "a", "b")
    room.queue.reject_all(Fault(Reason.DRAINING, "over"))
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert [end.reason for end in ends if isinstance(end, Fault)] == [Reason.DRAINING] * 2
    assert not len(room.queue)


@pytest.mark.parametrize("seed", range(10))
async def test_under_contention_every_caller_is_served_within_the_limits(seed: int) -> None:
    draw, room = random.Random(seed), Room(capacity=3, server_limit=2)
    held = 0

    async def live(number: int) -> None:
        nonlocal held
        for round_ in range(5):
            lease = await room.acquire(f"{number}-{round_}", draw.choice(["db", "fs"]))
            held = max(held, len(room.table))
            for _ in range(draw.randrange(4)):
                await asyncio.sleep(0)
            room.release(lease)

    async with asyncio.timeout(BOUND):
        await asyncio.gather(*(live(number) for number in range(20)))
    assert held <= 3
    assert len(room.order) == 100
    assert not len(room.queue)
    assert not len(room.table)


async def test_a_worker_that_shuts_down_rejects_waiters(bench: Bench) -> None:
    await bench.serve("db", shared=False, instances=InstancePolicy(max_instances=1))
    await acquire(bench, "s1")
    waiting = asyncio.ensure_future(rpc_fault(acquire(bench, "s2", wait=duration(60))))
    await bench.until(lambda: bench.worker.leases.waiting)
    bench.worker.leases.reject_new(bench.worker.executor.draining_fault())
    async with asyncio.timeout(BOUND):
        assert (await waiting).reason is Reason.DRAINING
    assert (await rpc_fault(acquire(bench, "s3"))).reason is Reason.DRAINING


async def test_a_raised_limit_serves_waiters(bench: Bench) -> None:
    await bench.serve("db", shared=False, instances=InstancePolicy(max_instances=1))
    await acquire(bench, "s1")
    waiting = asyncio.ensure_future(acquire(bench, "s2", wait=duration(60)))
    await bench.until(lambda: bench.worker.leases.waiting)
    await bench.serve("db", shared=False, instances=InstancePolicy(max_instances=2))
    async with asyncio.timeout(BOUND):
        assert (await waiting).lease.session == "s2"
    held = await bench.leases.ListLeases(leases_pb2.ListLeasesRequest())
    assert len(held.leases) == 2


async def test_a_waiter_whose_instance_does_not_start_gets_the_fault(bench: Bench) -> None:
    limits = InstancePolicy(start="lazy", max_instances=1)
    await bench.serve("db", shared=False, instances=limits)
    held = await acquire(bench)
    waiting = asyncio.ensure_future(acquire(bench, "s2", wait=duration(BOUND)))
    await bench.until(lambda: bench.worker.leases.waiting == 1)
    # It starts, and fails, before the waiter's turn of the loop.
    bench.servers.faults = [Fault(Reason.SERVER_NOT_READY, "no such command")]
    request = leases_pb2.ReleaseLeaseRequest(lease_id=held.lease.id, session=held.lease.session)
    await bench.leases.ReleaseLease(request)
    fault = await rpc_fault(waiting)
    assert (fault.reason, fault.message) == (Reason.SERVER_NOT_READY, "no such command")
    assert not tuple(bench.worker.leases.leases)


async def test_a_lease_that_ends_before_its_waiter_runs_is_not_granted(bench: Bench) -> None:
    await bench.serve("db", shared=False, instances=InstancePolicy(max_instances=1))
    held = await acquire(bench)
    leases = bench.worker.leases
    acquiring = asyncio.ensure_future(leases.acquire(LeaseKey("default", "s2", "db"), wait=BOUND))
    await bench.until(lambda: leases.waiting == 1)
    leases.release(held.lease.id)
    [lease] = leases.leases
    leases.revoke(lease.id, "somebody asked for it")
    with pytest.raises(Fault) as refusal:
        await acquiring
    assert refusal.value.reason is Reason.LEASE_REVOKED


async def test_a_worker_without_capacity_grants_no_lease() -> None:
    async with worker_bench(capacity=0) as bench:
        assert bench.first_hello.capacity == 0
        await bench.serve("db", shared=False)
        assert (await rpc_fault(acquire(bench))).reason is Reason.CAPACITY


async def test_a_tenant_that_fills_the_queue_makes_place_for_another() -> None:
    queue, full = LeaseWaitQueue(), LeaseLimitReached("The worker is full.")

    def never() -> Granted:
        raise full

    def asked(tenant: str, number: int) -> asyncio.Task[Granted]:
        key = LeaseKey(tenant, f"s{number}", "db")
        return asyncio.create_task(queue.wait(key, never, full, BOUND))

    greedy = [asked("greedy", number) for number in range(bounds.MAX_WAITING)]
    other = asked("other", 0)
    with pytest.raises(LeaseLimitReached):
        await greedy[-1]
    assert not other.done()
    assert len(queue) == bounds.MAX_WAITING
    for task in (*greedy, other):
        task.cancel()
    await asyncio.gather(*greedy, other, return_exceptions=True)
