"""The state that watchers follow; a new object only when it changes."""

from __future__ import annotations

from tests.control_plane.core.builders import START, at, coordinator, hello, lease, listing, load
from tests.control_plane.core.builders import spec as server

from leaseway.control_plane.core.coordinator import Coordinator
from leaseway.control_plane.core.workers.actions import PushDelta, StartProbe
from leaseway.control_plane.core.workers.records import WorkerReport


def obey(state: Coordinator) -> None:
    """Answer every probe and acknowledge every delta."""
    while actions := state.pop_actions():
        for worker_id, action in actions:
            if isinstance(action, PushDelta):
                state.handle_ack(worker_id, action.push.nonce, at(1))
            elif isinstance(action, StartProbe):
                state.handle_probe_result(action.id, listing("x"), at(1))


def serving() -> Coordinator:
    state = coordinator()
    load(state, server("a"))
    state.handle_worker_joined(hello("w1"), START)
    obey(state)
    return state


def test_a_worker_is_visible_once_it_has_the_visible_version() -> None:
    state = serving()
    assert state.visible_state.version == state.visible.version > 0
    assert {worker.address.id for worker in state.visible_state.workers} == {"w1"}
    state.handle_worker_joined(hello("w2"), at(2))
    assert {worker.address.id for worker in state.visible_state.workers} == {"w1"}
    obey(state)
    assert {worker.address.id for worker in state.visible_state.workers} == {"w1", "w2"}


def test_other_events_do_not_change_the_visible_state() -> None:
    state = serving()
    before = state.visible_state
    state.record_contact("w1")
    state.handle_report("w1", WorkerReport(gained=(lease("L1", "w1"),), calls_in_flight=3), at(2))
    state.tick(at(3))
    assert state.visible_state is before


def test_draining_and_disconnected_workers_are_not_visible() -> None:
    state = serving()
    state.handle_worker_joined(hello("w2"), at(2))
    obey(state)
    state.drain_worker("w1", at(3))
    assert {worker.address.id for worker in state.visible_state.workers} == {"w2"}
    state.handle_worker_disconnected("w2", at(4))
    assert not state.visible_state.workers


def test_a_new_version_changes_the_visible_state() -> None:
    state = serving()
    before = state.visible_state
    load(state, server("a", prefix="other_"), now=at(2))
    obey(state)
    assert state.visible_state.version == state.visible.version > before.version
