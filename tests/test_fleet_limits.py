"""Limits over the fleet, simulated: a control plane's budgets and the shares of all workers."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leaseway.control_plane.core.budgets import Budgets
from leaseway.data_plane.core.tools.budgets import (
    SLICE,
    Demand,
    Fleet,
    LimitReached,
    PermitNeeded,
    WorkerBudgets,
)
from leaseway.wire.bounds import MAX_BUDGETS
from leaseway.wire.sharing.limits import BudgetAsk, BudgetKey

KEY = BudgetKey("acme", "calls")
SIX_A_MINUTE = Demand(KEY, 6, 60.0)
SLOTS = Demand(BudgetKey("acme", "concurrent"), 4)


class System:
    """A control plane and workers, whose messages arrive at once."""

    def __init__(self, workers: int, *, leases: bool = True) -> None:
        self.now = 1_000.0
        self.names = [f"w{number}" for number in range(workers)]
        self.workers = {name: WorkerBudgets() for name in self.names}
        self.plane: Budgets | None = None
        if leases:
            self.start_plane(is_first=True)

    def fleet(self, position: int) -> Fleet:
        return Fleet(len(self.names), position, takes_back=True)

    def start_plane(self, *, is_first: bool = False) -> None:
        self.plane = Budgets(self.now)
        for name in self.names:
            self.plane.handle_joined(name, had_leader=not is_first)
        for name in self.names:
            self.join(name)

    def join(self, name: str) -> None:
        assert self.plane is not None
        worker, position = self.workers[name], self.names.index(name)
        earlier = worker.fleet.workers if worker.fleet is not None else 0
        for told in worker.join(self.fleet(position), self.now):
            self.send(name, told)
        self.plane.handle_told(name, earlier)

    def start_empty_plane(self, *names: str) -> None:
        """Start a control plane that only some workers join."""
        self.kill_plane()
        self.plane = Budgets(self.now)
        for name in names:
            self.plane.handle_joined(name, had_leader=True)
            self.join(name)

    def kill_plane(self) -> None:
        self.plane = None
        for worker in self.workers.values():
            worker.lose(self.now)

    def kill_worker(self, name: str) -> None:
        self.names.remove(name)
        del self.workers[name]

    def send(self, name: str, ask: BudgetAsk) -> None:
        assert self.plane is not None
        grant = self.plane.ask(name, ask, self.names, len(self.names), self.now)
        if ask.needed:
            self.workers[name].handle_grant(grant, self.now)

    def call(self, name: str, *demands: Demand) -> float:
        """Call; return 0, or the seconds after which the next call is possible."""
        worker, limits = self.workers[name], demands or (SIX_A_MINUTE,)
        for _ in range(3):
            try:
                worker.take(limits, self.now)
            except LimitReached as reached:
                return reached.wait
            except PermitNeeded as permits:
                for demand in permits.demands:
                    self.send(name, worker.ask(demand, 1, self.now))
            else:
                return 0.0
        raise AssertionError("the worker keeps on asking")

    def return_idle(self) -> None:
        for name, worker in self.workers.items():
            for ask in worker.idle_permits(self.now):
                self.send(name, ask)


def calls_in_windows(times: list[float], start: float, period: float) -> list[int]:
    windows = int((times[-1] - start) // period) + 1
    return [
        sum(start + window * period <= time < start + (window + 1) * period for time in times)
        for window in range(windows)
    ]


@settings(deadline=None)
@given(
    st.sampled_from([1, 3, 10]),
    st.lists(st.floats(0.01, 1.0), min_size=10, max_size=10),
    st.integers(0, 2**32),
)
def test_six_a_minute_are_six_a_minute_at_any_split_of_the_load(
    workers: int, weights: list[float], seed: int
) -> None:
    system, chance = System(workers), random.Random(seed)
    passed = []
    for _ in range(600):
        name = chance.choices(system.names, weights[:workers])[0]
        if not system.call(name):
            passed.append(system.now)
        system.now += 0.5
    assert calls_in_windows(passed, passed[0], 60.0)[:5] == [6] * 5


@settings(deadline=None)
@given(st.integers(0, 2**32), st.floats(0, 200))
def test_the_share_of_a_lost_worker_returns_within_a_period(seed: int, lost_after: float) -> None:
    system, chance = System(3), random.Random(seed)
    start = system.now
    passed = []
    for step in range(720):
        if len(system.names) == 3 and step / 2 >= lost_after:
            system.kill_worker("w0")
        if not system.call(chance.choice(system.names)):
            passed.append(system.now)
        system.now += 0.5
    counts = calls_in_windows(passed, start, 60.0)
    assert max(counts) <= 7
    assert all(count == 6 for count in counts[int(lost_after // 60) + 2 :])


@settings(deadline=None)
@given(
    st.sampled_from([1, 3, 10]),
    st.integers(0, 2**32),
    st.floats(0, 120),
    st.floats(1, 200),
)
def test_no_more_calls_pass_when_the_control_plane_is_lost_and_returns(
    workers: int, seed: int, lost_after: float, returns_after: float
) -> None:
    system, chance = System(workers), random.Random(seed)
    passed = []
    start = system.now
    for step in range(1_000):
        elapsed = step / 2
        if system.plane is not None and lost_after <= elapsed < lost_after + returns_after:
            system.kill_plane()
        elif system.plane is None and elapsed >= lost_after + returns_after:
            system.start_plane()
        if not system.call(chance.choice(system.names)):
            passed.append(system.now)
        system.now += 0.5
    a_slice = min(workers, 6)  # one call of each worker
    assert max(calls_in_windows(passed, start, 60.0)) <= 6 + a_slice
    assert len(passed) <= 6 * (500 / 60 + 1) + a_slice
    assert len(passed) >= 6 * 4


def test_each_worker_has_its_part_while_there_is_no_control_plane() -> None:
    system = System(4)
    assert not system.call("w0")
    system.kill_plane()
    system.now += 60.0
    passed = dict.fromkeys(system.names, 0)
    for _ in range(120):
        for name in system.names:
            passed[name] += not system.call(name)
        system.now += 0.5
    assert passed == {"w0": 2, "w1": 2, "w2": 1, "w3": 1}


@settings(deadline=None)
@given(
    st.sampled_from([(1, 6), (3, 6), (3, 100), (10, 6)]),
    st.integers(0, 2**32),
    st.floats(0, 60),
)
def test_without_a_control_plane_no_time_sees_more_than_the_limit_and_a_slice(
    size: tuple[int, int], seed: int, lost_after: float
) -> None:
    workers, limit = size
    system, chance, demand = System(workers), random.Random(seed), Demand(KEY, limit, 60.0)
    lost_at = system.now + lost_after
    passed = []
    while system.now < lost_at + 190.0:
        if system.plane is not None and system.now >= lost_at:
            system.kill_plane()
        if not system.call(chance.choice(system.names), demand) and system.plane is None:
            passed.append(system.now)
        system.now += chance.expovariate(limit / 30)
    alone = [time for time in passed if time >= lost_at + 60.0]
    slices = max(limit * SLICE / 60.0, min(workers, limit))
    for start in alone:
        assert sum(start <= time < start + 60.0 for time in alone) <= limit + slices


def test_a_worker_that_joins_again_as_a_window_ends_opens_none() -> None:
    system = System(2)
    assert not any(system.call("w0") for _ in range(2))
    assert not any(system.call("w1") for _ in range(4))
    told = system.workers["w0"].join(system.fleet(0), system.now + 59.9)
    system.now += 60.0
    for ask in told:
        system.send("w0", ask)
    passed = []
    for _ in range(1_000):
        passed += [name for name in system.names if not system.call(name)]
        system.now += 0.05
    assert len(passed) == 6


def test_calls_in_flight_count_for_a_control_plane_that_comes_to_lease_budgets() -> None:
    system = System(2, leases=False)
    assert [system.call("w0", SLOTS) for _ in range(3)] == [0.0] * 3
    system.start_plane(is_first=True)
    assert not system.call("w1", SLOTS)
    assert system.call("w1", SLOTS) > 0
    system.workers["w0"].end_call([SLOTS.key])
    for _ in range(2):
        system.return_idle()
    system.now += 0.2
    assert not system.call("w1", SLOTS)
    system.workers["w1"].end_call([SLOTS.key])
    for _ in range(2):
        system.return_idle()
    system.now += 0.2
    assert [not system.call("w1", SLOTS) for _ in range(3)] == [True, False, False]


def test_permits_for_which_another_limit_leaves_no_use_go_back() -> None:
    system = System(3)
    of_bot = Demand(BudgetKey("acme", "calls", agent="bot"), 1, 60.0)
    passed = [not system.call(name, SIX_A_MINUTE, of_bot) for name in system.names]
    assert sum(passed) == 1
    for _ in range(2):
        system.return_idle()
    system.now += 0.1
    assert sum(not system.call("w2") for _ in range(6)) == 5


def test_a_worker_that_does_not_know_the_window_waits_for_a_period_after_the_loss() -> None:
    system = System(2)
    assert not any(system.call("w0") for _ in range(6))
    system.kill_plane()
    assert system.call("w1") == pytest.approx(60.0)


def test_a_new_control_plane_learns_what_workers_have_before_it_leases_more() -> None:
    system = System(2)
    assert not any(system.call("w0") for _ in range(5))
    system.now += 10.0
    system.kill_plane()
    system.start_plane()
    assert not system.call("w1"), "both have told, so there is nothing to wait for"
    assert system.call("w1") == pytest.approx(50.0)


def test_a_new_control_plane_waits_a_moment_for_a_worker_of_the_earlier_fleet() -> None:
    system = System(2)
    assert not any(system.call("w0") for _ in range(5))
    system.now += 10.0
    system.start_empty_plane("w1")
    assert 0 < system.call("w1") <= 1.0
    system.now += 1.0
    assert system.plane is not None
    system.plane.handle_joined("w0", had_leader=True)
    assert 0 < system.call("w1") <= 1.0, "it has joined, and not told"
    system.join("w0")
    system.now += 1.0
    assert [not system.call("w1") for _ in range(2)] == [True, False]


def test_what_a_worker_used_that_is_lost_with_the_control_plane_is_known_from_the_others() -> None:
    system = System(3)
    assert not any(system.call("w0") for _ in range(3))
    assert not system.call("w1")
    assert not system.call("w0")
    system.now += 10.0
    system.start_empty_plane("w1", "w2")
    system.now += 3.1
    assert sum(not system.call("w2") for _ in range(6)) == 2, "w1 knew of four"
    system.now += 50.0
    assert sum(not system.call("w2") for _ in range(9)) == 6


def test_a_lowered_limit_holds_over_workers_that_have_more_of_the_earlier_one() -> None:
    system, fewer = System(2), Demand(SLOTS.key, 2)
    assert not any(system.call("w0", SLOTS) for _ in range(2))
    assert not any(system.call("w1", SLOTS) for _ in range(2))
    for name in system.names:
        system.workers[name].end_call([SLOTS.key])
        assert system.call(name, fewer) > 0
    system.return_idle()
    system.now += 0.2
    assert [system.call(name, fewer) > 0 for name in system.names] == [True, True]
    system.workers["w0"].end_call([SLOTS.key])
    system.return_idle()
    system.now += 0.2
    assert system.call("w0", fewer) == 0
    assert system.call("w1", fewer) > 0


def test_permits_of_an_earlier_limit_go_back_with_the_question_for_the_new_one() -> None:
    system, many, fewer = System(2), Demand(KEY, 1_000, 60.0), Demand(KEY, 20, 60.0)
    for _ in range(15):
        assert not system.call("w0", many)
        system.now += 0.01
    assert sum(not system.call("w0", fewer) for _ in range(20)) == 5


@pytest.mark.parametrize("raised", [Demand(KEY, 8, 3_600.0), Demand(KEY, 6, 60.0)])
def test_a_raised_limit_holds_before_the_window_of_the_earlier_one_ends(raised: Demand) -> None:
    system, hourly = System(1), Demand(KEY, 6, 3_600.0)
    assert sum(not system.call("w0", hourly) for _ in range(9)) == 6
    system.now += 1.0
    system.call("w0", raised)
    system.now += min(60.0, raised.period)
    assert not system.call("w0", raised)


def test_high_demand_is_leased_in_slices_that_grow() -> None:
    system = System(2)
    demand = Demand(KEY, 10_000, 60.0)
    asked = 0
    for _ in range(500):
        try:
            system.workers["w0"].take([demand], system.now)
        except PermitNeeded:
            asked += 1
            system.call("w0", demand)
        system.now += 0.001
    assert asked < 20


def test_calls_at_once_are_limited_over_all_workers_and_idle_slots_return() -> None:
    system = System(2)
    assert [system.call("w0", SLOTS) for _ in range(4)] == [0.0] * 4
    assert system.call("w1", SLOTS) > 0
    system.workers["w0"].end_call([SLOTS.key])
    system.return_idle()  # it was used since the last time
    system.return_idle()
    system.now += 0.2
    assert not system.call("w1", SLOTS)
    assert system.call("w1", SLOTS) > 0


def test_slots_of_a_lost_worker_are_free() -> None:
    system = System(2)
    assert [system.call("w0", SLOTS) for _ in range(4)] == [0.0] * 4
    system.kill_worker("w0")
    assert not system.call("w1", SLOTS)


def test_a_new_control_plane_knows_the_slots_in_use() -> None:
    system = System(2)
    assert [system.call("w0", SLOTS) for _ in range(3)] == [0.0] * 3
    system.kill_plane()
    system.now += 5.0
    system.start_plane()
    system.now += 3.1
    assert not system.call("w1", SLOTS)
    assert system.call("w1", SLOTS) > 0


def test_slots_in_use_keep_no_ended_windows_and_are_not_forgotten() -> None:
    system = System(1)
    assert system.plane is not None
    assert [system.call("w0", SLOTS) for _ in range(4)] == [0.0] * 4
    for number in range(MAX_BUDGETS + 10):
        assert not system.call("w0", Demand(BudgetKey(f"t{number}", "calls"), 6, 1.0))
        system.now += 1.0
    assert len(system.plane) < 5
    assert dict(system.workers["w0"].slots_in_use()) == {SLOTS.key: 4}
    assert system.call("w0", SLOTS) > 0
