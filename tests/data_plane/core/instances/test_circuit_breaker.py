"""Backoff and circuit of a server's starts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from leaseway.data_plane.core.instances.circuit_breaker import (
    FAILURE_THRESHOLD,
    STABLE_AFTER,
    CircuitBreaker,
)


def delay(attempt: int) -> float:
    return min(30.0, 0.2 * 2.0**attempt)


def after_failures(count: int, now: float = 0.0) -> CircuitBreaker:
    state = CircuitBreaker()
    for _ in range(count):
        state = state.start_failed(now, delay)
    return state


def test_before_the_fifth_failure_callers_can_start_an_instance_at_once() -> None:
    state = after_failures(FAILURE_THRESHOLD - 1)
    assert (state.circuit, state.allows_start(0.0), state.allows_background_start(0.0)) == (
        "closed",
        True,
        False,
    )
    assert state.allows_background_start(delay(FAILURE_THRESHOLD - 2))


def test_the_fifth_failure_opens_the_circuit_until_its_backoff_is_over() -> None:
    state = after_failures(FAILURE_THRESHOLD)
    assert (state.circuit, state.allows_start(3.19)) == ("open", False)
    assert state.allows_start(3.2)


def test_an_open_circuit_allows_one_trial_and_the_next_after_a_longer_backoff() -> None:
    state = after_failures(FAILURE_THRESHOLD).start_attempted()
    assert (state.circuit, state.allows_start(1e9)) == ("half_open", False)
    state = state.start_failed(100.0, delay, trial=True)
    assert (state.circuit, state.allows_start(106.3), state.allows_start(106.4)) == (
        "open",
        False,
        True,
    )


def test_a_cancelled_trial_allows_the_next_one() -> None:
    state = after_failures(FAILURE_THRESHOLD).start_attempted().start_cancelled(trial=True)
    assert state.allows_start(10.0)


def test_a_late_failure_of_an_earlier_start_does_not_allow_a_second_trial() -> None:
    state = after_failures(FAILURE_THRESHOLD).start_attempted().start_failed(1e3, delay)
    assert (state.circuit, state.allows_start(1e9)) == ("half_open", False)


def test_a_start_that_succeeds_closes_the_circuit() -> None:
    state = after_failures(FAILURE_THRESHOLD).start_attempted().start_succeeded(50.0)
    assert (state.circuit, state.failures, state.allows_start(50.0)) == ("closed", 0, True)


def test_failures_count_again_if_the_instance_ends_at_once() -> None:
    state = after_failures(3).start_succeeded(50.0).instance_ended(51.0, 50.0, delay)
    assert (state.failures, state.retry_at) == (4, 51.0 + delay(3))


def test_the_end_of_a_stable_instance_is_a_first_failure() -> None:
    state = after_failures(3).start_succeeded(50.0).instance_ended(50.0 + STABLE_AFTER, 50.0, delay)
    assert (state.failures, state.retry_at) == (1, 60.0 + delay(0))


def test_instances_that_end_at_once_in_a_row_add_up() -> None:
    state, now = CircuitBreaker(), 0.0
    for _ in range(4):
        state = state.start_succeeded(now).instance_ended(now + 0.1, now, delay)
        now = state.retry_at
    assert state.failures == 4


EVENTS = st.lists(
    st.tuples(st.sampled_from(["begin", "fail", "up", "end", "off"]), st.floats(0.0, 40.0)),
    max_size=60,
)


@given(EVENTS)
def test_an_open_circuit_never_runs_two_trials(
    events: list[tuple[str, float]],
) -> None:
    """Each start may be a trial or not; whatever happens, one trial runs at most."""
    state, now = CircuitBreaker(), 0.0
    running: list[bool] = []
    for event, pause in events:
        now += pause
        trials = running.count(True)
        if event == "begin" and state.allows_start(now):
            if state.is_open:
                assert trials == 0 or not state.trial
                assert now >= state.retry_at
            running.append(state.is_open)
            state = state.start_attempted()
        elif event == "fail" and running:
            failures = state.failures
            state = state.start_failed(now, delay, running.pop(0))
            assert state.failures == failures + 1
            assert state.retry_at > now
        elif event == "up" and running:
            running.pop(0)
            state = state.start_succeeded(now)
            assert (state.circuit, state.trial) == ("closed", False)
        elif event == "end":
            state = state.instance_ended(now, now - pause, delay)
            assert state.retry_at > now
        elif event == "off" and running:
            state = state.start_cancelled(running.pop(0))
        assert state.is_open == (state.failures >= FAILURE_THRESHOLD)
        assert not (state.allows_background_start(now) and now < state.retry_at)


@given(st.integers(FAILURE_THRESHOLD, 200))
def test_the_backoff_of_an_open_circuit_stays_bounded(failures: int) -> None:
    assert after_failures(failures).retry_at <= 30.0
