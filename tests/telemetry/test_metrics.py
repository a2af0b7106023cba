"""Cells, instruments and what is read from them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from leaseway.telemetry.metrics import (
    DURATIONS,
    MAX_SERIES,
    OTHER,
    SHOWN_FOR,
    Buckets,
    Family,
    Histogram,
    Meter,
    Retention,
)

AMOUNTS = st.lists(
    st.floats(min_value=0, max_value=1_000, allow_nan=False) | st.sampled_from(DURATIONS)
)


def only(meter: Meter) -> Family:
    [family] = meter.collect()
    return family


@given(AMOUNTS)
def test_each_amount_is_in_the_one_bucket_whose_bounds_it_is_within(amounts: list[float]) -> None:
    cell = Histogram({}, 0, DURATIONS)
    for amount in amounts:
        cell.record(amount)
    assert sum(cell.counts) == len(amounts)
    assert abs(cell.sum - sum(amounts)) <= 1e-6 * max(1.0, sum(amounts))
    for index, bound in enumerate(DURATIONS):
        assert sum(cell.counts[: index + 1]) == sum(amount <= bound for amount in amounts)
    if amounts:
        assert (cell.least, cell.most) == (min(amounts), max(amounts))


@given(AMOUNTS)
def test_what_was_read_does_not_change_any_more(amounts: list[float]) -> None:
    meter = Meter()
    cell = meter.histogram("h", "s", "All.").cell()
    cell.record(1.0)
    before = only(meter).points[0].value
    for amount in amounts:
        cell.record(amount)
    assert isinstance(before, Buckets)
    assert (before.total, before.sum) == (1, 1.0)
    after = only(meter).points[0].value
    assert isinstance(after, Buckets)
    assert after.total == 1 + len(amounts)


def test_a_series_is_made_once_and_has_its_labels_without_the_empty_ones() -> None:
    meter = Meter(clock=lambda: 5)
    calls = meter.counter("calls", "{call}", "Calls.", "server", "error")
    assert calls.cell("a", "") is calls.cell("a", "")
    calls.cell("a", "").add()
    calls.cell("a", "X").add(2)
    family = only(meter)
    assert [(dict(point.labels), point.value) for point in family.points] == [
        ({"server": "a"}, 1.0),
        ({"server": "a", "error": "X"}, 2.0),
    ]
    assert {point.since for point in family.points} == {5}


def test_beyond_the_bound_all_further_series_are_one() -> None:
    meter = Meter()
    calls = meter.counter("calls", "{call}", "Calls.", "server", "tool")
    for number in range(MAX_SERIES + 500):
        calls.cell("s", f"t{number}").add()
    family = only(meter)
    assert len(family.points) == MAX_SERIES
    assert dict(family.points[-1].labels) == {"server": OTHER, "tool": OTHER}
    assert family.points[-1].value == 501
    assert sum(point.value for point in family.points if isinstance(point.value, float)) == 2500


def test_series_that_were_dropped_make_room() -> None:
    meter = Meter()
    calls = meter.counter("calls", "{call}", "Calls.", "server")
    for number in range(MAX_SERIES):
        calls.cell(f"s{number}").add()
    calls.keep("server", lambda server: server == "s7")
    calls.cell("new").add()
    assert [dict(point.labels) for point in only(meter).points] == [
        {"server": "s7"},
        {"server": "new"},
    ]


def test_a_histogram_without_amounts_is_no_series_yet() -> None:
    meter = Meter()
    meter.histogram("h", "s", "All.", "server").cell("a")
    assert only(meter).points == ()


def test_what_is_observed_is_read_each_time_added_up_and_bounded() -> None:
    meter = Meter()
    found = [(("a",), 1.0), (("b",), 2.0), (("a",), 3.0)]
    meter.observe("leases", "{lease}", "Leases.", lambda: found, "server")
    assert [(dict(p.labels), p.value) for p in only(meter).points] == [
        ({"server": "a"}, 4.0),
        ({"server": "b"}, 2.0),
    ]
    found[:] = [((f"s{number}",), 1.0) for number in range(MAX_SERIES + 10)]
    points = only(meter).points
    assert len(points) == MAX_SERIES
    assert (dict(points[-1].labels), points[-1].value) == ({"server": OTHER}, 11.0)


def test_work_is_done_before_anything_is_read() -> None:
    meter = Meter()
    calls = meter.counter("calls", "{call}", "Calls.")
    meter.before_collecting(lambda: calls.cell().add())
    assert only(meter).points[0].value == 1


def test_what_is_gone_stays_for_five_minutes_and_what_comes_back_for_ever() -> None:
    retention = Retention()
    assert retention.wanted({"a", "b"}, 0.0)("a")
    assert retention.wanted({"b"}, SHOWN_FOR)("a")
    assert not retention.wanted({"b"}, SHOWN_FOR + 1)("a")
    assert retention.wanted({"a"}, SHOWN_FOR + 2)("a")
    assert retention.wanted((), SHOWN_FOR + 2)("b")
    assert not retention.wanted((), 0.0)("never seen")
