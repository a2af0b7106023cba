"""Limits of calls on one worker that shares none."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseway.data_plane.core.tools.budgets import (
    Demand,
    Fleet,
    Meter,
    PermitNeeded,
    WorkerBudgets,
)
from leaseway.data_plane.core.tools.usage import CallUsage
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.sharing.limits import BudgetGrant, BudgetKey, limit_entry, reached_limit

RATE = Demand(BudgetKey("acme", "calls"), 3, 60.0)
OF_RIVAL = Demand(BudgetKey("rival", "calls"), 3, 60.0)
SLOTS = Demand(BudgetKey("acme", "concurrent"), 2)


def wait(usage: CallUsage, *demands: Demand, now: float) -> float:
    """Call; return 0, or the seconds after which the next call is possible."""
    try:
        usage.start_call(demands, now)
    except Fault as fault:
        return fault.retry_delay or math.nan
    return 0.0


def test_as_many_calls_as_the_rate_names_may_come_at_once_and_then_one_at_a_time() -> None:
    usage = CallUsage(WorkerBudgets())
    assert [wait(usage, RATE, now=100.0) for _ in range(3)] == [0, 0, 0]
    assert wait(usage, RATE, now=100.0) == pytest.approx(20.0)
    assert wait(usage, OF_RIVAL, now=100.0) == 0
    assert wait(usage, RATE, now=119.0) == pytest.approx(1.0)
    assert wait(usage, RATE, now=120.0) == 0


@given(st.lists(st.floats(0, 30), max_size=60), st.integers(1, 5), st.floats(0.5, 20))
def test_in_no_time_more_calls_pass_than_twice_the_rate(
    pauses: list[float], calls: int, seconds: float
) -> None:
    usage, rate, now = CallUsage(WorkerBudgets()), Demand(RATE.key, calls, seconds), 0.0
    passed: list[float] = []
    for pause in pauses:
        now += pause
        delay = wait(usage, rate, now=now)
        assert 0 <= delay <= seconds / calls * 1.001
        if not delay:
            passed.append(now)
    for start in passed:
        within = [moment for moment in passed if start <= moment < start + seconds]
        assert len(within) <= 2 * calls


def test_calls_at_once_are_limited_until_they_end() -> None:
    usage = CallUsage(WorkerBudgets())
    usage.start_call([SLOTS], 0.0)
    assert wait(usage, SLOTS, now=0.0) == 0
    assert wait(usage, SLOTS, now=0.0) > 0
    assert usage.in_flight == {"acme": 2}
    usage.end_call([SLOTS.key])
    assert wait(usage, SLOTS, now=0.0) == 0


def test_a_call_that_one_limit_refuses_counts_against_none() -> None:
    usage = CallUsage(WorkerBudgets())
    assert [wait(usage, SLOTS, RATE, now=0.0) for _ in range(3)] == [0, 0, pytest.approx(0.1)]
    assert [wait(usage, RATE, now=0.0) for _ in range(2)] == [0, pytest.approx(20.0)]


@pytest.mark.parametrize(
    ("key", "scope", "owner"),
    [
        (BudgetKey("acme", "calls"), "tenant", "Calls of tenant acme may"),
        (BudgetKey("acme", "calls", agent="bot"), "agent", "Calls of agent bot of tenant acme"),
        (BudgetKey("", "calls", "web"), "server", "Calls of server web"),
        (BudgetKey("", "concurrent", "web", tool="get"), "tool", "Tool web:get has 1 calls"),
        (BudgetKey("acme", "external", "web"), "tenant", "External tools of server web, by tenant"),
    ],
)
def test_a_refusal_says_whose_limit_is_used_up(key: BudgetKey, scope: str, owner: str) -> None:
    demand = Demand(key, 1, 0.0 if key.quota == "concurrent" else 60.0)
    usage = CallUsage(WorkerBudgets())
    usage.start_call([demand], 0.0)
    with pytest.raises(Fault, match=owner) as raised:
        usage.start_call([demand], 0.0)
    assert (raised.value.reason, raised.value.started) == (Reason.RATE_LIMITED, "no")
    assert reached_limit(raised.value.metadata) == (f"limits.{key.quota}", scope)
    entry = limit_entry(raised.value.metadata)
    assert entry == (key.tenant, key.agent, key.server_id, key.tool)
    assert float(raised.value.metadata["renews_in"]) == raised.value.retry_delay


def test_a_call_that_lacks_one_granted_permit_takes_none_of_the_others() -> None:
    budgets = WorkerBudgets()
    budgets.join(Fleet(2, 0), 0.0)
    budgets.ask(SLOTS, 1, 0.0)
    grant = BudgetGrant(key=SLOTS.key, granted=2, remaining=0, renews_in=0.0, retry_in=0.0)
    budgets.handle_grant(grant, 0.0)
    assert not budgets.take_granted(Meter((SLOTS, RATE)), 0.0)
    assert list(budgets.slots_in_use()) == []
    meter = Meter((SLOTS,))
    assert [budgets.take_granted(meter, 0.0) for _ in range(3)] == [True, True, False]
    assert list(budgets.slots_in_use()) == [(SLOTS.key, 2)]


def test_a_meter_takes_no_permit_of_a_limit_that_has_changed_or_of_a_lost_fleet() -> None:
    budgets, meter = WorkerBudgets(), Meter((SLOTS,))
    budgets.join(Fleet(2, 0), 0.0)
    budgets.ask(SLOTS, 1, 0.0)
    grant = BudgetGrant(key=SLOTS.key, granted=9, remaining=0, renews_in=0.0, retry_in=0.0)
    budgets.handle_grant(grant, 0.0)
    assert budgets.take_granted(meter, 0.0)
    budgets.ask(replace(SLOTS, limit=1), 1, 0.0)
    assert not budgets.take_granted(meter, 0.0)
    budgets.ask(SLOTS, 1, 0.0)
    budgets.handle_grant(grant, 0.0)
    assert budgets.take_granted(meter, 0.0)
    budgets.lose(0.0)
    assert not budgets.take_granted(meter, 0.0)


@pytest.mark.parametrize("demand", [RATE, SLOTS])
def test_a_permit_that_is_granted_while_others_are_asked_for_is_kept(demand: Demand) -> None:
    budgets = WorkerBudgets()
    budgets.join(Fleet(2, 0, takes_back=True), 0.0)
    for first in (demand, OF_RIVAL):
        with pytest.raises(PermitNeeded):
            budgets.take([first], 0.0)
        budgets.ask(first, 1, 0.0)
    renews_in = 60.0 if demand.period else 0.0
    budgets.handle_grant(
        BudgetGrant(key=demand.key, granted=1, remaining=1, renews_in=renews_in, retry_in=0.0), 0.0
    )
    returned = [ask.returned for now in (1.0, 2.0) for ask in budgets.idle_permits(now)]
    assert returned == [1]


@pytest.mark.parametrize(("pause", "expected"), [(0.1, 50), (9.0, 0)])
def test_a_window_begins_with_the_demand_of_the_last_one_unless_there_was_a_pause(
    pause: float, expected: int
) -> None:
    budgets = WorkerBudgets()
    budgets.join(Fleet(1, 0), 0.0)
    rate = Demand(RATE.key, 10_000, 1.0)
    budgets.ask(rate, 1, 0.0)
    budgets.handle_grant(
        BudgetGrant(key=rate.key, granted=200, remaining=9_800, renews_in=1.0, retry_in=0.0), 0.0
    )
    for _ in range(100):
        budgets.take([rate], 0.9)
    for moment in (1.0, 1.01):  # each call that waits opens the window
        with pytest.raises(PermitNeeded):
            budgets.take([rate], moment + pause)
    assert budgets.ask(rate, 32, 1.01 + pause).expected == expected
