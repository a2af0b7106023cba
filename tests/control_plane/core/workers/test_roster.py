"""Refusals, reports, leases and losses of workers."""

from __future__ import annotations

from tests.control_plane.core.builders import (
    START,
    Able,
    at,
    coordinator,
    hello,
    lease,
    listing,
    load,
    spec,
)

from leaseway.control_plane.core.coordinator import Coordinator
from leaseway.control_plane.core.denial import Denial
from leaseway.control_plane.core.moment import Moment
from leaseway.control_plane.core.placement.table import Placement
from leaseway.control_plane.core.problems import Problem
from leaseway.control_plane.core.queries.place import place
from leaseway.control_plane.core.workers.actions import DrainWorker, PushDelta, RevokeLease
from leaseway.control_plane.core.workers.records import WorkerIdentity, WorkerReport
from leaseway.control_plane.core.workers.subscription import Push, VariantRefusal
from leaseway.spec.model import VariantKey
from leaseway.wire.errors import Reason

A = VariantKey("a")
DIFFERS = Problem("server", "TOOL_DIFFERS", "A tool of 'a' differs here.", "a")


def next_push(state: Coordinator) -> Push:
    """Return the only queued delta."""
    (push,) = [action.push for _, action in state.pop_actions() if isinstance(action, PushDelta)]
    return push


def offered(*server_ids: str) -> tuple[Coordinator, Push]:
    """Return a coordinator and the delta that offers its only worker these servers."""
    state = coordinator()
    load(state, *(spec(server_id) for server_id in server_ids))
    state.handle_worker_joined(hello(), START)
    for push in [action.push for _, action in state.pop_actions() if isinstance(action, PushDelta)]:
        state.handle_ack("w1", push.nonce, START)
    for job in list(state.servers.probes.jobs.values()):
        assert job.running is not None
        state.handle_probe_result(job.running.id, listing("echo"), START)
    return state, next_push(state)


def refuse(state: Coordinator, push: Push, reason: str) -> None:
    refusal = VariantRefusal(A, reason, f"it is {reason}")
    state.handle_nack("w1", push.nonce, [refusal], START)
    state.handle_ack("w1", push.nonce, START)


def reasons(state: Coordinator) -> list[str]:
    return sorted(problem.problem.reason for problem in state.problems.open())


def test_acknowledging_a_variant_closes_only_its_refusal() -> None:
    state, push = offered("a")
    refuse(state, push, "BAD")
    state.handle_report("w1", WorkerReport(problems=(DIFFERS,)), START)
    assert reasons(state) == ["BAD", "TOOL_DIFFERS"]
    load(state, spec("a", prefix="new_"))
    state.handle_ack("w1", next_push(state).nonce, START)
    assert reasons(state) == ["TOOL_DIFFERS"]


def test_a_new_reason_replaces_the_old_one_of_a_variant() -> None:
    state, push = offered("a")
    refuse(state, push, "BAD")
    load(state, spec("a", prefix="new_"))
    refuse(state, next_push(state), "WORSE")
    assert reasons(state) == ["WORSE"]


def test_a_refusal_of_an_unsent_variant_is_ignored() -> None:
    state, push = offered("a")
    unknown = VariantRefusal(VariantKey("other"), "BAD", "never sent")
    state.handle_nack("w1", push.nonce, [unknown], START)
    state.handle_nack("w1", push.nonce + 1, [VariantRefusal(A, "BAD", "stale")], START)
    assert reasons(state) == []


def test_a_rejoining_worker_is_not_sent_what_it_refused() -> None:
    state, push = offered("a", "b")
    refuse(state, push, "BAD")
    state.pop_actions()
    held = {upsert.key: upsert.hashes for upsert in push.upserts if upsert.key != A}
    state.handle_worker_disconnected("w1", at(1))
    state.handle_worker_joined(hello(held=held, highest_version=push.version), at(2))
    resync = next_push(state)
    assert resync.upserts == ()
    state.handle_ack("w1", resync.nonce, at(2))
    assert reasons(state) == ["BAD"]
    load(state, spec("b"), now=at(3))
    assert reasons(state) == []


