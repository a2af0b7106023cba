"""Times as protobuf has them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from leaseway.wire.timing.durations import duration, seconds, timestamp


@given(st.floats(0, 1e8))
def test_seconds_survive_the_way_to_a_duration_and_back(value: float) -> None:
    assert abs(seconds(duration(value)) - value) < 1e-6


def test_a_fraction_of_a_second_is_kept() -> None:
    assert (duration(1.5).seconds, duration(1.5).nanos) == (1, 500_000_000)


def test_unix_time_survives_the_way_to_a_timestamp_and_back() -> None:
    assert timestamp(1.25).nanos == 250_000_000
    assert abs(seconds(timestamp(1_700_000_000.25)) - 1_700_000_000.25) < 1e-6
