"""The clock of a control plane stands still while its process does not run."""

from __future__ import annotations

import asyncio
from collections import Counter

from tests.conftest import BOUND
from tests.control_plane.core.builders import hello, lease

from leaseway.control_plane.awake_clock import BEAT, AwakeClock
from leaseway.control_plane.core.moment import Moment
from leaseway.control_plane.plane import Plane
from leaseway.wire import bounds


class Machine:
    """A plane whose machine can pause."""

    def __init__(self) -> None:
        self.seconds = 1_000.0
        self.clock = AwakeClock(self._seconds, self._seconds)
        self.plane = Plane(epoch=1, clock=self.clock)

    def _seconds(self) -> float:
        return self.seconds

    def pause(self, seconds: float) -> None:
        self.seconds += seconds
        self._tick()

    def run(self, seconds: float) -> None:
        for _ in range(int(seconds / BEAT)):
            self.seconds += BEAT
            self._tick()

    def _tick(self) -> None:
        with self.plane.transition() as (state, now):
            state.tick(now)


def test_a_pause_does_not_end_the_time_in_which_workers_join_again() -> None:
    machine = Machine()
    machine.run(1.0)
    machine.pause(40.0)
    state = machine.plane.state
    assert not state.settled
    assert state.settling_remaining(machine.clock()) == bounds.SETTLING - 1.0 - BEAT
    machine.run(bounds.SETTLING - 1.0)
    assert state.settled


def test_a_worker_that_joins_again_after_a_pause_of_all_keeps_its_leases() -> None:
    machine = Machine()
    machine.run(bounds.SETTLING)
    state, held = machine.plane.state, lease("L1", "w1")
    joined = hello(leases=(held,))
    state.handle_worker_joined(joined, machine.clock())
    state.handle_worker_disconnected("w1", machine.clock())
    machine.pause(40.0)
    assert not state.roster.lost
    assert state.placements.has_lease(held.key)
    state.handle_worker_joined(joined, machine.clock())
    machine.run(bounds.WORKER_LOST_AFTER)
    assert list(state.placements.leases) == ["L1"]


def test_a_worker_that_stays_away_while_the_control_plane_runs_is_lost() -> None:
    machine = Machine()
    machine.run(bounds.SETTLING)
    state = machine.plane.state
    state.handle_worker_joined(hello(), machine.clock())
    state.handle_worker_disconnected("w1", machine.clock())
    machine.pause(40.0)
    machine.run(bounds.WORKER_LOST_AFTER)
    assert list(state.roster.lost) == ["w1"]


def test_the_clock_loses_nothing_while_it_is_read_often_and_unix_time_never() -> None:
    machine = Machine()
    machine.run(600.0)
    assert machine.clock() == Moment(1_600.0, 1_600.0)
    machine.pause(40.0)
    assert machine.clock() == Moment(1_600.0 + BEAT, 1_640.0)


async def test_a_running_plane_reads_its_clock_also_while_nothing_is_due() -> None:
    machine, enough = Machine(), asyncio.Event()
    machine.run(bounds.SETTLING)
    assert machine.plane.state.next_deadline() is None
    reads = Counter[int]()

    def counting() -> Moment:
        reads[machine.plane.transitions] += 1
        if reads[machine.plane.transitions] == 12:  # a transition itself reads it fewer times
            enough.set()
        return machine.clock()

    machine.plane.clock = counting
    running = asyncio.create_task(machine.plane.run())
    try:
        async with asyncio.timeout(BOUND):
            await enough.wait()
    finally:
        running.cancel()
