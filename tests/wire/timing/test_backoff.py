from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseway.wire.timing.backoff import Backoff


def test_ceilings_double_up_to_the_maximum() -> None:
    backoff = Backoff(initial=0.2, maximum=1.0)
    assert [backoff.ceiling(n) for n in range(4)] == pytest.approx([0.2, 0.4, 0.8, 1.0])


@given(st.integers(0, 10**9))
def test_a_delay_is_between_nothing_and_the_ceiling(attempt: int) -> None:
    backoff = Backoff()
    assert 0.0 <= backoff.delay(attempt) <= backoff.ceiling(attempt) <= 30.0


def test_the_whole_delay_is_jitter() -> None:
    drawn: list[tuple[float, float]] = []

    def draw(low: float, high: float) -> float:
        drawn.append((low, high))
        return 0.123

    assert Backoff(initial=0.5).delay(0, draw) == 0.123
    assert drawn == [(0.0, 0.5)]


def test_the_multiplier_is_a_choice() -> None:
    assert Backoff(initial=1.0, maximum=100.0, multiplier=3.0).ceiling(2) == 9.0
