"""Changed listings that a worker sends unasked are verified by another worker."""

from __future__ import annotations

import json

from tests.control_plane.core.builders import (
    START,
    at,
    coordinator,
    hello,
    listing,
    load,
    recorded,
    spec,
)
from tests.control_plane.core.fake_worker import FAILED, FakeWorker, exposed, run

from leaseway.control_plane.core.catalog.listing import ServerListing
from leaseway.control_plane.core.coordinator import Coordinator
from leaseway.control_plane.core.moment import Moment
from leaseway.control_plane.core.problems import Problem
from leaseway.spec.model import VariantKey

A = VariantKey("a")
LAUNCH = spec("a").launch_hash
POISON = listing("echo", "poison")


def two_workers() -> tuple[Coordinator, FakeWorker, FakeWorker]:
    """Return a coordinator with the worker that probed server `a`, and another that has it."""
    state, first, second = coordinator(), FakeWorker("w1"), FakeWorker("w2")
    load(state, spec("a"))
    state.handle_worker_joined(hello("w1"), START)
    run(state, [first])
    answer(state, [first], listing("echo"), START)
    state.handle_worker_joined(hello("w2"), START)
    run(state, [first, second])
    assert A in second.held
    return state, first, second


def answer(
    state: Coordinator,
    workers: list[FakeWorker],
    outcome: ServerListing | Problem,
    now: Moment,
) -> None:
    """Send the probe result of the first worker that has one."""
    state.handle_probe_result(workers[0].probes.pop(0).id, outcome, now)
    run(state, workers, now)
    state.tick(Moment(now.mono + 0.1, now.unix + 0.1))  # later than what shares a version
    run(state, workers, now)


def reasons(state: Coordinator) -> list[tuple[str, str]]:
    return [
        (problem.problem.reason, problem.problem.worker_id) for problem in state.problems.open()
    ]


def test_an_unverified_claim_changes_nothing() -> None:
    state, first, second = two_workers()
    version = state.committed.version
    state.handle_relisting("w2", A, LAUNCH, POISON, at(1))
    run(state, [first, second], at(1))
    assert exposed(state) == {"a_echo": "a"}
    assert not second.probes
    assert [probe.relist for probe in first.probes] == [True]
    answer(state, [first, second], listing("echo"), at(2))
    assert state.committed.version == version
    assert reasons(state) == [("LISTS_DIFFER", "w2")]
    state.handle_relisting("w2", A, LAUNCH, listing("echo"), at(3))
    assert reasons(state) == []


def test_a_claim_that_another_worker_confirms_is_applied() -> None:
    state, first, second = two_workers()
    more = listing("echo", "more")
    state.handle_relisting("w2", A, LAUNCH, more, at(1))
    run(state, [first, second], at(1))
    answer(state, [first, second], more, at(2))
    assert exposed(state) == {"a_echo": "a", "a_more": "a"}
    assert reasons(state) == []


def test_a_new_listing_of_the_probing_worker_is_applied() -> None:
    state, first, second = two_workers()
    state.handle_relisting("w1", A, LAUNCH, listing("echo", "more"), at(1))
    run(state, [first, second], at(1))
    assert exposed(state) == {"a_echo": "a", "a_more": "a"}
    assert first.probes == second.probes == []


def test_a_new_stream_of_the_probing_worker_makes_claims() -> None:
    state, first, second = two_workers()
    state.handle_worker_disconnected("w1", at(1))
    state.handle_worker_joined(hello("w1", held=first.hashes()), at(2))
    run(state, [first, second], at(2))
    state.handle_relisting("w1", A, LAUNCH, POISON, at(3))
    run(state, [first, second], at(3))
    assert exposed(state) == {"a_echo": "a"}
    assert [probe.relist for probe in second.probes] == [True]


