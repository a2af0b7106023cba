"""Instances of one worker, whole and by changes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.control_plane.core.builders import START, at, coordinator, hello

from leaseway.control_plane.core.workers.actions import AskInstances
from leaseway.control_plane.core.workers.instances import (
    InstanceChanges,
    InstanceTable,
    ReportedInstance,
)
from leaseway.control_plane.core.workers.records import WorkerReport
from leaseway.spec.model import VariantKey
from leaseway.wire.bounds import MAX_REPORTED_INSTANCES


def instance(server_id: str, state: str = "ready", **more: object) -> ReportedInstance:
    return ReportedInstance("i", "w1", VariantKey(server_id), state, launch_hash="L", **more)  # type: ignore[arg-type]


STATES = st.dictionaries(
    st.sampled_from("klmn"),
    st.builds(
        instance,
        st.sampled_from("ab"),
        st.sampled_from(["ready", "starting", "backoff"]),
        role=st.sampled_from(["spare", "shared", "leased"]),
        failures=st.integers(0, 1),
        serves=st.sampled_from([("anyone",), ("modern", "1"), ("modern",), ()]),
    ),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(STATES, min_size=1, max_size=6))
def test_changes_give_the_same_as_all_instances(states: list[dict[str, ReportedInstance]]) -> None:
    table, before = InstanceTable(), dict[str, ReportedInstance]()
    for version, state in enumerate(states, start=1):
        gone = [(key, None) for key in before if key not in state]
        changed = [(key, status) for key, status in state.items() if before.get(key) != status]
        assert table.apply(InstanceChanges(version, (*changed, *gone)))
        before = state
        whole = InstanceTable(state.values())
        assert sorted(map(repr, table.all)) == sorted(map(repr, whole.all))
        assert (table.live, table.launches) == (whole.live, whole.launches)


def test_a_missing_change_makes_the_control_plane_ask_for_all() -> None:
    state = coordinator()
    state.handle_worker_joined(hello(), START)
    one, other = ("k", instance("a")), ("l", instance("b"))

    def report(version: int, *changes: tuple[str, ReportedInstance | None]) -> list[object]:
        changed = InstanceChanges(version, changes)
        state.handle_report("w1", WorkerReport(instance_changes=changed), at(1))
        return [action for _, action in state.pop_actions()]

    state.pop_actions()
    assert report(1, one) == []
    assert report(3, other) == [AskInstances()]
    assert report(4, ("k", None)) == [AskInstances()]
    assert list(state.workers["w1"].instances.all) == [one[1]], "what follows a gap is ignored"
    assert report(1, other) == []
    assert list(state.workers["w1"].instances.all) == [other[1]]


def test_a_worker_cannot_fill_the_memory_with_instances() -> None:
    table = InstanceTable()
    many = tuple((str(number), instance("a")) for number in range(MAX_REPORTED_INSTANCES))
    table.apply(InstanceChanges(1, many))
    table.apply(InstanceChanges(2, (("more", instance("b")),)))
    assert (len(table.all), table.live) == (MAX_REPORTED_INSTANCES, MAX_REPORTED_INSTANCES)
