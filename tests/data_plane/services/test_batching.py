"""When results wait for others to share their message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseway.data_plane.services.replies import Batching

LONG = 1.0


def undelayed(batching: Batching) -> int:
    """Return how many messages are sent without waiting before the next one waits."""
    return next(number for number in range(1000) if batching.should_wait(1, 0.0))


@given(st.integers(0, 2000), st.integers(0, 1024))
def test_results_of_half_of_the_calls_are_sent_at_once(ready: int, in_flight: int) -> None:
    batching = Batching(range(in_flight))
    assert batching.should_wait(ready, 0.0) == (ready < in_flight)
    assert batching.is_enough(ready) == (ready >= in_flight)


def test_the_only_call_of_a_stream_never_waits() -> None:
    assert not Batching(()).should_wait(1, 0.0)


def test_slow_calls_are_not_waited_for() -> None:
    calls = set(range(200))
    batching = Batching(calls)
    assert batching.should_wait(1, 0.0)
    assert not batching.should_wait(1, LONG)
    calls |= {1001, 1002, 1003}
    assert batching.should_wait(2, LONG)
    assert batching.is_enough(3)


def test_slow_calls_that_end_no_longer_count_as_slow() -> None:
    calls = set(range(200))
    batching = Batching(calls)
    for now in (0.0, LONG):
        batching.should_wait(1, now)
    calls.clear()
    calls |= set(range(300, 310))
    assert not batching.should_wait(1, LONG)
    assert batching.should_wait(1, 2 * LONG)


def test_useful_waits_are_repeated() -> None:
    batching = Batching(range(10))
    for _ in range(100):
        assert batching.should_wait(1, 0.0)
        batching.record_wait(3)


def test_useless_waits_back_off_exponentially() -> None:
    batching = Batching(range(10))
    counts = []
    for _ in range(8):
        batching.record_wait(0)
        counts.append(undelayed(batching))
    assert counts == [2, 4, 8, 16, 32, 64, 64, 64]


@pytest.mark.parametrize("vain", [1, 5, 20])
def test_a_useful_wait_resets_the_backoff(vain: int) -> None:
    batching = Batching(range(10))
    for _ in range(vain):
        batching.record_wait(0)
    batching.record_wait(1)
    assert batching.should_wait(1, 0.0)
