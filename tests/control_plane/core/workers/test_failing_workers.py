"""Workers that cannot start a server or have not started it are avoided."""

from __future__ import annotations

from tests.control_plane.core.builders import at, hello, spec
from tests.control_plane.core.fake_worker import FakeWorker, run, started

from leaseway.control_plane.core.coordinator import Coordinator
from leaseway.control_plane.core.moment import Moment
from leaseway.control_plane.core.placement.table import Placement
from leaseway.control_plane.core.queries.place import place
from leaseway.control_plane.core.queries.status import (
    counted_variants,
    servers_down,
    variant_status,
)
from leaseway.control_plane.core.workers.instances import ReportedInstance
from leaseway.control_plane.core.workers.records import WorkerReport
from leaseway.control_plane.sync.convert import hello_from_proto
from leaseway.spec.model import VariantKey
from leaseway.v1 import catalog_pb2, sync_pb2
from leaseway.wire.clients.greeting import COMMON
from leaseway.wire.names import LeaseKey


def fleet(shared: bool = True) -> Coordinator:
    """Return a coordinator with two workers that serve `a`."""
    state, w1 = started(spec("a", shared=shared))
    w2 = FakeWorker("w2")
    state.handle_worker_joined(hello("w2"), at(1))
    run(state, [w1, w2], at(1))
    return state


def tell(state: Coordinator, worker_id: str, how: str, failures: int = 0, role: str = "") -> None:
    """Report a worker's instance of `a`."""
    launch = state.servers.last_known_good[VariantKey("a")].launch_hash
    one = ReportedInstance(
        "i", worker_id, VariantKey("a"), how, launch_hash=launch, role=role, failures=failures
    )
    state.handle_report(worker_id, WorkerReport(instances=(one,)), at(2))


def callable_on(state: Coordinator) -> list[str]:
    return [record.id for record in state.workers_serving(state.visible.view("t").servers["a"])]


def test_a_worker_that_cannot_start_the_server_is_not_returned() -> None:
    state = fleet()
    assert callable_on(state) == ["w1", "w2"]
    tell(state, "w1", "backoff", failures=1)
    assert callable_on(state) == ["w2"]
    tell(state, "w2", "backoff", failures=1)
    assert callable_on(state) == ["w1", "w2"], "one of them says why"
    tell(state, "w1", "ready", role="shared")
    assert callable_on(state) == ["w1"]


def test_workers_with_a_ready_instance_are_preferred() -> None:
    state = fleet()
    tell(state, "w1", "starting", role="shared")
    tell(state, "w2", "ready", role="shared")
    assert callable_on(state) == ["w2"]


def test_watchers_are_notified_when_a_shared_instance_starts_or_ends() -> None:
    state = fleet()
    tell(state, "w1", "ready", role="shared")
    one = state.visible_state
    tell(state, "w2", "ready", role="shared")
    both = state.visible_state
    assert both != one
    tell(state, "w2", "ready", role="shared")
    assert state.visible_state is both, "nothing new"
    tell(state, "w2", "backoff", failures=1)
    assert state.visible_state == one


def test_watchers_are_not_notified_of_leased_instances() -> None:
    state = fleet(shared=False)
    before = state.visible_state
    tell(state, "w1", "ready", role="spare")
    assert state.visible_state is before


def test_leases_avoid_a_worker_that_cannot_start_the_server() -> None:
    state = fleet(shared=False)
    tell(state, "w1", "backoff", failures=1)
    placed = [place(state, LeaseKey("t", f"s{n}", "a"), (), at(3)) for n in range(9)]
    assert [placement.worker_id for placement in placed if isinstance(placement, Placement)] == [
        "w2"
    ] * 8 + ["w1"]
    tell(state, "w1", "ready", role="spare")
    assert place(state, LeaseKey("t", "s", "a"), (), at(3)) == Placement("w1")


def test_a_worker_with_capacity_zero_gets_no_lease() -> None:
    ref = catalog_pb2.WorkerRef(id="w1", incarnation="run", address="127.0.0.1:1")
    assert hello_from_proto(sync_pb2.Hello(worker=ref), Moment(0.0, 0.0), {}).capacity == 0


def down(state: Coordinator) -> set[str]:
    return servers_down(state, counted_variants(state))


def stands(state: Coordinator) -> tuple[str, int, int]:
    found = variant_status(state, VariantKey("a"))
    return found.state, found.up, found.workers


def test_the_state_of_a_server_follows_from_its_instances() -> None:
    state = fleet()
    for worker_id in ("w1", "w2"):
        tell(state, worker_id, "ready", role="shared")
    assert (stands(state), down(state)) == (("ready", 2, 2), set())
    tell(state, "w1", "backoff", failures=1)
    assert (stands(state), down(state)) == (
        ("degraded", 1, 2),
        set(),
    )
    tell(state, "w2", "disconnected", role="shared")
    assert (stands(state), down(state)) == (
        ("failing", 0, 2),
        {"a"},
    )
    for state_of_start in ("queued", "starting"):
        tell(state, "w2", state_of_start, role="shared")
        assert stands(state) == ("starting", 0, 2)


def test_a_leased_server_without_instances_is_ready_and_one_that_cannot_start_is_not() -> None:
    state = fleet(shared=False)
    assert stands(state) == ("ready", 2, 2)
    tell(state, "w1", "backoff", failures=1)
    assert stands(state) == ("degraded", 1, 2)


def test_a_server_that_no_worker_serves_is_failing() -> None:
    state = fleet()
    for worker_id in ("w1", "w2"):
        state.handle_worker_disconnected(worker_id, at(2))
    assert stands(state) == ("failing", 0, 0)


def test_a_worker_with_a_spare_is_preferred_among_equally_loaded_ones() -> None:
    state = fleet(shared=False)
    tell(state, "w2", "ready", role="spare")
    assert place(state, LeaseKey("t", "s1", "a"), (), at(3)) == Placement("w2")
    assert place(state, LeaseKey("t", "s2", "a"), (), at(3)) == Placement("w1"), "the emptier"
    tell(state, "w2", "starting", role="spare")
    assert place(state, LeaseKey("t", "s3", "a"), (), at(3)) == Placement("w1"), "it is used again"
    tell(state, "w2", "ready", role="spare")
    state.handle_worker_disconnected("w2", at(4))
    state.roster.forget_lost_workers(at(30))
    assert place(state, LeaseKey("t", "s4", "a"), (), at(30)) == Placement("w1")
    launch = state.servers.last_known_good[VariantKey("a")].launch_hash
    assert not state.roster.workers_with_spare((VariantKey("a"), launch), COMMON.accepted)