def test_duplicates_with_reversed_ages_are_not_both_revoked() -> None:
    state = coordinator(expected_workers=2)
    load(state, spec("a", shared=False))
    for name in ("w1", "w2"):
        state.handle_worker_joined(hello(name), START)
    first = lease("L1", "w1")._replace(granted_at=at(1.0).mono)
    second = lease("L2", "w2")._replace(granted_at=at(1.1).mono)
    state.handle_report("w1", WorkerReport(gained=(first,)), at(1.2))
    state.handle_report("w2", WorkerReport(gained=(second,)), at(1.2))
    slow = first._replace(granted_at=at(1.3).mono)  # its report was on its way for 0.3 s
    assert revoked(state) == []
    state.tick(at(4))
    assert revoked(state) == [("w2", "L2")]
    state.handle_report("w1", WorkerReport(gained=(slow,)), at(4.1))
    state.tick(at(7))
    assert revoked(state) == []
    state.handle_worker_joined(hello("w2", leases=(second,)), at(8))  # it may have missed messages
    state.tick(at(11))
    assert len(revoked(state)) == 1


def test_a_duplicate_stays_if_the_older_lease_ends_soon_after() -> None:
    state = coordinator(expected_workers=2)
    load(state, spec("a", shared=False))
    for name in ("w1", "w2"):
        state.handle_worker_joined(hello(name), START)
    failed, stands = (lease(f"L{n}", f"w{n}")._replace(granted_at=at(n).mono) for n in (1, 2))
    state.handle_report("w1", WorkerReport(gained=(failed,)), at(2.1))
    state.handle_report("w2", WorkerReport(gained=(stands,)), at(2.1))
    state.handle_report("w1", WorkerReport(lost=("L1",)), at(2.2))  # the caller knew before
    state.tick(at(10))
    assert revoked(state) == []


def test_a_draining_worker_is_drained_again_on_a_new_stream() -> None:
    state, _ = offered("a")
    held = lease("L1", "w1")
    state.handle_report("w1", WorkerReport(gained=(held,)), at(1))
    assert state.drain_worker("w1", at(1))
    state.pop_actions()  # lost with the stream
    state.handle_worker_disconnected("w1", at(2))
    state.handle_worker_joined(hello(leases=(held,)), at(3))
    assert [name for name, action in state.pop_actions() if isinstance(action, DrainWorker)] == [
        "w1"
    ]
    assert state.workers["w1"].draining


def test_a_draining_run_reconnects_draining_and_a_new_run_does_not() -> None:
    state, _ = offered("a")
    assert state.drain_worker("w1", at(1))
    state.pop_actions()
    state.handle_worker_disconnected("w1", at(2))
    assert "w1" not in state.workers, "without leases it is not waited for"
    state.handle_worker_joined(hello(), at(11))
    assert state.workers["w1"].draining
    assert [name for name, action in state.pop_actions() if isinstance(action, DrainWorker)] == [
        "w1"
    ]
    state.handle_worker_disconnected("w1", at(12))
    next_run = WorkerIdentity("w1", "another-run", "127.0.0.1:1")
    state.handle_worker_joined(hello(address=next_run), at(13))
    assert not state.workers["w1"].draining


def test_a_drained_run_is_remembered_for_ten_seconds() -> None:
    state, _ = offered("a")
    assert state.drain_worker("w1", at(1))
    state.handle_worker_disconnected("w1", at(2))
    state.handle_worker_joined(hello(), at(12))
    assert not state.workers["w1"].draining


def test_a_lost_worker_is_a_problem_until_it_reconnects() -> None:
    state, _ = offered("a")
    state.handle_report("w1", WorkerReport(gained=(lease("L1", "w1"),)), at(1))
    state.handle_worker_disconnected("w1", at(1))
    state.tick(at(10.9))
    assert reasons(state) == []
    state.tick(at(11))
    (lost,) = [problem.problem for problem in state.problems.open()]
    assert (lost.reason, lost.worker_id) == ("WORKER_LOST", "w1")
    assert "'w1'" in lost.message
    assert "Its 1 leases" in lost.message
    state.handle_worker_joined(hello(), at(20))
    assert reasons(state) == []


