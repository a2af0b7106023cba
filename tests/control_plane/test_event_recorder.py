"""Events recorded from the coordinator's state."""

from __future__ import annotations

from tests.control_plane.core.builders import START, at, coordinator, hello, lease, load, spec
from tests.specs import changed

from leaseway.control_plane.core.moment import Moment
from leaseway.control_plane.core.problems import Problem
from leaseway.control_plane.event_recorder import EventRecorder, spec_changes
from leaseway.control_plane.plane import Plane
from leaseway.spec.model import VariantKey
from leaseway.wire.messages.events import EventRecord

_BROKEN = Problem("workspace", "BAD_YAML", "mcp.yaml:3: this is no YAML.")
_WRONG = Problem("server", "WRONG_TYPE", "mcp.yaml:4: `args` is a text.", "a")


def _told(recorder: EventRecorder) -> list[tuple[str, str]]:
    return [(event.kind, event.action) for event in recorder.history.after(0)]


def test_a_reload_lists_changed_keys_without_values() -> None:
    old, new = spec("a"), changed(spec("a"), args=("--password", "hunter2"))
    before = {old.key: old, VariantKey("b"): spec("b")}
    lines = tuple(spec_changes(before, {new.key: new, VariantKey("c"): spec("c")}))
    assert lines == ("changed a (restarts): args", "removed b", "added c")


def test_a_reload_with_a_wrong_entry_is_partly_applied() -> None:
    recorder = EventRecorder()
    recorder.record_reload({VariantKey("a"): spec("a")}, "mcp.yaml", [_WRONG], 5.0)
    assert recorder.reload is not None
    assert recorder.reload.action == "partly applied"
    assert recorder.reload.severity == "error"
    assert recorder.reload.details == ("added a", _WRONG.message)


def test_a_rejected_entry_is_not_recorded_as_removed() -> None:
    recorder = EventRecorder()
    recorder.record_reload({VariantKey("a"): spec("a"), VariantKey("b"): spec("b")}, "f", [], 1.0)
    recorder.record_reload(
        {VariantKey("b"): spec("b")}, "f", [_WRONG], 2.0, rejected=frozenset({"a"})
    )
    assert recorder.reload is not None
    assert recorder.reload.details == (_WRONG.message,)
    recorder.record_reload({VariantKey("b"): spec("b")}, "f", [], 3.0)
    assert recorder.reload.details == ("removed a",)


def test_a_rejected_reload_does_not_change_the_next_comparison() -> None:
    recorder = EventRecorder()
    recorder.record_reload({VariantKey("a"): spec("a")}, "mcp.yaml", [], 1.0)
    recorder.record_rejected_reload("mcp.yaml", [_BROKEN], 2.0)
    assert recorder.reload is not None
    assert recorder.reload.reason == "BAD_YAML"
    recorder.record_reload({VariantKey("a"): spec("a")}, "mcp.yaml", [], 3.0)
    assert recorder.reload.message == "mcp.yaml: nothing changed."


def test_leases_lost_with_their_worker_are_recorded_but_not_all_of_a_fleet() -> None:
    recorder = EventRecorder()
    recorder.record_lost_leases([lease(f"L{number}", "w1") for number in range(1_000)], START)
    events = recorder.history.after(0)
    assert [event.lease_id for event in events] == [f"L{number}" for number in range(500, 1_000)]
    last, key = events[-1], lease("L999", "w1").key
    assert (last.kind, last.action, last.worker_id) == ("lease", "lost", "w1")
    assert (last.tenant, last.session, last.server_id) == key
    assert "Lease L999 was lost with worker 'w1'" in last.message


def test_a_workers_life_is_recorded() -> None:
    state, recorder = coordinator(), EventRecorder()

    def look(seconds: float) -> None:
        recorder.observe(state, at(seconds))

    state.handle_worker_joined(hello("w1"), START)
    look(0)
    state.handle_worker_disconnected("w1", at(1))
    look(1)
    state.handle_worker_joined(hello("w1"), at(2))
    look(2)
    state.drain_worker("w1", at(3))
    look(3)
    state.handle_worker_disconnected("w1", at(4))
    look(4)
    workers = [action for kind, action in _told(recorder) if kind == "worker"]
    assert workers == ["joined", "disconnected", "back", "draining", "left"]


def test_a_new_term_tells_which_workers_differ_from_the_last() -> None:
    before, after, recorder = coordinator(), coordinator(), EventRecorder()
    for worker_id in ("w1", "w2"):
        before.handle_worker_joined(hello(worker_id), START)
    recorder.observe(before, START)
    for worker_id in ("w2", "w3"):
        after.handle_worker_joined(hello(worker_id), at(1))
    recorder.observe(after, at(1))
    workers = [
        (event.worker_id, event.action)
        for event in recorder.history.after(0)
        if event.kind == "worker"
    ]
    assert workers == [("w1", "joined"), ("w2", "joined"), ("w1", "gone"), ("w3", "joined")]


def test_a_problem_is_recorded_when_it_opens_and_closes_only() -> None:
    state, recorder = coordinator(), EventRecorder()
    for seconds in range(3):
        state.problems.report(_WRONG, float(seconds))
        recorder.observe(state, at(seconds))
    state.problems.clear(server_id="a")
    recorder.observe(state, at(3))
    problems = [event for event in recorder.history.after(0) if event.kind == "problem"]
    assert [event.action for event in problems] == ["opened", "closed"]
    assert problems[0].reason == "WRONG_TYPE"
    assert problems[0].server_id == "a"


def test_events_of_a_worker_are_recorded_once() -> None:
    recorder = EventRecorder(1_000)
    told = [EventRecord("lease", "granted", "It is held.", 1.0, number=n) for n in (1, 2)]
    recorder.record_worker_events("w1", "run-1", told)
    recorder.record_worker_events(
        "w1", "run-1", [*told, EventRecord("lease", "released", "Gone.", 2.0, number=3)]
    )
    recorder.record_worker_events(
        "w1", "run-2", [EventRecord("lease", "granted", "It is held.", 3.0, number=1)]
    )
    actions = [event.action for event in recorder.history.after(0)]
    assert actions == ["granted", "granted", "released", "granted"]
    assert {event.worker_id for event in recorder.history.after(0)} == {"w1"}


def test_nothing_is_recorded_without_a_change() -> None:
    state, recorder = coordinator(), EventRecorder()
    load(state, spec("a"))
    recorder.observe(state, START)
    known = recorder.history.last
    recorder.observe(state, at(1))
    assert recorder.history.last == known


async def test_events_of_a_new_leader_follow_those_of_one_that_had_begun_after_it() -> None:
    seconds = 100.0

    def clock() -> Moment:
        return Moment(seconds, seconds)

    standby = Plane(epoch=1, clock=clock, follows=True)
    seconds = 200.0
    leader = Plane(epoch=2, clock=clock)
    event = EventRecord("operator", "looked", "An operator looked.", seconds)
    seen = leader.events.record(event).number
    seconds = 300.0
    standby.lead(3)
    assert standby.events.record(event).number > seen
