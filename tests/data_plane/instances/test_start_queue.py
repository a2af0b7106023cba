"""Places for starts of processes: a burst waits, callers come first, nothing blocks for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
from tests.conftest import BOUND
from tests.data_plane.conftest import worker_bench
from tests.data_plane.doubles.servers import MemoryInstance

from leaseway.data_plane.instances.start_queue import StartQueue, StartTurn
from leaseway.spec.kinds.table import server_spec
from leaseway.spec.model import InstancePolicy, VariantKey
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.timing.backoff import Backoff

Bench = Any


@pytest.fixture
async def narrow() -> AsyncIterator[Bench]:
    """A worker on which two processes start at the same time, and whose starts wait for a gate."""
    async with worker_bench(64, concurrent_starts=2) as bench:
        bench.servers.gate = asyncio.Event()
        yield bench


def begun(bench: Bench) -> list[MemoryInstance]:
    return [server for server in bench.servers.opened if server.resolved_values is not None]


async def ask(bench: Bench, *sessions: str) -> list[asyncio.Task[Any]]:
    """Ask for leases, and wait until the worker has an instance for each."""
    known = len(bench.servers.opened)
    asked = [asyncio.create_task(bench.acquire(session)) for session in sessions]
    await bench.until(lambda: len(bench.servers.opened) == known + len(sessions))
    return asked


async def test_a_burst_of_leases_starts_a_few_processes_at_a_time(narrow: Bench) -> None:
    await narrow.serve("db", shared=False)
    asked = await ask(narrow, *(f"s{number}" for number in range(6)))
    report = await narrow.plane.expect_report(lambda report: len(report.instances) == 6)
    states = [instance.state for instance in report.instances]
    assert (states.count("starting"), states.count("queued")) == (2, 4)
    assert len(begun(narrow)) == 2
    totals = narrow.worker.state.totals()
    assert totals["leaseway.starts.waiting"] == 4
    assert totals["leaseway.starts.wait.oldest"] > 0
    narrow.servers.gate.set()
    leases = await asyncio.gather(*asked)
    assert len({lease.instance_id for lease in leases}) == 6
    assert narrow.worker.state.totals()["leaseway.starts.waiting"] == 0


async def test_a_server_on_the_network_needs_no_place(narrow: Bench) -> None:
    await narrow.serve("db", shared=False)
    asked = await ask(narrow, "s1", "s2")
    remote = server_spec(
        VariantKey("mail"),
        "streamable_http",
        url="http://127.0.0.1:1/mcp",
        truely_stateless=True,
        instances=InstancePolicy(start="eager"),
    )
    await narrow.push(narrow.upsert(remote))
    await narrow.until(lambda: len(begun(narrow)) == 3)
    narrow.servers.gate.set()
    await asyncio.gather(*asked)


async def test_a_caller_who_gives_up_leaves_the_queue(narrow: Bench) -> None:
    await narrow.serve("db", shared=False)
    asked = await ask(narrow, "s1", "s2")
    (queued,) = await ask(narrow, "s3")
    queued.cancel()
    await narrow.until(lambda: len(tuple(narrow.worker.leases.leases)) == 2)
    narrow.servers.gate.set()
    await asyncio.gather(*asked)
    assert len(begun(narrow)) == 2


async def test_queued_starts_of_a_server_that_has_failed_too_often_do_not_start(
    narrow: Bench,
) -> None:
    await narrow.serve(
        "db", shared=False, instances=InstancePolicy(restart=Backoff(BOUND, BOUND, 1.0))
    )
    narrow.servers.faults = [Fault(Reason.SERVER_NOT_READY, "no licence")] * 20
    asked = await ask(narrow, *(f"s{number}" for number in range(12)))
    narrow.servers.gate.set()
    _, late = await asyncio.wait(asked, timeout=BOUND)
    assert not late
    assert len(begun(narrow)) < 8
    assert all("no licence" in str(task.exception()) for task in asked)


async def test_a_shared_server_that_is_called_starts_before_spares(narrow: Bench) -> None:
    eager = InstancePolicy(start="eager")
    await narrow.serve("db", shared=False)
    asked = await ask(narrow, "s1", "s2")
    await narrow.serve("spare", shared=False, instances=eager)
    await narrow.serve("called", instances=eager)
    await narrow.until(lambda: len(narrow.servers.opened) == 4)
    call = asyncio.create_task(narrow.caller().call("called"))
    await narrow.until(lambda: narrow.worker.executor.in_flight)
    order = [server.spec.key.server_id for server in narrow.servers.opened]
    assert order[2:] == ["spare", "called"]
    live = narrow.worker.pool.resolve("called", "").instances
    await narrow.until(lambda: all(each.turn.awaited for each in live))
    narrow.servers.gate.set()
    await asyncio.gather(*asked)
    await call


async def test_callers_come_first_also_if_they_begin_to_wait_later() -> None:
    queue, order = StartQueue(1), list[str]()
    turns = {name: StartTurn() for name in ("first", "spare", "called")}

    async def start(name: str) -> None:
        async with queue.place(turns[name]):
            order.append(name)
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(start(name)) for name in turns]
    await asyncio.sleep(0)
    queue.promote(turns["called"], "a")
    async with asyncio.timeout(BOUND):
        await asyncio.gather(*tasks)
    assert order == ["first", "called", "spare"]
    assert queue.waiting == 0


async def test_a_start_that_hangs_gives_up_its_place() -> None:
    queue = StartQueue(1, hold=0.01)
    async with asyncio.timeout(BOUND), queue.place(StartTurn()), queue.place(StartTurn()):
        assert queue.waiting == 0


async def test_one_that_is_cancelled_when_it_gets_a_place_passes_it_on() -> None:
    queue = StartQueue(1)
    turns = StartTurn(), StartTurn()

    async def start(turn: StartTurn) -> None:
        async with queue.place(turn):
            pass

    async with queue.place(StartTurn()):
        cancelled, other = (asyncio.create_task(start(turn)) for turn in turns)
        await asyncio.sleep(0)
        assert all(map(queue.is_waiting, turns))
    assert list(map(queue.is_waiting, turns)) == [False, True]
    cancelled.cancel()  # it has the place, and has not run since
    async with asyncio.timeout(BOUND):
        await other
        with suppress(asyncio.CancelledError):
            await cancelled
        async with queue.place(StartTurn()):
            assert queue.waiting == 0
