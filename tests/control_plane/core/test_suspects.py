"""Suspect workers: their streams are open, but they do not answer (design.md#leases)."""

from __future__ import annotations

from tests.control_plane.core.builders import at, coordinator, hello, listing, load, spec
from tests.control_plane.core.fake_worker import FakeWorker, run

from leaseway.control_plane.core.coordinator import Coordinator
from leaseway.control_plane.core.placement.table import HeldLease, Placement
from leaseway.control_plane.core.queries.place import place
from leaseway.control_plane.core.workers.actions import PushDelta, StartProbe
from leaseway.control_plane.core.workers.records import WorkerReport
from leaseway.wire.names import LeaseKey

LEASED = (spec("a", shared=False), spec("other", shared=False))


def two_workers(*, capacity: int = 8) -> tuple[Coordinator, list[FakeWorker]]:
    """Return a coordinator and two workers, `w1` and `w2`, that serve `a` and `other`."""
    state, workers = coordinator(2), [FakeWorker("w1"), FakeWorker("w2")]
    load(state, *LEASED)
    for worker in workers:
        state.handle_worker_joined(hello(worker.id, capacity=capacity), at(0))
    run(state, workers)
    for worker in workers:
        while worker.probes:
            state.handle_probe_result(worker.probes.pop().id, listing("echo"), at(0))
            run(state, workers)
    return state, workers


def chosen(state: Coordinator, session: str, seconds: float, server_id: str = "a") -> str:
    """Return where a session's lease is placed."""
    placed = place(state, LeaseKey("default", session, server_id), (), at(seconds))
    assert isinstance(placed, Placement), placed
    return placed.worker_id


def report_lease(state: Coordinator, worker_id: str, session: str, seconds: float) -> None:
    """Report a placed lease."""
    key = LeaseKey("default", session, "a")
    lease = HeldLease(f"L-{session}", key, worker_id, at(seconds).mono)
    state.record_contact(worker_id)
    state.handle_report(worker_id, WorkerReport(gained=(lease,)), at(seconds))


def leave_behind(state: Coordinator, other: FakeWorker) -> None:
    """Commit another server whose delta only one of two workers acknowledges."""
    load(state, *LEASED, spec("b"), now=at(1))
    ((_, probe),) = state.pop_actions()
    assert isinstance(probe, StartProbe)
    state.handle_probe_result(probe.id, listing("echo"), at(1))
    for worker_id, action in state.pop_actions():
        assert isinstance(action, PushDelta)
        if worker_id == other.id:
            state.handle_ack(worker_id, action.push.nonce, at(1))


def test_a_worker_with_an_unacknowledged_push_is_chosen_last() -> None:
    state, workers = two_workers()
    leave_behind(state, workers[1])
    assert chosen(state, "s1", 2.9) == "w1", "it may still answer"
    report_lease(state, "w1", "s1", 2.95)
    assert chosen(state, "s2", 2.95) == "w2"
    report_lease(state, "w2", "s2", 2.95)
    assert [chosen(state, f"later{n}", 3.0 + n / 10) for n in range(3)] == ["w2"] * 3


def test_a_session_leaves_its_worker_if_that_is_suspect() -> None:
    state, workers = two_workers()
    assert chosen(state, "mine", 0.0) == "w1"
    report_lease(state, "w1", "mine", 0.0)
    leave_behind(state, workers[1])
    assert chosen(state, "mine", 5.0, "other") == "w2"


def test_a_silent_chosen_worker_is_suspect_for_half_a_minute() -> None:
    state, _ = two_workers()
    assert chosen(state, "s1", 10.0) == "w1"
    assert chosen(state, "s2", 11.9) == "w2"
    report_lease(state, "w2", "s2", 11.95)
    assert chosen(state, "s3", 11.95) == "w1", "equally loaded, and not suspect yet"
    assert chosen(state, "s4", 12.0) == "w2"
    report_lease(state, "w2", "s4", 12.0)
    assert chosen(state, "s5", 25.0) == "w2", "what was reserved is over, the silence is not"
    report_lease(state, "w2", "s5", 25.0)
    assert chosen(state, "s6", 40.0) == "w1"


def test_one_message_ends_the_suspicion() -> None:
    state, _ = two_workers()
    assert chosen(state, "s1", 10.0) == "w1"
    assert chosen(state, "s2", 10.0) == "w2"
    report_lease(state, "w2", "s2", 10.1)
    assert chosen(state, "s3", 13.0) == "w2"
    state.record_contact("w1")
    assert chosen(state, "s4", 13.0) == "w1"


def test_a_suspect_worker_is_chosen_if_there_is_no_other() -> None:
    state, _ = two_workers(capacity=1)
    assert chosen(state, "s1", 0.0) == "w1"
    assert chosen(state, "s2", 0.0) == "w2"
    report_lease(state, "w2", "s2", 0.1)
    state.placements.expire(at(10).mono)
    assert chosen(state, "s3", 10.0) == "w1"


def test_held_and_reserved_leases_stay_on_a_suspect_worker() -> None:
    state, _ = two_workers()
    assert chosen(state, "s1", 0.0) == "w1"
    assert chosen(state, "s1", 5.0) == "w1"
    report_lease(state, "w1", "s1", 6.0)
    assert chosen(state, "s2", 6.0) == "w2"
    assert chosen(state, "s1", 20.0) == "w1"
