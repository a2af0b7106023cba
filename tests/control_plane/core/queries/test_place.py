"""Placement of leases."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.control_plane.core.builders import (
    START,
    at,
    coordinator,
    hello,
    lease,
    listing,
    load,
    spec,
)
from tests.control_plane.core.fake_worker import FakeWorker, never_up, run, started

from leaseway.control_plane.core.coordinator import Coordinator
from leaseway.control_plane.core.denial import Denial
from leaseway.control_plane.core.placement.caller import PlacementCaller
from leaseway.control_plane.core.placement.table import Placement
from leaseway.control_plane.core.placement.wait_queue import Waiter
from leaseway.control_plane.core.queries import place as module
from leaseway.control_plane.core.queries.place import place, place_or_wait, serve_queue
from leaseway.control_plane.core.workers.records import WorkerReport
from leaseway.spec.model import InstancePolicy
from leaseway.spec.policy import Quota, ServerPolicy, TenantLimits
from leaseway.wire import bounds
from leaseway.wire.errors import Reason
from leaseway.wire.names import LeaseKey
from leaseway.wire.sharing.limits import LimitEntry, limit_entry, reached_limit

KEY = LeaseKey("default", "dialog", "a")


def test_a_shared_server_is_not_leasable() -> None:
    state, _ = started(spec("a", shared=True))
    denied = place(state, KEY, (), START)
    assert isinstance(denied, Denial)
    assert denied.reason is Reason.NOT_LEASABLE


def test_before_settling_only_known_leases_are_placed() -> None:
    state = coordinator(expected_workers=0)
    worker = FakeWorker()
    load(state, spec("a", shared=False))
    state.handle_worker_joined(hello(), START)
    run(state, [worker])
    probe = worker.probes.pop()
    state.handle_probe_result(probe.id, listing("echo"), START)
    run(state, [worker])
    denied = place(state, KEY, (), at(1))
    assert isinstance(denied, Denial)
    assert denied.reason is Reason.SYNCING
    assert denied.retry_delay == 0.25
    assert place(state, KEY, (), at(3)) == Placement("w1"), "the time counts, not the next tick"


def two_workers() -> Coordinator:
    """Return a coordinator with two workers that serve `a`."""
    state, w1 = started(spec("a", shared=False))
    w2 = FakeWorker("w2")
    state.handle_worker_joined(hello("w2"), START)
    run(state, [w1, w2])
    return state


@pytest.mark.parametrize("held", [True, False])
def test_a_lease_waits_for_its_disconnected_worker(held: bool) -> None:
    state = two_workers()
    assert place(state, KEY, (), START) == Placement("w1")
    if held:
        report = WorkerReport(gained=(lease("L1", "w1", KEY.session),))
        state.handle_report("w1", report, START)
    state.handle_worker_disconnected("w1", at(1))
    denied = place(state, KEY, (), at(1.05))
    assert isinstance(denied, Denial)
    assert (denied.reason, denied.retry_delay) == (Reason.SYNCING, 1.0)
    assert place(state, LeaseKey("default", "other", "a"), (), at(1.05)) == Placement("w2")
    assert place(state, KEY, {"w1"}, at(1.1)) == Placement("w2"), "it is excluded"


def test_the_lease_of_a_lost_worker_is_placed_on_another() -> None:
    state = two_workers()
    state.handle_report("w1", WorkerReport(gained=(lease("L1", "w1", KEY.session),)), START)
    state.handle_worker_disconnected("w1", at(1))
    state.tick(at(1 + bounds.WORKER_LOST_AFTER))
    assert place(state, KEY, (), at(1 + bounds.WORKER_LOST_AFTER)) == Placement("w2")


def test_a_full_fleet_answers_capacity_with_a_retry_delay() -> None:
    state, _ = started(spec("a", shared=False))
    for number in range(8):
        assert place(state, LeaseKey("default", f"s{number}", "a"), (), START) == Placement("w1")
    denied = place(state, KEY, (), START)
    assert isinstance(denied, Denial)
    assert (denied.reason, denied.retry_delay) == (Reason.CAPACITY, 1.0)


def test_a_waiting_request_still_prefers_the_worker_of_its_caller() -> None:
    state = two_workers()
    for number in range(16):
        place(state, LeaseKey("default", f"s{number}", "a"), (), START)
    waiter = place_or_wait(state, KEY, (), at(1), wait=True, caller=PlacementCaller("w2"))
    assert isinstance(waiter, Waiter)
    later = at(1 + bounds.RESERVATION)  # all reservations have expired
    for name in ("w1", "w2"):
        state.placements.record_contact(name)
    serve_queue(state, later)
    assert state.wait_queue.pop_answers() == [(waiter.id, Placement("w2"))]


def test_a_listed_server_that_no_worker_serves_is_not_ready() -> None:
    state, _ = started(spec("a", shared=False))
    state.handle_worker_disconnected("w1", at(1))
    state.tick(at(12))
    denied = place(state, KEY, (), at(12))
    assert isinstance(denied, Denial)
    assert denied.reason is Reason.SERVER_NOT_READY


def test_a_queued_request_does_not_wait_for_a_failed_server() -> None:
    state, _ = never_up()
    denied = place_or_wait(state, KEY, (), at(1), wait=True)
    assert isinstance(denied, Denial)
    assert denied.reason is Reason.SERVER_NOT_READY


def filled(most: int) -> tuple[Coordinator, str]:
    """Return the denial of a coordinator whose one worker has reached a limit."""
    instances = InstancePolicy(max_instances=most)
    state, _ = started(replace(spec("a", shared=False), instances=instances))
    for number in range(min(most, 8)):
        assert place(state, LeaseKey("default", f"s{number}", "a"), (), START) == Placement("w1")
    denied = place(state, KEY, (), START)
    assert isinstance(denied, Denial)
    return state, denied.message


def test_a_capacity_error_names_the_limit_and_advice() -> None:
    _, message = filled(2)
    assert "1 worker with 2 of 2 leases of it (max_instances)." in message
    assert "raise its 'max_instances', add workers, or let the request wait" in message
    _, message = filled(100)
    assert "1 worker with 8 of 8 leases of any server (capacity)." in message
    assert "raise" not in message
    state, _ = started(spec("a", shared=False))
    denied = place(state, KEY, {"w1"}, START)
    assert isinstance(denied, Denial)
    assert "1 worker that just refused it or could not be reached." in denied.message


def test_the_denial_of_a_full_tenant_contains_its_limit() -> None:
    state, _ = started(spec("a", shared=False))
    for number in range(bounds.MAX_TENANT_LEASES):
        state.placements.add_lease(lease(f"L{number}", "w1", f"s{number}"))
    denied = place(state, KEY, (), START)
    assert isinstance(denied, Denial)
    assert "holds 1024 leases, which is its limit." in denied.message
    assert "wait=" in denied.message


def test_a_new_lease_waits_for_workers_that_are_all_disconnected_until_they_are_lost() -> None:
    state = two_workers()
    for worker_id in ("w1", "w2"):
        state.handle_worker_disconnected(worker_id, START)
    away = place(state, KEY, (), at(1))
    assert isinstance(away, Denial)
    assert away.reason is Reason.SYNCING
    unreachable = place(state, KEY, ("w1", "w2"), at(1))
    assert isinstance(unreachable, Denial)
    assert unreachable.reason is Reason.SERVER_NOT_READY
    state.tick(at(bounds.WORKER_LOST_AFTER))
    lost = place(state, KEY, (), at(bounds.WORKER_LOST_AFTER))
    assert isinstance(lost, Denial)
    assert lost.reason is Reason.SERVER_NOT_READY


def _limited(tenant: str) -> ServerPolicy:
    return ServerPolicy(limits={tenant: TenantLimits(leases=2)})


@pytest.mark.parametrize(
    ("policy", "scope", "entry", "said"),
    [
        (_limited("default"), "tenant", LimitEntry("default"), "holds"),
        (_limited("*"), "tenant", LimitEntry("*"), "holds"),
        (
            ServerPolicy(quota=Quota(leases=2)),
            "server",
            LimitEntry(server_id="a"),
            "Server 'a' has",
        ),
    ],
)
def test_a_limit_of_leases_holds_over_all_workers(
    policy: ServerPolicy, scope: str, entry: LimitEntry, said: str
) -> None:
    state, _ = started(replace(spec("a", shared=False), policy=policy))
    for number, worker in enumerate(("w1", "w2")):
        state.placements.add_lease(lease(f"L{number}", worker, f"s{number}"))
    denied = place(state, KEY, (), START)
    assert isinstance(denied, Denial)
    assert denied.reason is Reason.CAPACITY
    assert f"{said} 2 leases, which is its limit." in denied.message
    assert reached_limit(denied.metadata) == ("leases", scope)
    assert limit_entry(denied.metadata) == entry


def test_an_event_tries_waiting_requests_only_if_it_may_have_changed_something_for_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one_instance = replace(spec("a", shared=False), instances=InstancePolicy(max_instances=1))
    state, _ = started(one_instance)
    state.handle_report("w1", WorkerReport(gained=(lease("L1", "w1", "held"),)), at(1))
    for number in range(20):
        key = LeaseKey(f"t{number:02}", "s", "a")
        assert isinstance(place_or_wait(state, key, (), at(1), wait=True), Waiter)
    tried: list[LeaseKey] = []

    def counted(of: Coordinator, key: LeaseKey, *more: object) -> object:
        tried.append(key)
        return _try_place(of, key, *more)  # type: ignore[arg-type]

    _try_place = module._try_place
    monkeypatch.setattr(module, "_try_place", counted)
    serve_queue(state, at(1))
    tried.clear()
    for number in range(100):
        state.handle_report("w1", WorkerReport(calls_in_flight=number), at(2))
        serve_queue(state, at(2))
    assert tried == []
    state.handle_report("w1", WorkerReport(lost=("L1",)), at(3))
    serve_queue(state, at(3))
    ((_, answer_),) = state.wait_queue.pop_answers()
    assert answer_ == Placement("w1")
    tried.clear()
    state.handle_worker_joined(hello("w2"), at(4))
    serve_queue(state, at(4))
    assert len(tried) == 19
