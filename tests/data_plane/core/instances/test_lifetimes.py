"""Plans of spares, and the deadlines of idle and old instances."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseway.data_plane.core.instances.lifetimes import (
    InstanceTimes,
    RefillPause,
    SparePlan,
    age_deadline,
    idle_deadline,
    plan_spares,
    spare_age_deadline,
    target_spares,
)
from leaseway.spec.model import InstancePolicy


def plan(policy: InstancePolicy, *born: float, **more: float) -> SparePlan:
    return plan_spares(
        policy,
        [InstanceTimes(at, at) for at in born],
        starting=int(more.get("starting", 0)),
        room=int(more.get("room", 10)),
        now=more.get("now", 0.0),
    )


@pytest.mark.parametrize(
    ("policy", "wanted"),
    [
        (InstancePolicy(), 0),
        (InstancePolicy(start="lazy"), 0),
        (InstancePolicy(start="eager"), 1),
        (InstancePolicy(start="eager", warm=3), 3),
        (InstancePolicy(start="lazy", warm=2), 2),
    ],
)
def test_an_eager_server_keeps_one_spare_at_least(policy: InstancePolicy, wanted: int) -> None:
    assert target_spares(policy) == wanted


def test_without_a_bound_an_instance_is_never_idle_or_old() -> None:
    times = InstanceTimes(0.0, 0.0)
    policy = InstancePolicy()
    assert idle_deadline(policy, times, 1e9) == age_deadline(policy, times) == math.inf
    assert spare_age_deadline(policy, times) == math.inf


def test_an_instance_with_a_call_in_flight_is_not_idle() -> None:
    policy = InstancePolicy(idle_timeout=5.0)
    assert idle_deadline(policy, InstanceTimes(0.0, 3.0), 100.0) == 8.0
    assert idle_deadline(policy, InstanceTimes(0.0, 3.0, calls=1), 100.0) == 105.0


def test_missing_spares_are_started() -> None:
    policy = InstancePolicy(warm=2)
    assert plan(policy).start
    assert not plan(policy, 0.0, starting=1).start
    assert not plan(policy, 0.0, 0.0).start


def test_no_spare_starts_without_room() -> None:
    assert plan(InstancePolicy(warm=2), room=0) == SparePlan((), False, math.inf)


def test_spares_close_if_leases_need_their_room() -> None:
    assert plan(InstancePolicy(warm=3), 2.0, 1.0, 3.0, room=-2).close == (1, 0)


def test_an_idle_spare_within_the_target_stays_and_a_surplus_one_closes() -> None:
    policy = InstancePolicy(warm=1, idle_timeout=5.0)
    assert plan(policy, 0.0, now=100.0) == SparePlan((), False, math.inf)
    assert plan(policy, 0.0, 1.0, now=4.0) == SparePlan((), False, 5.0)
    assert plan(policy, 0.0, 1.0, now=5.0).close == (0,)


def test_further_surplus_spares_wait_a_minute_for_a_lease() -> None:
    policy = InstancePolicy()
    assert plan(policy, 0.0, 1.0, 2.0, now=59.0) == SparePlan((), False, 60.0)
    assert plan(policy, 0.0, 1.0, 2.0, now=61.0) == SparePlan((0, 1), False, math.inf)
    assert plan(InstancePolicy(warm=1), 0.0, 1.0, now=60.0).close == (0,)


def test_an_old_spare_closes_once_its_replacement_has_started() -> None:
    policy = InstancePolicy(warm=1, max_age=10.0)
    assert plan(policy, 0.0, now=4.0).check_at == 5.0
    assert plan(policy, 0.0, now=5.0) == SparePlan((), True, math.inf)
    assert plan(policy, 0.0, now=5.0, starting=1) == SparePlan((), False, math.inf)
    assert plan(policy, 0.0, 5.0, now=5.0) == SparePlan((0,), False, 10.0)


def test_an_old_spare_makes_room_for_its_replacement() -> None:
    policy = InstancePolicy(warm=1, max_age=10.0)
    assert plan(policy, 0.0, now=5.0, room=0) == SparePlan((0,), True, math.inf)


def test_an_old_surplus_spare_is_not_replaced() -> None:
    assert plan(InstancePolicy(max_age=10.0), 0.0, now=5.0) == SparePlan((0,), False, math.inf)


def test_used_spares_are_replaced_shortly_after_the_last_lease_of_a_burst() -> None:
    first = RefillPause().after_lease(100.0, was_complete=True)
    assert 100.0 < first.until < 100.1
    second = first.after_lease(100.02, was_complete=False)
    assert second.until == pytest.approx(first.until + 0.02)


def test_leases_that_do_not_cease_put_the_replacement_of_spares_off_once_and_for_a_second() -> None:
    pause, now = RefillPause().after_lease(100.0, was_complete=True), 100.0
    while now < pause.until:
        now += 0.01
        pause = pause.after_lease(now, was_complete=False)
    assert pause.until == 101.0
    assert pause.after_lease(now, was_complete=False) == pause
    assert pause.after_lease(now, was_complete=True).until > now


POLICIES = st.builds(
    InstancePolicy,
    start=st.sampled_from(["eager", "lazy", None]),
    warm=st.integers(0, 6),
    idle_timeout=st.one_of(st.none(), st.floats(0.1, 100.0)),
    max_age=st.one_of(st.none(), st.floats(0.1, 100.0)),
)
BORN = st.lists(st.floats(0.0, 100.0), max_size=8)


@given(POLICIES, BORN, st.integers(0, 1), st.integers(-8, 8), st.floats(100.0, 150.0))
def test_plans_keep_within_the_room_and_close_no_needed_spare(
    policy: InstancePolicy, born: list[float], starting: int, room: int, now: float
) -> None:
    spares = [InstanceTimes(at, at) for at in born]
    change = plan_spares(policy, spares, starting=starting, room=room, now=now)
    assert len(set(change.close)) == len(change.close)
    left = [times for at, times in enumerate(spares) if at not in change.close]
    assert room + len(change.close) - change.start >= min(0, room + len(spares))
    young = sum(now < spare_age_deadline(policy, times) for times in spares)
    young_left = sum(now < spare_age_deadline(policy, times) for times in left)
    if change.start:
        assert young + starting < target_spares(policy)
    if room >= 0:
        assert young_left >= min(young, target_spares(policy))
    assert change.check_at > now


@given(POLICIES, BORN, st.integers(0, 8))
def test_repeated_plans_settle_at_the_target(
    policy: InstancePolicy, born: list[float], limit: int
) -> None:
    now, spares = 150.0, [InstanceTimes(at, at) for at in born]
    for _ in range(40):
        room = limit - len(spares)
        change = plan_spares(policy, spares, starting=0, room=room, now=now)
        spares = [times for at, times in enumerate(spares) if at not in change.close]
        if change.start:
            spares.append(InstanceTimes(now, now))
        elif not change.close:
            break
    else:
        raise AssertionError("it never came to rest")
    assert len(spares) <= limit
    assert len(spares) >= min(limit, target_spares(policy))