def test_the_problem_of_a_lost_worker_expires() -> None:
    state, _ = offered("a")
    state.handle_worker_disconnected("w1", at(1))
    state.tick(at(11))
    assert reasons(state) == ["WORKER_LOST"]
    due = state.next_deadline()
    assert due is not None
    state.tick(at(due - START.mono))
    assert reasons(state) == []


def known(state: Coordinator) -> dict[str, str]:
    return {record.id: record.state for record in state.roster.all_workers}


def test_a_lost_worker_is_returned_if_there_is_no_other() -> None:
    state, push = offered("a")
    state.handle_ack("w1", push.nonce, START)
    served = state.visible.served[A]
    state.handle_worker_disconnected("w1", at(1))
    state.tick(at(11))
    assert known(state) == {"w1": "lost"}
    assert "w1" not in state.workers
    assert [record.id for record in state.workers_serving(served)] == ["w1"]
    state.handle_worker_joined(hello("w2", held={A: served.hashes}), at(12))
    assert [record.id for record in state.workers_serving(served)] == ["w2"]
    state.handle_worker_disconnected("w2", at(13))
    state.handle_worker_joined(hello(), at(13))
    assert known(state) == {"w1": "connected", "w2": "lost"}
    state.tick(at(23))
    state.tick(at(700))
    assert known(state) == {"w1": "connected"}


def test_a_lost_worker_with_an_older_version_is_not_returned() -> None:
    state, push = offered("a")
    state.handle_ack("w1", push.nonce, START)
    served = state.visible.served[A]
    state.handle_worker_disconnected("w1", at(1))
    state.tick(at(11))
    assert state.roster.lost_workers_with(served, state.visible.version)
    assert not state.roster.lost_workers_with(served, state.visible.version + 1)


def test_a_drained_worker_is_not_reported_as_lost() -> None:
    state, _ = offered("a")
    state.handle_report("w1", WorkerReport(gained=(lease("L1", "w1"),), draining=True), at(1))
    state.handle_worker_disconnected("w1", at(1))
    state.tick(at(11))
    assert "w1" not in state.workers
    assert reasons(state) == []


def test_a_worker_that_does_not_return_may_have_granted_leases_unreported() -> None:
    state = fleet("w1", "w2")
    doubtful = KEY._replace(session="doubtful")
    assert place(state, doubtful, {"w2"}, at(0.9)) == Placement("w1")
    state.handle_worker_disconnected("w1", at(1))
    for now in (10.9, 11.1):  # also if the next event comes before the clock's tick
        again = place(state, doubtful, (), at(now))
        assert isinstance(again, Denial)
        assert again.reason is Reason.SYNCING
    state.tick(at(11.2))
    assert [lost.key for lost in state.placements.pop_unreported()] == [doubtful]
    assert place(state, doubtful, (), at(11.2)) == Placement("w2")


def test_a_worker_that_has_drained_leaves_no_lease_unreported() -> None:
    state = fleet("w1", "w2")
    assert place(state, KEY._replace(session="other"), {"w2"}, at(1)) == Placement("w1")
    state.handle_report("w1", WorkerReport(draining=True), at(2))
    state.handle_worker_disconnected("w1", at(2))
    state.tick(at(12))
    assert state.placements.pop_unreported() == []


def test_a_lease_that_ended_between_two_reports_frees_its_reservation() -> None:
    state, _ = offered("a")
    brief = lease("L1", "w1")
    placed = state.placements.place(brief.key, Able(("w1",)), (), START.mono)
    assert placed == Placement("w1")
    assert state.placements.load("w1") == 1
    state.handle_report("w1", WorkerReport(gained=(brief,), lost=("L1",)), START)
    assert state.placements.load("w1") == 0
    assert not state.placements.has_lease(brief.key)


KEY = lease("L1", "w1").key


