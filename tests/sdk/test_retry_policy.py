from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseway.sdk.retry_policy import MAX_TRIES, FailedTry, Retry, decide, more_informative
from leaseway.wire.errors import Fault, Reason, Started

FINAL = sorted(
    set(Reason)
    - {
        Reason.WORKER_LOST,
        Reason.DRAINING,
        Reason.NOT_APPLIED,
        Reason.OVERLOADED,
        Reason.SYNCING,
        Reason.NOT_LEADER,
        Reason.FATE_UNKNOWN,
        Reason.SERVER_LOST,
        Reason.TOOL_DIFFERS,
    }
)

faults = st.builds(
    Fault,
    st.sampled_from(list(Reason)),
    st.just("No."),
    st.sampled_from(["no", "yes", "unknown"]),
    retry_delay=st.none() | st.floats(0, 10),
)
tries = st.builds(
    FailedTry,
    tries=st.integers(1, 20),
    remaining=st.floats(0, 60),
    repeatable=st.booleans(),
    repeated=st.booleans(),
    cached=st.booleans(),
    pinned=st.booleans(),
    placing=st.booleans(),
    elsewhere=st.booleans(),
)


DOWN = {
    Reason.SERVER_NOT_READY,
    Reason.SERVER_LOST,
    Reason.WORKER_LOST,
    Reason.OVERLOADED,
    Reason.NOT_APPLIED,
}


def test_a_lack_of_capacity_does_not_hide_a_failed_server_or_a_slow_worker() -> None:
    for reason in DOWN:
        first = Fault(reason, "No.")
        assert more_informative(first, Fault(Reason.CAPACITY, "No.")) is first


def test_a_server_that_is_not_ready_is_tried_on_another_worker_only() -> None:
    down = Fault(Reason.SERVER_NOT_READY, "No.", retry_delay=5.0)
    assert decide(down, FailedTry(1, 60.0, elsewhere=True)) == Retry(avoid_worker=True)
    assert decide(down, FailedTry(1, 60.0)) is None


def test_a_slow_worker_is_tried_again_if_all_others_are_full() -> None:
    full = Fault(Reason.CAPACITY, "No.", retry_delay=3.0)
    retry = decide(full, FailedTry(2, 60.0, placing=True, slow=True), _longest)
    assert retry == Retry(0.2, return_to_slow=True)
    assert decide(full, FailedTry(2, 60.0, placing=True), _longest) is None
    assert decide(full, FailedTry(2, 0.2, placing=True, slow=True), _longest) is None
    assert decide(full, FailedTry(MAX_TRIES, 60.0, placing=True, slow=True), _longest) is None


def _longest(low: float, high: float) -> float:
    return high


@given(faults, tries)
def test_every_retry_is_in_time_bounded_safe_and_on_a_possible_worker(
    fault: Fault, tried: FailedTry
) -> None:
    retry = decide(fault, tried, _longest)
    if retry is None:
        return
    assert retry.delay <= tried.remaining
    assert tried.tries < 12
    if fault.started != "no":
        assert tried.repeatable
        assert not tried.repeated
        assert retry.repeats
    if tried.pinned:
        assert not retry.avoid_worker


@given(faults, faults)
def test_the_more_informative_fault_of_two_tries_is_kept(first: Fault, second: Fault) -> None:
    ranks = ["no", "unknown", "yes"]
    kept = more_informative(first, second)
    assert ranks.index(kept.started) == max(map(ranks.index, (first.started, second.started)))
    if first.started == second.started:
        hid_cause = first.reason in DOWN and second.reason is Reason.CAPACITY
        assert kept.reason is second.reason or (kept is first and hid_cause)
    assert more_informative(None, second) is second


def test_a_timeout_tells_why_an_earlier_try_failed() -> None:
    down = Fault(Reason.OVERLOADED, "The audit's sink cannot be reached.")
    passed = Fault(Reason.DEADLINE_EXCEEDED, "The timeout passed.", started="unknown")
    kept = more_informative(down, passed)
    assert (kept.reason, kept.started) == (Reason.DEADLINE_EXCEEDED, "unknown")
    assert kept.message == (
        "The timeout passed. An earlier try failed: The audit's sink cannot be reached."
    )


@pytest.mark.parametrize("reason", FINAL)
def test_rejections_are_final(reason: Reason) -> None:
    assert decide(Fault(reason, "No."), FailedTry(1, 60.0, repeatable=True)) is None


@pytest.mark.parametrize(
    "reason",
    [Reason.WORKER_LOST, Reason.DRAINING, Reason.NOT_APPLIED, Reason.OVERLOADED],
)
def test_a_call_that_did_not_start_is_retried_on_another_worker_at_once(reason: Reason) -> None:
    fault = Fault(reason, "No.", retry_delay=5.0)
    retry = decide(fault, FailedTry(1, 60.0, elsewhere=True))
    assert retry == Retry(delay=0.0, avoid_worker=True)


def test_without_another_worker_the_requested_delay_is_kept() -> None:
    fault = Fault(Reason.OVERLOADED, "Full.", retry_delay=0.7)
    assert decide(fault, FailedTry(1, 60.0)) == Retry(0.7, avoid_worker=True, resolve=True)


