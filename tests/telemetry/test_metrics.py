"""Cells, instruments and collected families."""

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
def test_each_amount_is_counted_in_its_bucket(amounts: list[float]) -> None:
    cell = Histogram({}, 0, DURATIONS)
    for amount in amounts:
        cell.record(amount)
    assert sum(cell.counts) == len(amounts)
    assert abs(cell.sum - sum(amounts)) <= 1e-6 * max(1.0, sum(amounts))
    for index, bound in enumerate(DURATIONS):
        assert sum(cell.counts[: index + 1]) == sum(amount <= bound for amount in amounts)
    if amounts:
        assert (cell.minimum, cell.maximum) == (min(amounts), max(amounts))


@given(AMOUNTS)
def test_a_collected_histogram_does_not_change(amounts: list[float]) -> None:
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


def test_a_series_is_made_once_and_omits_empty_labels() -> None:
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


def test_series_beyond_the_limit_are_combined() -> None:
    meter = Meter()
    calls = meter.counter("calls", "{call}", "Calls.", "server", "tool")
    for number in range(MAX_SERIES + 500):
        calls.cell("s", f"t{number}").add()
    family = only(meter)
    assert len(family.points) == MAX_SERIES
    assert dict(family.points[-1].labels) == {"server": OTHER, "tool": OTHER}
    assert family.points[-1].value == 501
    assert sum(point.value for point in family.points if isinstance(point.value, float)) == 2500


def test_removed_series_do_not_count_towards_the_limit() -> None:
    meter = Meter()
    calls = meter.counter("calls", "{call}", "Calls.", "server")
    for number in range(MAX_SERIES):
        calls.cell(f"s{number}").add()
    meter.remove_unless("server", lambda server: server == "s7")
    calls.cell("new").add()
    assert [dict(point.labels) for point in only(meter).points] == [
        {"server": "s7"},
        {"server": OTHER},
        {"server": "new"},
    ]


def test_series_are_removed_from_each_instrument_that_has_the_label() -> None:
    meter = Meter()
    meter.counter("by server", "{call}", "Calls.", "tool", "server").cell("t", "gone").add()
    meter.histogram("waits", "s", "Waits.", "server").cell("gone").record(1.0)
    limits = meter.counter("limits", "{refusal}", "Limits.", "tenant", "server")
    limits.cell("gone", "").add()
    limits.cell("acme", "gone").add()
    meter.counter("by tenant", "{call}", "Calls.", "tenant").cell("gone").add()
    meter.remove_unless("server", lambda server: server != "gone")
    left = [
        (family.name, dict(point.labels)) for family in meter.collect() for point in family.points
    ]
    assert left == [("limits", {"tenant": "gone"}), ("by tenant", {"tenant": "gone"})]


def test_an_empty_histogram_is_not_collected() -> None:
    meter = Meter()
    meter.histogram("h", "s", "All.", "server").cell("a")
    assert only(meter).points == ()


def test_observed_numbers_are_read_at_each_collection_summed_and_limited() -> None:
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


def test_before_collecting_runs_before_instruments_are_read() -> None:
    meter = Meter()
    calls = meter.counter("calls", "{call}", "Calls.")
    meter.before_collecting(lambda: calls.cell().add())
    assert only(meter).points[0].value == 1


def test_a_removed_name_is_retained_for_five_minutes() -> None:
    retention = Retention()
    assert retention.retained({"a", "b"}, 0.0)("a")
    assert retention.retained({"b"}, SHOWN_FOR)("a")
    assert not retention.retained({"b"}, SHOWN_FOR + 1)("a")
    assert retention.retained({"a"}, SHOWN_FOR + 2)("a")
    assert retention.retained((), SHOWN_FOR + 2)("b")
    assert not retention.retained((), 0.0)("never seen")