def fleet(*names: str) -> Coordinator:
    """Return a coordinator whose workers all serve the leased server a; w1 holds L1 of it."""
    state = coordinator(expected_workers=len(names))
    load(state, spec("a", shared=False))
    for name in names:
        state.handle_worker_joined(hello(name), START)
    acknowledge(state)
    for job in list(state.servers.probes.jobs.values()):
        assert job.running is not None
        state.handle_probe_result(job.running.id, listing("echo"), START)
    acknowledge(state)
    state.handle_report("w1", WorkerReport(gained=(lease("L1", "w1"),)), START)
    state.pop_actions()
    return state


def acknowledge(state: Coordinator) -> None:
    for name, action in state.pop_actions():
        if isinstance(action, PushDelta):
            state.handle_ack(name, action.push.nonce, START)


def revoked(state: Coordinator) -> list[tuple[str, str]]:
    actions = state.pop_actions()
    return [(name, lease.lease_id) for name, lease in actions if isinstance(lease, RevokeLease)]


def back(state: Coordinator, now: Moment, *names: str) -> None:
    """Reconnect w1 with its leases."""
    held = {action.key: action.hashes for action in state.visible.served.values()}
    leases = tuple(lease(name, "w1") for name in names)
    state.handle_worker_joined(hello("w1", leases=leases, held=held), now)


def test_a_reconnecting_worker_ends_a_lease_that_was_placed_elsewhere() -> None:
    """Only the later lease has a holder; that of the earlier one was told it is lost."""
    state = fleet("w1", "w2")
    state.handle_worker_disconnected("w1", at(1))
    state.tick(at(11))
    assert place(state, KEY, (), at(20)) == Placement("w2")
    later = lease("L2", "w2")._replace(granted_at=at(20).mono)
    state.handle_report("w2", WorkerReport(gained=(later,)), at(20))
    back(state, at(28), "L1")
    assert revoked(state) == [("w1", "L1")]
    assert place(state, KEY, (), at(28)) == Placement("w2", "L2")
    state.handle_report("w1", WorkerReport(lost=("L1",)), at(29))
    assert place(state, KEY, (), at(29)) == Placement("w2", "L2")
    assert revoked(state) == []


def test_a_reservation_elsewhere_ends_the_lease_of_a_reconnecting_worker() -> None:
    state = fleet("w1", "w2")
    state.handle_worker_disconnected("w1", at(1))
    assert place(state, KEY, {"w1"}, at(2)) == Placement("w2")  # whose caller did not reach w1
    back(state, at(3), "L1")
    assert revoked(state) == [("w1", "L1")]
    later = lease("L2", "w2")._replace(granted_at=at(4).mono)
    state.handle_report("w2", WorkerReport(gained=(later,)), at(4))
    assert revoked(state) == []


def test_a_worker_keeps_its_leases_after_a_short_disconnect() -> None:
    state = fleet("w1", "w2")
    state.handle_worker_disconnected("w1", at(1))
    back(state, at(3), "L1")
    assert revoked(state) == []
    assert place(state, KEY, (), at(4)) == Placement("w1", "L1")


def test_a_fenced_lease_is_revoked_and_never_found() -> None:
    state = fleet("w1")
    state.roster.fence("L1", KEY)
    assert revoked(state) == [("w1", "L1")]
    outcome = place(state, KEY, (), at(1))
    assert isinstance(outcome, Denial)  # w1 would answer with the same lease
    assert outcome.reason is Reason.SYNCING
    state.handle_report("w1", WorkerReport(lost=("L1",)), at(2))
    assert place(state, KEY, (), at(2)) == Placement("w1")


def test_a_fenced_lease_is_revoked_when_its_worker_reconnects() -> None:
    state = fleet("w1", "w2")
    state.handle_worker_disconnected("w1", at(1))
    state.tick(at(11))
    state.roster.fence("L1", KEY)
    state.roster.fence("L9", lease("L9", "w1", session="another").key)
    back(state, at(20), "L1", "L9")  # L9 was fenced for another session only
    assert revoked(state) == [("w1", "L1")]
    state.handle_report("w1", WorkerReport(lost=("L1",)), at(21))
    assert place(state, KEY, (), at(21)) == Placement("w1", "L9")
