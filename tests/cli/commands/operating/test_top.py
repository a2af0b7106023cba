"""The rates of `leaseway top`, from counts since the start of the workers."""

from __future__ import annotations

from leaseway.cli.commands.operating.top import Rates, Row
from leaseway.sdk.operators.observe import TrafficInfo, TrafficReport


def counts(calls: int, worker: str = "a", server: str = "files") -> TrafficInfo:
    return TrafficInfo(
        worker=worker,
        incarnation=f"run of {worker}",
        server_id=server,
        calls=calls,
        failed=calls // 10,
        seconds=0.0,
        buckets=(0, 0, calls),
        in_flight=0,
    )


def poll(rates: Rates, time: float, *traffic: TrafficInfo, silent: str = "") -> Row | None:
    report = TrafficReport(time, traffic, (silent,) if silent else ())
    return next(iter(rates.rows(report)), None)


def calls_per_second(row: Row | None) -> float:
    assert row is not None
    return row.calls


def test_rates_are_those_since_the_previous_poll() -> None:
    rates = Rates()
    first = poll(rates, 10.0, counts(1_000))
    assert (calls_per_second(first), first and first.p50) == (0.0, None)
    row = poll(rates, 12.0, counts(1_100))
    assert row is not None
    assert (row.calls, row.errors, row.p50, row.total) == (50.0, 5.0, 0.004, 1_100)


def test_the_first_call_of_a_server_counts() -> None:
    rates = Rates()
    assert poll(rates, 10.0) is None
    assert calls_per_second(poll(rates, 12.0, counts(8))) == 4.0


def test_the_counts_of_a_worker_that_did_not_answer_are_not_new_when_it_does() -> None:
    rates = Rates()
    poll(rates, 10.0, silent="a")
    assert calls_per_second(poll(rates, 12.0, counts(1_000_000))) == 0.0
    poll(rates, 14.0, silent="a")
    assert calls_per_second(poll(rates, 16.0, counts(1_000_040))) == 10.0


def test_the_counts_of_a_worker_are_not_new_when_the_control_plane_has_restarted() -> None:
    rates = Rates()
    poll(rates, 10.0, counts(1_000_000))
    assert poll(rates, 12.0) is None, "no worker has joined the new control plane yet"
    assert calls_per_second(poll(rates, 14.0, counts(1_000_040))) == 10.0


def test_no_rate_is_negative_when_a_worker_has_forgotten_a_removed_server() -> None:
    rates = Rates()
    poll(rates, 10.0, counts(1_000))
    row = poll(rates, 12.0, counts(20))
    assert row is not None
    assert (row.calls, row.errors, row.p50) == (10.0, 1.0, 0.004)


def test_the_workers_of_a_server_are_added() -> None:
    rates = Rates()
    poll(rates, 10.0, counts(100), counts(200, "b"))
    row = poll(rates, 12.0, counts(110), counts(230, "b"))
    assert row is not None
    assert (row.calls, row.total) == (20.0, 340)
