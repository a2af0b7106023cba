"""How long the problem of a crash stays open."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from leaseway.data_plane.core.instances.circuit_breaker import MAX_QUIET, STABLE_AFTER, CrashHistory


def test_one_crash_is_history_once_a_start_counts_as_stable() -> None:
    assert CrashHistory().crashed(5.0).quiet == STABLE_AFTER


@given(st.floats(0.1, MAX_QUIET), st.integers(2, 20))
def test_a_regular_crash_loop_is_never_quiet_for_long_enough(period: float, crashes: int) -> None:
    history = CrashHistory()
    for number in range(crashes):
        history = history.crashed(number * period)
    assert history.quiet > period or history.quiet == MAX_QUIET
    assert STABLE_AFTER <= history.quiet <= MAX_QUIET


def test_crashes_far_apart_have_nothing_to_do_with_each_other() -> None:
    history = CrashHistory().crashed(0.0).crashed(300.0)
    assert history.quiet == MAX_QUIET
    assert history.crashed(300.0 + MAX_QUIET + 1).quiet == STABLE_AFTER
