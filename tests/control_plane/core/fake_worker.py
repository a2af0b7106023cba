"""A fake worker for tests of the coordinator."""

from __future__ import annotations

from collections.abc import Iterable

from tests.control_plane.core.builders import (
    START,
    coordinator,
    hello,
    listing,
    load,
    spec,
)

from leaseway.control_plane.core.catalog.listing import ServerListing
from leaseway.control_plane.core.catalog.variants import Hashes, Served
from leaseway.control_plane.core.coordinator import Coordinator
from leaseway.control_plane.core.moment import Moment
from leaseway.control_plane.core.problems import Problem
from leaseway.control_plane.core.workers.actions import (
    CancelProbe,
    PushDelta,
    RevokeLease,
    StartProbe,
    WantContent,
)
from leaseway.spec.model import ServerSpec, VariantKey

FAILED = Problem("server", "START_FAILED", "Server 'a' exited at once.")


class FakeWorker:
    """Applies deltas like a real worker and records all actions."""

    def __init__(self, worker_id: str = "w1") -> None:
        self.id = worker_id
        self.held: dict[VariantKey, Served] = {}
        self.version = 0
        self.probes: list[StartProbe] = []
        self.cancelled: list[int] = []
        self.wanted: list[VariantKey] = []
        self.revoked: list[str] = []
        self.upserts = 0

    def hashes(self) -> dict[VariantKey, Hashes]:
        return {key: served.hashes for key, served in self.held.items()}


def run(state: Coordinator, workers: Iterable[FakeWorker], now: Moment = START) -> None:
    """Deliver all actions to the workers and acknowledge the deltas."""
    by_id = {worker.id: worker for worker in workers}
    while actions := state.pop_actions():
        for worker_id, action in actions:
            worker = by_id[worker_id]
            match action:
                case PushDelta(push):
                    for served in push.upserts:
                        worker.held[served.key] = served
                        worker.upserts += 1
                    for key in push.removals:
                        worker.held.pop(key, None)
                    assert push.version >= worker.version
                    worker.version = push.version
                    state.handle_ack(worker_id, push.nonce, now)
                case StartProbe():
                    worker.probes.append(action)
                case CancelProbe(probe_id):
                    worker.cancelled.append(probe_id)
                case WantContent(keys):
                    worker.wanted += keys
                    held = [worker.held[key] for key in keys]
                    state.handle_content(worker_id, held, now)
                case RevokeLease(lease_id, _):
                    worker.revoked.append(lease_id)
                case _:
                    raise AssertionError(action)


def answer(
    state: Coordinator,
    worker: FakeWorker,
    outcome: ServerListing | Problem,
    now: Moment = START,
) -> None:
    """Send the result of a worker's oldest probe."""
    state.handle_probe_result(worker.probes.pop(0).id, outcome, now)
    run(state, [worker], now)


def exposed(state: Coordinator) -> dict[str, str]:
    """Return what a client sees: exposed name to server id."""
    return {
        name: target.served.key.server_id
        for name, target in state.visible.view("default").tools.items()
    }


def started(*specs: ServerSpec) -> tuple[Coordinator, FakeWorker]:
    """Return a coordinator and a worker that serves these, each with the tool `echo`."""
    state, worker = coordinator(), FakeWorker()
    load(state, *specs)
    state.handle_worker_joined(hello(), START)
    run(state, [worker])
    while worker.probes:
        answer(state, worker, listing("echo"))
    return state, worker


def offered(**found: tuple[ServerSpec, ServerListing]) -> Coordinator:
    """Return a coordinator whose worker serves these listings."""
    state, worker = coordinator(), FakeWorker()
    load(state, *(problem for problem, _ in found.values()))
    state.handle_worker_joined(hello(), START)
    run(state, [worker])
    while worker.probes:
        answer(state, worker, found[worker.probes[0].spec.key.server_id][1])
    return state


def never_up() -> tuple[Coordinator, FakeWorker]:
    """Return a coordinator whose only server failed its first probe."""
    state, worker = coordinator(), FakeWorker()
    state.servers.probes.delay = lambda attempt: 4.0 + attempt
    load(state, spec("a", shared=False))
    state.handle_worker_joined(hello(), START)
    run(state, [worker])
    answer(state, worker, FAILED)
    return state, worker
