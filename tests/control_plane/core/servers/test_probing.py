"""Probes and problems of servers that do not start."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.control_plane.core.builders import at, coordinator, hello, listing, load, spec
from tests.control_plane.core.fake_worker import FAILED, FakeWorker, answer, run

from leaseway.control_plane.core.catalog.listing import ServerListing
from leaseway.control_plane.core.coordinator import Coordinator
from leaseway.control_plane.core.problems import OpenProblem, Problem
from leaseway.control_plane.core.servers.probing import RetryOutlook
from leaseway.control_plane.core.workers.records import WorkerReport
from leaseway.spec.model import VariantKey
from leaseway.wire.bounds import MAX_PROBES

KEY = VariantKey("a")


def begun() -> tuple[Coordinator, list[FakeWorker]]:
    """Return a coordinator with a server that two workers probe in turn, a second apart."""
    state, workers = coordinator(2), [FakeWorker("w1"), FakeWorker("w2")]
    state.servers.probes.delay = lambda _attempt: 1.0
    load(state, spec("a"))
    for worker in workers:
        state.handle_worker_joined(hello(worker.id), at(0))
    run(state, workers)
    return state, workers


def end_try(state: Coordinator, workers: list[FakeWorker], second: int, good: bool = False) -> str:
    """End the running probe; return its worker."""
    state.tick(at(second))
    run(state, workers, at(second))
    (worker,) = [worker for worker in workers if worker.probes]
    outcome: ServerListing | object = (
        listing("echo") if good else replace(FAILED, worker_id=worker.id)
    )
    state.handle_probe_result(worker.probes.pop().id, outcome, at(second))  # type: ignore[arg-type]
    run(state, workers, at(second))
    return worker.id


def open_problem(state: Coordinator) -> OpenProblem:
    """Return the only open problem of a server."""
    (problem,) = [
        each_problem
        for each_problem in state.problems.open()
        if each_problem.problem.scope == "server"
    ]
    return problem


def test_a_server_that_never_starts_has_one_problem_for_all_workers() -> None:
    state, workers = begun()
    tried = []
    for second in range(4):
        tried.append(end_try(state, workers, second))
        found = open_problem(state)
        assert (found.count, found.first_seen) == (second + 1, at(0).unix)
        assert f"on worker '{tried[-1]}'" in found.problem.message
    assert set(tried) == {"w1", "w2"}
    state.handle_worker_disconnected(tried[-1], at(4))
    state.tick(at(15))
    assert open_problem(state).count == 4, "a worker's end mends no server"


def test_the_problem_closes_when_the_server_starts() -> None:
    state, workers = begun()
    end_try(state, workers, 0)
    end_try(state, workers, 1, good=True)
    assert state.problems.open() == []
    assert state.servers.probes.retry_outlook(KEY, at(1).mono) is None


def test_the_problem_closes_when_the_server_is_removed() -> None:
    state, workers = begun()
    end_try(state, workers, 0)
    load(state, spec("a", command="other"), now=at(1))
    run(state, workers, at(1))
    assert open_problem(state).count == 1, "until it is known how the other one does"
    load(state, now=at(2))
    assert state.problems.open() == []


def test_the_outlook_contains_failures_and_the_next_probe() -> None:
    state, workers = begun()
    probes = state.servers.probes
    assert probes.retry_outlook(KEY, at(0).mono) is None, "its first try is under way"
    end_try(state, workers, 0)
    assert probes.retry_outlook(KEY, at(0.25).mono) == RetryOutlook(1, 0.75)
    assert probes.retry_outlook(KEY, at(9).mono) == RetryOutlook(1, 0.0)
    state.tick(at(2))
    assert probes.retry_outlook(KEY, at(2).mono) == RetryOutlook(1, None)


@pytest.mark.parametrize("reason", ["MISSING_REFERENCE", "CHANGED_VALUE_FAILED"])
def test_a_server_is_probed_at_once_when_a_reference_appears_or_changes(reason: str) -> None:
    state, workers = begun()
    state.servers.probes.delay = lambda _attempt: 30.0
    tried = end_try(state, workers, 0)
    other = Problem("server", "START_FAILED", "mended", server_id="a")
    state.handle_report(tried, WorkerReport(cleared=(other,)), at(1))
    run(state, workers, at(1))
    assert not any(worker.probes for worker in workers)
    there = replace(other, reason=reason)
    state.handle_report(tried, WorkerReport(cleared=(there,)), at(2))
    run(state, workers, at(2))
    assert any(worker.probes for worker in workers)


def test_a_server_that_somebody_waits_for_is_tried_before_others() -> None:
    state, worker = coordinator(), FakeWorker()
    load(state, *(spec(f"s{number:02}") for number in range(MAX_PROBES + 3)))
    state.handle_worker_joined(hello(), at(0))
    run(state, [worker])
    for name in ("s18", "s17"):
        state.servers.probes.hurry(VariantKey(name))
    tried = []
    for _ in range(3):
        answer(state, worker, listing("echo"))
        tried.append(worker.probes[-1].spec.key.server_id)
    assert tried == ["s18", "s17", "s16"]


def test_who_waits_for_a_server_is_not_first_again_after_it_has_failed() -> None:
    state, workers = begun()
    state.servers.probes.hurry(KEY)
    assert not state.servers.probes.can_hurry(KEY), "it runs"
    end_try(state, workers, 0)
    assert state.servers.probes.can_hurry(KEY)
