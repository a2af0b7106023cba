"""When a tenant sees the built-in toolset."""

from __future__ import annotations

from dataclasses import replace

from tests.control_plane.core.builders import START, coordinator, hello, lease, load, spec
from tests.control_plane.core.fake_worker import FakeWorker, answer, exposed, run, started

from leaseway.control_plane.core.catalog.admin_toolset import add_admin_toolset
from leaseway.control_plane.core.catalog.listing import ServerListing
from leaseway.control_plane.core.catalog.snapshot import NamedTarget
from leaseway.control_plane.core.catalog.subjects import Reader
from leaseway.control_plane.core.catalog.variants import Hashes, Served
from leaseway.control_plane.core.denial import Denial
from leaseway.control_plane.core.placement.table import Placement
from leaseway.control_plane.core.queries.place import find_lease, find_leases, place, workers_for
from leaseway.control_plane.core.queries.resolve import find_name
from leaseway.control_plane.core.workers.records import WorkerReport
from leaseway.spec.kinds.table import hidden_spec
from leaseway.spec.model import ServerSpec, VariantKey
from leaseway.spec.policy import Grant, ServerPolicy
from leaseway.wire.errors import Reason
from leaseway.wire.names import LeaseKey


def test_the_toolset_is_visible_while_the_tenant_has_a_leased_server() -> None:
    state, worker = started(spec("time"))
    assert exposed(state) == {"time_echo": "time"}
    load(state, spec("time"), spec("desk", shared=False))
    run(state, [worker])
    answer(state, worker, ServerListing())
    assert exposed(state) == {"mcp_release": "mcp_admin", "time_echo": "time"}
    assert list(state.visible.view("default").servers) == ["desk", "mcp_admin", "time"]
    load(state, spec("time"))
    run(state, [worker])
    assert exposed(state) == {"time_echo": "time"}


def test_a_tenant_who_sees_no_leased_server_does_not_see_the_toolset() -> None:
    state, worker = coordinator(), FakeWorker()
    hidden = hidden_spec(VariantKey("desk", "acme"))
    load(state, spec("time"), spec("desk", shared=False), hidden)
    state.handle_worker_joined(hello(), START)
    run(state, [worker])
    while worker.probes:
        answer(state, worker, ServerListing())
    assert "mcp_release" in state.visible.view("default").tools
    assert "mcp_release" not in state.visible.view("acme").tools
    denied = find_name(state, Reader("acme"), "mcp_admin:mcp_release", START)
    assert isinstance(denied, Denial)
    assert denied.reason is Reason.TOOL_NOT_FOUND


def test_every_worker_that_takes_work_serves_the_toolset() -> None:
    state, _ = started(spec("desk", shared=False))
    state.handle_worker_joined(hello("w2"), START)
    target = find_name(state, Reader("default"), "mcp_release", START)
    assert isinstance(target, NamedTarget)
    assert [record.id for record in workers_for(state, target.served)] == ["w1", "w2"]
    state.drain_worker("w1", START)
    assert [record.id for record in workers_for(state, target.served)] == ["w2"]


def test_the_toolset_is_never_sent_to_workers() -> None:
    _, worker = started(spec("desk", shared=False))
    assert list(worker.held) == [VariantKey("desk")]


def test_the_toolset_itself_cannot_be_leased() -> None:
    state, _ = started(spec("desk", shared=False))
    denied = place(state, LeaseKey("default", "s", "mcp_admin"), (), START)
    assert isinstance(denied, Denial)
    assert denied.reason is Reason.NOT_LEASABLE


def test_what_a_tenant_sees_is_not_changed_in_place() -> None:
    served = {"desk": serving(spec("desk", shared=False))}
    assert list(add_admin_toolset(served)) == ["desk", "mcp_admin"]
    assert list(served) == ["desk"]


def test_a_login_is_offered_by_name_to_who_has_none() -> None:
    served = add_admin_toolset({"mail": serving(spec("mail"))}, ["mail"])
    assert [name.name for name in served["mcp_admin"].exposed] == ["mcp_login"]
    assert b"Servers without a login: mail." in served["mcp_admin"].listing.tools[0].definition
    served = add_admin_toolset({"desk": serving(spec("desk", shared=False))}, ["desk"])
    assert [name.name for name in served["mcp_admin"].exposed] == ["mcp_login", "mcp_release"]


def serving(server: ServerSpec) -> Served:
    return Served(server, Hashes("", "", ""), ServerListing(), ())


def test_the_active_lease_of_a_key_is_on_a_worker_that_is_not_draining() -> None:
    state, _ = started(spec("a", shared=False))
    key = LeaseKey("default", "s", "a")
    assert find_lease(state, key) is None
    state.handle_report("w1", WorkerReport(gained=(lease("L1", "w1"),)), START)
    assert find_lease(state, key) == Placement("w1", "L1")
    assert find_lease(state, LeaseKey("acme", "s", "a")) is None
    state.drain_worker("w1", START)
    assert find_lease(state, key) is None


def test_the_leases_of_a_session_are_those_of_servers_that_the_reader_may_see() -> None:
    granted = ServerPolicy(grants={"default": Grant(agents={"other": None})})
    state, _ = started(spec("a", shared=False), replace(spec("b", shared=False), policy=granted))
    held = (lease("L2", "w1", server_id="b"), lease("L1", "w1"), lease("L3", "w1", session="other"))
    state.handle_report("w1", WorkerReport(gained=held), START)

    def found(agent: str) -> list[str]:
        return [one.id for one in find_leases(state, Reader("default", agent), "s")]

    assert found("desk") == ["L1", "L2"]
    assert found("other") == ["L1"]
    state.handle_report("w1", WorkerReport(lost=("L1",)), START)
    assert found("desk") == ["L2"]
    state.drain_worker("w1", START)
    assert not found("desk")