def test_after_a_restart_the_only_worker_is_asked_and_starts_nothing() -> None:
    before, first, _ = two_workers()
    state = coordinator()
    load(state, spec("a"))
    state.handle_worker_joined(hello("w1", held=first.hashes()), at(1))
    run(state, [first], at(1))
    assert first.probes == []
    assert exposed(state) == exposed(before)
    more = listing("echo", "more")
    state.handle_relisting("w1", A, LAUNCH, more, at(2))
    run(state, [first], at(2))
    assert [probe.relist for probe in first.probes] == [True]
    answer(state, [first], more, at(2))
    assert exposed(state) == {"a_echo": "a", "a_more": "a"}
    state.handle_relisting("w1", A, LAUNCH, listing("echo"), at(3))
    run(state, [first], at(3))
    assert first.probes == []
    assert exposed(state) == {"a_echo": "a"}


def test_a_claim_is_verified_by_a_new_start_if_no_instance_is_live() -> None:
    state, first, second = two_workers()
    state.handle_relisting("w2", A, LAUNCH, POISON, at(1))
    run(state, [first, second], at(1))
    answer(state, [first, second], FAILED, at(1))
    state.tick(at(5))
    run(state, [first, second], at(5))
    assert [probe.relist for probe in first.probes] == [False]
    answer(state, [first, second], listing("echo"), at(6))
    assert exposed(state) == {"a_echo": "a"}
    assert reasons(state) == [("LISTS_DIFFER", "w2")]


def test_a_worker_never_verifies_its_own_claim_if_others_accept_the_server() -> None:
    state, first, second = two_workers()
    state.handle_relisting("w2", A, LAUNCH, POISON, at(1))
    run(state, [first, second], at(1))
    for second_of_try in range(5, 100, 30):
        if first.probes:
            answer(state, [first, second], FAILED, at(second_of_try))
        state.tick(at(second_of_try + 20))
        run(state, [first, second], at(second_of_try + 20))
    assert first.probes == second.probes == []
    assert exposed(state) == {"a_echo": "a"}
    assert reasons(state) == [("LISTS_DIFFER", "w2")]


def test_verifications_of_claims_are_rate_limited() -> None:
    state, first, second = two_workers()
    asked = 0
    for tenth in range(10, 310):
        state.handle_relisting("w2", A, LAUNCH, listing("echo", f"poison{tenth}"), at(tenth / 10))
        state.tick(at(tenth / 10))
        run(state, [first, second], at(tenth / 10))
        if first.probes:
            asked += 1
            answer(state, [first, second], listing("echo"), at(tenth / 10))
    assert 3 <= asked <= 4
    assert exposed(state) == {"a_echo": "a"}


def test_a_new_exposure_keeps_a_pending_verification() -> None:
    state, first, second = two_workers()
    state.handle_relisting("w2", A, LAUNCH, listing("echo", "more"), at(1))
    run(state, [first, second], at(1))
    load(state, spec("a", prefix="p_"), now=at(2))
    run(state, [first, second], at(2))
    assert first.cancelled == []
    answer(state, [first, second], listing("echo", "more"), at(3))
    assert exposed(state) == {"p_echo": "a", "p_more": "a"}


def described(name: str, **members: object) -> ServerListing:
    return ServerListing(recorded(name, definition=json.dumps({"name": name, **members}).encode()))


def test_a_claim_that_differs_only_in_texts_is_no_mismatch() -> None:
    state, first, second = two_workers()
    state.handle_relisting("w2", A, LAUNCH, described("echo", description="pid 2"), at(1))
    run(state, [first, second], at(1))
    answer(state, [first, second], described("echo", description="pid 1"), at(2))
    assert reasons(state) == []


def test_a_listing_in_another_order_is_no_new_version() -> None:
    state, first, second = two_workers()
    orders = [["a", "b", "c"], ["c", "a", "b"], ["b", "c", "a"]]
    listings = [described("echo", inputSchema={"enum": order}) for order in orders]
    state.handle_relisting("w1", A, LAUNCH, listings[0], at(1))
    run(state, [first, second], at(1))
    state.tick(at(2))
    version = state.committed.version
    for number, listed in enumerate(listings[1:], start=3):
        state.handle_relisting("w1", A, LAUNCH, listed, at(number))
        state.handle_relisting("w2", A, LAUNCH, listed, at(number))
        run(state, [first, second], at(number))
        state.tick(at(number + 1))
    assert state.committed.version == version
    assert not first.probes
    assert not second.probes
