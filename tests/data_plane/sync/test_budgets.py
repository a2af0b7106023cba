"""Questions for permits of limits, and what follows their answers."""

from __future__ import annotations

import asyncio

import pytest

from leaseway.data_plane.core.tools.budgets import Demand, PermitNeeded
from leaseway.data_plane.sync.budgets import Permits
from leaseway.data_plane.sync.outgoing import MAX_QUEUED, Outgoing
from leaseway.v1 import sync_pb2
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.budgets import budget_key_to_proto
from leaseway.wire.sharing.limits import BudgetGrant, BudgetKey
from leaseway.wire.timing.durations import duration

KEY = BudgetKey("acme", "calls")
DEMAND = Demand(KEY, 6, 60.0)
BOUND = 10.0


def joined() -> tuple[Permits, asyncio.Queue[sync_pb2.SyncRequest]]:
    """Return the permits of a worker in a fleet of three, and its messages."""
    outgoing = Outgoing("control-plane:1")
    permits, queue = Permits(outgoing), outgoing.open()
    permits.handle_welcome(sync_pb2.Welcome(fleet=sync_pb2.Fleet(workers=3, position=0)))
    return permits, queue


async def get(permits: Permits, bound: float = BOUND) -> None:
    await permits.get([DEMAND], asyncio.get_running_loop().time() + bound)


async def next_ask(queue: asyncio.Queue[sync_pb2.SyncRequest]) -> sync_pb2.BudgetAsk:
    async with asyncio.timeout(BOUND):
        return (await queue.get()).budget_ask


async def test_calls_that_arrive_together_ask_once_and_all_try_again() -> None:
    permits, queue = joined()
    calls = [asyncio.create_task(get(permits)) for _ in range(3)]
    assert (await next_ask(queue)).needed == 3
    grant = sync_pb2.BudgetGrant(key=budget_key_to_proto(KEY), granted=3)
    grant.renews_in.CopyFrom(duration(60.0))
    permits.handle_grant(grant)
    async with asyncio.timeout(BOUND):
        await asyncio.gather(*calls)
    now = asyncio.get_running_loop().time()
    for _ in range(3):
        permits.budgets.take([DEMAND], now)
    with pytest.raises(PermitNeeded):
        permits.budgets.take([DEMAND], now)
    assert queue.empty()


async def test_a_call_waits_for_an_answer_for_a_bounded_time() -> None:
    permits, queue = joined()
    with pytest.raises(Fault) as raised:
        await get(permits, bound=0.01)
    assert (raised.value.reason, raised.value.started) == (Reason.RATE_LIMITED, "no")
    assert (await next_ask(queue)).needed == 1
    again = asyncio.create_task(get(permits))
    assert (await next_ask(queue)).needed == 1, "the next call asks again"
    permits.handle_loss()
    async with asyncio.timeout(BOUND):
        await again


async def test_an_answer_that_comes_together_with_the_end_of_the_wait_counts() -> None:
    permits, _ = joined()

    class Lost(Outgoing):
        def send_all(self, _messages: object) -> None:
            permits.handle_loss()  # in the step of the loop in which the time is over

    permits._outgoing = Lost("control-plane:1")
    await get(permits, bound=0.0)


async def test_a_worker_tells_what_it_has_then_that_it_has_told_all() -> None:
    permits, queue = joined()
    now = asyncio.get_running_loop().time()
    permits.budgets.ask(DEMAND, 1, now)
    permits.budgets.handle_grant(
        BudgetGrant(key=KEY, granted=2, remaining=3, renews_in=60.0, retry_in=0.0), now
    )
    permits.handle_grant(sync_pb2.BudgetGrant(fleet=sync_pb2.Fleet(workers=4, position=1)))
    permits.handle_loss()
    fleet = sync_pb2.Fleet(workers=1, takes_told=True)
    permits.handle_welcome(sync_pb2.Welcome(fleet=fleet))
    told, ended = queue.get_nowait(), queue.get_nowait()
    assert (told.budget_ask.held, told.budget_ask.leased) == (2, 3)
    assert ended.budgets_told.workers == 4
    assert queue.empty()


async def test_a_control_plane_that_leases_no_budgets_leaves_limits_to_the_worker() -> None:
    permits, queue = joined()
    permits.handle_welcome(sync_pb2.Welcome())
    assert permits.budgets.fleet is None
    assert queue.empty()


async def test_a_worker_with_permits_of_many_limits_joins_again() -> None:
    outgoing = Outgoing("control-plane:1")
    permits = Permits(outgoing)
    outgoing.open()
    welcome = sync_pb2.Welcome(fleet=sync_pb2.Fleet(workers=3, position=0))
    permits.handle_welcome(welcome)
    now = asyncio.get_running_loop().time()
    many = 2 * MAX_QUEUED
    for number in range(many):
        key = BudgetKey(f"tenant-{number}", "calls")
        permits.budgets.ask(Demand(key, 6, 60.0), 1, now)
        permits.budgets.handle_grant(
            BudgetGrant(key=key, granted=2, remaining=4, renews_in=60.0, retry_in=0.0), now
        )
    permits.handle_loss()
    told = outgoing.open()
    permits.handle_welcome(welcome)
    for _ in range(MAX_QUEUED):
        outgoing.send(sync_pb2.SyncRequest(pulse=sync_pb2.Pulse()))
    assert (told.qsize(), outgoing.overfull.is_set()) == (many + MAX_QUEUED, False)
    outgoing.send(sync_pb2.SyncRequest(pulse=sync_pb2.Pulse()))
    assert outgoing.overfull.is_set(), "nobody reads"
