"""Where a name leads and where a lease goes."""

from __future__ import annotations

from tests.control_plane.core.builders import START, at, coordinator, hello, listing, load, spec
from tests.control_plane.core.test_coordinator import FAILED, FakeWorker, answer, run, started

from leaseway.control_plane.core.lookup import Denied, Waiting, find_tool, place
from leaseway.control_plane.core.placement import LeaseKey, Placement
from leaseway.control_plane.core.snapshot import ToolTarget
from leaseway.wire.reasons import Reason

KEY = LeaseKey("default", "dialog", "a")


def test_exposed_and_qualified_names_lead_to_the_same_tool() -> None:
    state, _ = started(spec("a"))
    for name in ("a_echo", "a:echo"):
        target = find_tool(state, "default", name)
        assert isinstance(target, ToolTarget)
        assert (target.served.key.server_id, target.tool.original) == ("a", "echo")


def test_an_unknown_tool_names_the_nearest() -> None:
    state, _ = started(spec("a"))
    for name, near in (("a_ecco", "a_echo"), ("a:ecco", "a:echo")):
        denied = find_tool(state, "default", name)
        assert isinstance(denied, Denied)
        assert denied.reason is Reason.TOOL_NOT_FOUND
        assert denied.message == f"There is no tool '{name}'. Did you mean '{near}'?"


def test_an_unknown_server_is_not_found_with_the_nearest() -> None:
    state, _ = started(spec("everything"))
    denied = find_tool(state, "default", "everythin:echo")
    assert isinstance(denied, Denied)
    assert denied.message == "There is no server 'everythin'. Did you mean 'everything'?"


def test_a_name_like_no_other_leads_to_what_there_is() -> None:
    state, _ = started(spec("a"))
    for name, said in (
        ("nosuch:zzz", "There is no server 'nosuch'. See `leaseway servers`."),
        ("nosuch", "There is no tool 'nosuch'. See `leaseway tools`."),
    ):
        denied = find_tool(state, "default", name)
        assert isinstance(denied, Denied)
        assert denied.message == said


def test_a_skipped_tool_does_not_exist_by_its_qualified_name_either() -> None:
    state, _ = started(spec("a", prefix=""), spec("b", prefix=""))
    target = find_tool(state, "default", "echo")
    assert isinstance(target, ToolTarget)
    assert target.served.key.server_id == "a"
    denied = find_tool(state, "default", "b:echo")
    assert isinstance(denied, Denied)
    assert "'a' has the name 'echo'" in denied.message


def test_a_name_waits_while_a_server_starts_for_the_first_time() -> None:
    state, worker = coordinator(), FakeWorker()
    load(state, spec("a"))
    state.worker_joined(hello(), START)
    run(state, [worker])
    assert find_tool(state, "default", "a_echo") == Waiting(("a",))
    assert find_tool(state, "default", "a:echo") == Waiting(("a",))
    answer(state, worker, FAILED)
    denied = find_tool(state, "default", "a:echo")
    assert isinstance(denied, Denied)
    assert denied.reason is Reason.SERVER_NOT_READY
    assert "exited at once" in denied.message


def test_a_shared_server_is_not_leasable() -> None:
    state, _ = started(spec("a", shared=True))
    denied = place(state, KEY, (), START)
    assert isinstance(denied, Denied)
    assert denied.reason is Reason.NOT_LEASABLE


def test_a_new_control_plane_places_only_what_it_knows_until_it_has_settled() -> None:
    state = coordinator(expected_workers=0)
    worker = FakeWorker()
    load(state, spec("a", shared=False))
    state.worker_joined(hello(), START)
    run(state, [worker])
    probe = worker.probes.pop()
    state.probe_ended(probe.id, listing("echo"), START)
    run(state, [worker])
    denied = place(state, KEY, (), at(1))
    assert isinstance(denied, Denied)
    assert denied.reason is Reason.SYNCING
    assert denied.retry_delay == 0.25
    assert place(state, KEY, (), at(3)) == Placement("w1"), "the time counts, not the next tick"


def test_a_full_fleet_answers_capacity_with_a_retry_delay() -> None:
    state, _ = started(spec("a", shared=False))
    for number in range(8):
        assert place(state, LeaseKey("default", f"s{number}", "a"), (), START) == Placement("w1")
    denied = place(state, KEY, (), START)
    assert isinstance(denied, Denied)
    assert (denied.reason, denied.retry_delay) == (Reason.CAPACITY, 1.0)


def test_a_listed_server_that_no_worker_serves_is_not_ready() -> None:
    state, _ = started(spec("a", shared=False))
    state.worker_left("w1", at(1))
    state.tick(at(12))
    denied = place(state, KEY, (), at(12))
    assert isinstance(denied, Denied)
    assert denied.reason is Reason.SERVER_NOT_READY