def test_without_a_requested_delay_retries_back_off() -> None:
    fault = Fault(Reason.WORKER_LOST, "Gone.")
    delays = [decide(fault, FailedTry(n, 60.0, pinned=True), _longest) for n in (1, 2, 3)]
    assert [retry.delay if retry else None for retry in delays] == [0.1, 0.2, 0.4]


def test_the_last_try_is_the_fifth() -> None:
    fault = Fault(Reason.OVERLOADED, "Full.")
    assert decide(fault, FailedTry(MAX_TRIES - 1, 60.0)) is not None
    assert decide(fault, FailedTry(MAX_TRIES, 60.0)) is None


def test_retries_outlast_the_replacement_of_a_lost_worker_but_not_on_a_lease() -> None:
    fault = Fault(Reason.WORKER_LOST, "Gone.")
    waits = [decide(fault, FailedTry(n, 60.0), lambda _, high: high / 2) for n in range(1, 12)]
    assert sum(retry.delay for retry in waits if retry) > 5
    assert decide(fault, FailedTry(12, 60.0)) is None
    assert decide(fault, FailedTry(MAX_TRIES, 60.0, pinned=True)) is None


def test_retries_outlast_a_settling_control_plane() -> None:
    fault = Fault(Reason.SYNCING, "Wait.")
    waits = [decide(fault, FailedTry(n, 60.0), lambda low, high: low) for n in range(1, 12)]
    assert sum(retry.delay for retry in waits if retry) > 2.5
    assert decide(fault, FailedTry(12, 60.0)) is None


@pytest.mark.parametrize("reason", [Reason.TOOL_NOT_FOUND, Reason.ARTIFACT_LOST])
def test_a_cached_name_is_resolved_once_more(reason: Reason) -> None:
    fault = Fault(reason, "No.")
    assert decide(fault, FailedTry(1, 60.0, cached=True)) == Retry(resolve=True)
    assert decide(replace(fault, started="yes"), FailedTry(1, 60.0, cached=True)) is None
    assert decide(fault, FailedTry(2, 60.0, cached=False)) is None


def test_a_call_to_a_server_that_became_shared_is_resolved_again() -> None:
    fault = Fault(Reason.NOT_LEASABLE, "No.")
    assert decide(fault, FailedTry(1, 60.0, leased=True)) == Retry(resolve=True)
    assert decide(fault, FailedTry(MAX_TRIES, 60.0, leased=True)) is None
    assert decide(fault, FailedTry(1, 60.0, placing=True, elsewhere=True)) is None


def test_a_full_worker_is_final_for_a_call_but_not_for_a_placement() -> None:
    fault = Fault(Reason.CAPACITY, "Full.")
    retry = decide(fault, FailedTry(1, 60.0, placing=True, elsewhere=True))
    assert retry == Retry(0.0, avoid_worker=True)
    assert decide(fault, FailedTry(1, 60.0)) is None


@pytest.mark.parametrize("started", ["yes", "unknown"])
def test_a_repeatable_call_is_repeated_once(started: Started) -> None:
    fault = Fault(Reason.FATE_UNKNOWN, "Lost.", started)
    assert decide(fault, FailedTry(1, 60.0)) is None
    retry = decide(fault, FailedTry(1, 60.0, repeatable=True))
    assert retry is not None
    assert retry.repeats
    assert decide(fault, FailedTry(2, 60.0, repeatable=True, repeated=True)) is None


def test_a_busy_server_is_tried_again_after_its_delay() -> None:
    busy = Fault(Reason.SERVER_ERROR, "Busy.", "no", retry_delay=3.0)
    for elsewhere in (False, True):
        assert decide(busy, FailedTry(1, 60, elsewhere=elsewhere)) == Retry(3.0)
    assert decide(busy, FailedTry(1, 2.0)) is None
    assert decide(busy, FailedTry(MAX_TRIES, 60)) is None
    at_once = Fault(Reason.SERVER_ERROR, "Busy.", "no", retry_delay=0.0)
    retry = decide(at_once, FailedTry(1, 60), _longest)
    assert retry is not None
    assert retry.delay > 0
    assert decide(Fault(Reason.SERVER_ERROR, "No.", "no"), FailedTry(1, 60)) is None
    assert (
        decide(Fault(Reason.SERVER_ERROR, "No.", "yes", retry_delay=1.0), FailedTry(1, 60)) is None
    )


def test_a_call_waits_for_a_limit_to_renew_only_if_time_is_left_to_run_then() -> None:
    limited = Fault(Reason.RATE_LIMITED, "No.", "no", retry_delay=10.0)
    assert decide(limited, FailedTry(1, remaining=10.2)) is None
    assert decide(limited, FailedTry(1, remaining=10.3)) == Retry(10.0)
    brief = Fault(Reason.RATE_LIMITED, "No.", "no", retry_delay=0.1)
    assert decide(brief, FailedTry(1, remaining=0.3)) == Retry(0.1)
