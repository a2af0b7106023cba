"""When a burst of events is over."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leaseway.control_plane.config.watch.all_files import Debounce

QUIET, LONGEST = 0.1, 0.5


def fires(times: list[float]) -> list[float]:
    """Return when bursts end, given the times of events, in order."""
    burst = idle = Debounce(QUIET, LONGEST)
    fired = []
    for now in times:
        if burst.due is not None and burst.due <= now:
            fired.append(burst.due)
            burst = idle
        burst = burst.event(now)
    if burst.due is not None:
        fired.append(burst.due)
    return fired


@pytest.mark.parametrize(
    ("times", "due"),
    [([], None), ([10.0], 10.0 + QUIET), ([10.0, 10.05], 10.05 + QUIET)],
    ids=["no event", "one", "a later one"],
)
def test_a_burst_is_due_after_the_quiet_time(times: list[float], due: float | None) -> None:
    burst = Debounce(QUIET, LONGEST)
    for now in times:
        burst = burst.event(now)
    assert burst.due == due


def test_endless_events_put_it_off_no_longer_than_the_maximum() -> None:
    burst = Debounce(QUIET, LONGEST)
    for step in range(100):
        burst = burst.event(10.0 + step * 0.01)
    assert burst.due == 10.0 + LONGEST


_TIMES = st.lists(st.floats(0, 10, allow_nan=False), min_size=1).map(sorted)


@settings(deadline=None)
@given(_TIMES)
def test_every_event_is_followed_by_a_firing_neither_too_early_nor_too_late(
    times: list[float],
) -> None:
    fired = fires(times)
    for now in times:
        next_firing = min(at for at in fired if at > now)
        assert next_firing <= now + LONGEST + 1e-9
    for at in fired:
        # An event lies behind each, and quiet unless it lasted too long.
        last = max(now for now in times if now < at)
        starts = [now for now in times if now <= at - LONGEST + 1e-9]
        assert at - last >= QUIET - 1e-9 or starts


@settings(deadline=None)
@given(_TIMES)
def test_a_burst_is_fired_for_once(times: list[float]) -> None:
    fired = fires(times)
    assert fired == sorted(set(fired))
    assert len(fired) <= len(times)
