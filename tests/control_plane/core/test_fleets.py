"""The cost of events in a large fleet is limited to the affected workers."""

from __future__ import annotations

import pytest
from tests.control_plane.core.builders import at, coordinator, hello, lease, listing, load, spec

from leaseway.control_plane.core.coordinator import Coordinator
from leaseway.control_plane.core.servers.servers import Servers
from leaseway.control_plane.core.workers.actions import PushDelta, StartProbe
from leaseway.control_plane.core.workers.records import WorkerReport
from leaseway.control_plane.core.workers.roster import Roster

MANY = 50


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect the workers whose delta was computed."""
    collected: list[str] = []
    push = Roster.push

    def counting(self: Roster, record: object, *args: object, **more: object) -> object:
        collected.append(record.id)  # type: ignore[attr-defined]
        return push(self, record, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Roster, "push", counting)
    return collected


def serving() -> Coordinator:
    """Return a coordinator with many workers that serve `a`."""
    state = coordinator(MANY)
    load(state, spec("a", shared=False))
    for number in range(MANY):
        state.handle_worker_joined(hello(f"w{number}"), at(0))
    while actions := state.pop_actions():
        for worker_id, action in actions:
            if isinstance(action, StartProbe):
                state.handle_probe_result(action.id, listing("echo"), at(0))
            elif isinstance(action, PushDelta):
                state.handle_ack(worker_id, action.push.nonce, at(0))
    assert state.ready
    return state


def test_an_ack_computes_the_delta_of_its_worker_only(looked_at: list[str]) -> None:
    state = serving()
    load(state, now=at(1))
    state.tick(at(1.1))
    deltas = [(name, action) for name, action in state.pop_actions()]
    looked_at.clear()
    for worker_id, action in deltas:
        assert isinstance(action, PushDelta)
        state.handle_ack(worker_id, action.push.nonce, at(1.2))
    assert looked_at == [name for name, _ in deltas]
    assert state.pop_actions() == []


def test_a_report_computes_no_delta(looked_at: list[str]) -> None:
    state = serving()
    looked_at.clear()
    state.handle_report("w7", WorkerReport(gained=(lease("L1", "w7"),)), at(1))
    state.tick(at(2))
    assert looked_at == []


def test_a_worker_that_was_behind_gets_the_newest_commit(looked_at: list[str]) -> None:
    state = serving()
    load(state, spec("a", shared=False), spec("b"), now=at(1))
    ((_, probe),) = state.pop_actions()
    assert isinstance(probe, StartProbe)
    state.handle_probe_result(probe.id, listing("echo"), at(1))
    first = dict(state.pop_actions())
    load(state, spec("a", shared=False), now=at(2))
    state.tick(at(2.1))
    assert state.pop_actions() == [], "each has a delta that it did not answer"
    looked_at.clear()
    action = first["w3"]
    assert isinstance(action, PushDelta)
    state.handle_ack("w3", action.push.nonce, at(2.2))
    ((name, late),) = state.pop_actions()
    assert isinstance(late, PushDelta)
    assert (name, [str(key) for key in late.push.removals]) == ("w3", ["b"])
    assert looked_at == ["w3"]


def test_a_disconnect_reconciles_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    state = serving()
    reconciled: list[None] = []
    reconcile = Servers.reconcile

    def counting(self: Servers, *args: object) -> None:
        reconciled.append(None)
        reconcile(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Servers, "reconcile", counting)
    before = state.committed
    for number in range(10):
        state.handle_worker_disconnected(f"w{number}", at(1))
    assert state.registry.commit_at is None
    assert state.committed is before
    assert reconciled == []
