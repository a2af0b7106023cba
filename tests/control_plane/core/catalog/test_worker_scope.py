"""Servers that only some workers accept."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from tests.control_plane.core.builders import at, coordinator, hello, lease, listing, load, spec
from tests.control_plane.core.fake_worker import FakeWorker, run

from leaseway.control_plane.core.catalog.worker_scope import WorkerScope, unplaced
from leaseway.control_plane.core.coordinator import Coordinator
from leaseway.control_plane.core.denial import Denial
from leaseway.control_plane.core.placement.table import Placement
from leaseway.control_plane.core.queries.place import not_served, place
from leaseway.control_plane.core.queries.status import variant_status
from leaseway.spec.filters.names import NameFilter
from leaseway.spec.model import ServerSpec, VariantKey
from leaseway.wire.errors import Reason
from leaseway.wire.names import LeaseKey

GPU = {"pool": "gpu"}
PLAIN, RENDER = VariantKey("plain"), VariantKey("render")
NAMES = st.sampled_from(["a", "b", "ab"])
LABELS = st.dictionaries(NAMES, NAMES, max_size=3)


def render(**changes: object) -> ServerSpec:
    """Return a leased server that requires the pool `gpu`."""
    return replace(spec("render", shared=False), worker_labels=GPU, **changes)  # type: ignore[arg-type]


def joined(
    *labels: dict[str, str], servers: tuple[str, ...] = ()
) -> tuple[Coordinator, list[FakeWorker]]:
    """Return a coordinator with both servers and workers w0, w1 … of these labels."""
    state = coordinator(len(labels))
    workers = [FakeWorker(f"w{number}") for number in range(len(labels))]
    load(state, spec("plain"), render())
    for worker, its in zip(workers, labels, strict=True):
        state.handle_worker_joined(hello(worker.id, labels=its, servers=servers), at(0))
    run(state, workers)
    return state, workers


def list_all(state: Coordinator, workers: list[FakeWorker]) -> None:
    """Answer every running probe."""
    for worker in workers:
        while worker.probes:
            answer_one(state, worker)
    run(state, workers)


def answer_one(state: Coordinator, worker: FakeWorker) -> None:
    state.handle_probe_result(worker.probes.pop().id, listing("echo"), at(1))


def reasons(state: Coordinator) -> list[str]:
    return [problem.problem.reason for problem in state.problems.open()]


def test_a_server_is_probed_sent_and_leased_only_on_workers_with_its_labels() -> None:
    state, workers = joined({}, GPU, {"pool": "cpu"})
    assert {w.id for w in workers for probe in w.probes if probe.spec.key == RENDER} == {"w1"}
    list_all(state, workers)
    held = [sorted(key.server_id for key in worker.held) for worker in workers]
    assert held == [["plain"], ["plain", "render"], ["plain"]]
    assert state.ready
    assert len({worker.version for worker in workers}) == 1, "all are at the same version"
    served = state.visible.served[RENDER]
    assert [record.id for record in state.workers_serving(served)] == ["w1"]
    for session in range(5):
        placed = place(state, LeaseKey("default", f"s{session}", "render"), (), at(2))
        assert isinstance(placed, Placement)
        assert placed.worker_id == "w1"
    assert variant_status(state, RENDER).workers == 1


def test_a_server_that_no_worker_may_run_is_a_problem_until_one_comes() -> None:
    state, workers = joined({}, {"pool": "cpu"})
    list_all(state, workers)
    (problem,) = [each_problem.problem for each_problem in state.problems.open()]
    assert problem.message == (
        "Server 'render' requires workers with pool=gpu (worker_labels), and no worker has"
        " that. Start a worker with --label pool=gpu, or change 'worker_labels'."
    )
    assert state.ready, "it counts as tried"
    assert variant_status(state, RENDER).state == "failed"
    refused = place(state, LeaseKey("default", "s", "render"), (), at(2))
    assert isinstance(refused, Denial)
    assert (refused.reason, refused.message) == (Reason.SERVER_NOT_READY, problem.message)
    assert refused.retry_delay is not None, "a worker may come"
    workers.append(FakeWorker("w9"))
    state.handle_worker_joined(hello("w9", labels=GPU), at(3))
    run(state, workers, at(3))
    assert reasons(state) == []
    assert state.pending.servers == ["render"], "it is tried there"
    list_all(state, workers)
    assert state.pending.servers == []
    assert isinstance(place(state, LeaseKey("default", "s", "render"), (), at(4)), Placement)


def test_losing_the_last_matching_worker_opens_a_problem() -> None:
    state, workers = joined({}, GPU)
    list_all(state, workers)
    state.handle_worker_disconnected("w1", at(5))
    state.tick(at(6))
    assert reasons(state) == [], "it may be back"
    state.tick(at(20))
    assert sorted(reasons(state)) == ["NO_MATCHING_WORKER", "WORKER_LOST"]


def test_no_problem_is_reported_before_settling() -> None:
    state = coordinator(2)
    load(state, spec("plain"), render())
    workers = [FakeWorker("w0")]
    state.handle_worker_joined(hello("w0"), at(0))
    run(state, workers)
    list_all(state, workers)
    assert reasons(state) == []
    assert state.pending.servers == ["render"]


def test_new_labels_move_a_server_to_other_workers() -> None:
    state, workers = joined({"pool": "cpu"}, GPU)
    list_all(state, workers)
    moved = replace(render(), worker_labels={"pool": "cpu"})
    load(state, spec("plain"), moved, now=at(2))
    state.tick(at(3))
    run(state, workers, at(3))
    assert [worker.probes for worker in workers] == [[], []], "its launch is the same"
    assert RENDER in workers[0].held
    assert RENDER not in workers[1].held
    assert reasons(state) == []


def test_a_worker_that_names_its_servers_gets_no_others() -> None:
    state, workers = joined(GPU, servers=("rend*",))
    list_all(state, workers)
    assert sorted(workers[0].held) == [RENDER]
    (problem,) = [each_problem.problem for each_problem in state.problems.open()]
    assert problem.message == (
        "Server 'plain' has no worker: the --servers of all workers exclude it. Start a"
        " worker that accepts it, or one without --servers."
    )


def test_a_tenants_own_variant_is_where_the_common_one_is() -> None:
    state, workers = coordinator(2), [FakeWorker("w0"), FakeWorker("w1")]
    own = replace(render(tools=NameFilter((), ("danger",))), key=VariantKey("render", "acme"))
    load(state, render(), own)
    for worker, labels in zip(workers, ({}, GPU), strict=True):
        state.handle_worker_joined(hello(worker.id, labels=labels), at(0))
    run(state, workers)
    list_all(state, workers)
    assert [set(worker.held) for worker in workers] == [set(), {RENDER, own.key}]


def test_a_lease_is_placed_again_if_its_worker_no_longer_accepts_the_server() -> None:
    state, workers = joined({}, GPU)
    list_all(state, workers)
    held = lease("l1", "w1", server_id="render")
    state.handle_worker_joined(
        hello("w1", labels=GPU, held=workers[1].hashes(), leases=(held,)), at(2)
    )
    run(state, workers, at(2))
    placed = place(state, held.key, (), at(3))
    assert isinstance(placed, Placement)
    assert (placed.worker_id, placed.lease_id) == ("w1", "l1")


def test_a_new_control_plane_learns_the_labels_back_from_the_workers() -> None:
    first, workers = joined({}, GPU)
    list_all(first, workers)
    state = Coordinator(at(60), epoch=2, expected_workers=2)
    load(state, spec("plain"), render(), now=at(60))
    version = first.visible.version
    for worker, labels in zip(workers, ({}, GPU), strict=True):
        greeting = hello(worker.id, labels=labels, held=worker.hashes(), highest_version=version)
        state.handle_worker_joined(greeting, at(60))
    run(state, workers, at(60))
    assert [worker.probes for worker in workers] == [[], []]
    assert [RENDER in worker.held for worker in workers] == [False, True]


@given(LABELS, LABELS, st.lists(st.sampled_from(["a", "a*", "*", "x"]), max_size=2))
def test_a_worker_accepts_a_server_if_labels_and_id_match(
    asked: dict[str, str], has: dict[str, str], servers: list[str]
) -> None:
    one = replace(spec("ab"), worker_labels=asked)
    scope = WorkerScope.of(has, servers)
    takes = all(has.get(name) == value for name, value in asked.items())
    takes = takes and (not servers or bool({"a*", "*"} & set(servers)))
    assert scope.accepts(one) == takes
    assert scope.restricted_to(frozenset(asked.items())).accepts(one) == takes
    assert (one.key in unplaced([one], [scope])) != takes
    assert unplaced([one], []) == {}


def test_the_denial_of_an_unplaced_server_contains_the_reason() -> None:
    """Another tenant's denial reveals no labels of this variant."""
    secret = replace(
        render(), key=VariantKey("render", "acme"), worker_labels={"pool": "acme-only"}
    )
    state = coordinator(1)
    load(state, replace(render(), worker_labels={}), secret)
    worker = FakeWorker("w0")
    state.handle_worker_joined(hello("w0"), at(0))
    run(state, [worker])
    state.handle_probe_result(worker.probes.pop(0).id, listing("draw"), at(0))
    run(state, [worker])
    assert not_served(state, VariantKey("render", "acme")).message.count("acme-only")
    told = not_served(state, RENDER)
    assert "acme" not in told.message
