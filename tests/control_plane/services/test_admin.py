"""Operators' commands on workers and leases."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest
from tests.conftest import BOUND
from tests.control_plane.conftest import Running
from tests.control_plane.core.builders import spec
from tests.control_plane.fake_worker import worker
from tests.control_plane.services.answers import fault_of
from tests.control_plane.services.desk import LEASE, hold, serve_desk

from leaseway.control_plane.core.coordinator import Coordinator
from leaseway.control_plane.core.queries.status import servers_down
from leaseway.control_plane.operators.commands import OperatorCommands
from leaseway.control_plane.services import admin as admin_service
from leaseway.identity.principal import LOOPBACK, Principal, Role
from leaseway.identity.refusals import RpcRefusal
from leaseway.spec.model import VariantKey
from leaseway.v1 import admin_pb2, catalog_pb2, leases_pb2, sync_pb2
from leaseway.wire.errors import Reason
from leaseway.wire.status import fault_from_status

CALLS = frozenset({Role.CALLER})


async def test_others_have_their_turn_while_servers_are_counted(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns, seen = 0, list[int]()
    loop = asyncio.get_running_loop()

    def take_turn() -> None:
        nonlocal turns
        turns += 1
        if len(seen) < 2:
            loop.call_soon(take_turn)

    def counting(state: Coordinator, variants: Sequence[VariantKey]) -> set[str]:
        seen.append(turns)
        return servers_down(state, variants)

    monkeypatch.setattr(admin_service, "_COUNTED_AT_ONCE", 1)
    monkeypatch.setattr(admin_service, "servers_down", counting)
    async with worker(running.address) as w1:
        await serve_desk(running, w1)
        loop.call_soon(take_turn)
        status = await running.admin.GetStatus(admin_pb2.GetStatusRequest(), timeout=BOUND)
    assert (status.servers_up, status.servers) == (2, 2)
    assert len(seen) == 2
    assert seen[0] < seen[1]


async def test_a_revocation_waits_until_the_worker_confirms_it(running: Running) -> None:
    running.load()
    async with worker(running.address) as w1:
        await hold(running, w1)
        request = admin_pb2.RevokeLeaseRequest(lease_id="L1", reason="it is stuck")
        asked = asyncio.ensure_future(running.admin.RevokeLease(request, timeout=60))
        told = (await w1.receive("revoke")).revoke
        assert (told.lease_id, told.reason) == ("L1", "it is stuck")
        assert not asked.done()
        await w1.send(report=sync_pb2.Report(leases_lost=["L1"]))
        assert (await asked).ended


async def test_an_unconfirmed_revocation_returns_in_time(running: Running, hurried: float) -> None:
    running.load()
    async with worker(running.address) as w1:
        await hold(running, w1)
        request = admin_pb2.RevokeLeaseRequest(lease_id="L1")
        answer = await running.admin.RevokeLease(request, timeout=hurried)
        assert not answer.ended
        assert (await w1.receive("revoke")).revoke.reason == "an operator revoked it"


async def test_an_unknown_lease_cannot_be_revoked(running: Running) -> None:
    unknown = admin_pb2.RevokeLeaseRequest(lease_id="L9")
    fault = await fault_of(running.admin.RevokeLease(unknown))
    assert (fault.reason, fault.metadata["lease"]) == (Reason.LEASE_LOST, "L9")
    assert "No worker holds lease 'L9'" in fault.message


async def test_a_lease_of_a_disconnected_worker_cannot_be_revoked(running: Running) -> None:
    running.load()
    async with worker(running.address) as w1:
        await hold(running, w1)
    await running.until(lambda state: not state.workers["w1"].connected)
    fault = await fault_of(running.admin.RevokeLease(admin_pb2.RevokeLeaseRequest(lease_id="L1")))
    assert fault.reason is Reason.WORKER_LOST
    assert "'w1'" in fault.message


async def test_workers_can_be_asked_for_by_id(running: Running) -> None:
    running.load()
    async with worker(running.address), worker(running.address, "w2"):
        request = admin_pb2.ListWorkersRequest(worker_ids=["w2", "unknown"])
        answer = await running.admin.ListWorkers(request)
        assert [each_worker.worker.id for each_worker in answer.workers] == ["w2"]
        await running.until(lambda state: state.settled)
        assert (await running.admin.ListWorkers(request)).settled
        request = admin_pb2.ListWorkersRequest(worker_ids=["w"] * 1_001)
        fault = await fault_of(running.admin.ListWorkers(request))
        assert fault.reason is Reason.INVALID_REQUEST


async def test_a_drain_reaches_the_worker_which_gets_no_new_leases(running: Running) -> None:
    async with worker(running.address) as w1:
        await serve_desk(running, w1)
        await running.admin.DrainWorker(admin_pb2.DrainWorkerRequest(worker_id="w1"))
        await w1.receive("drain")
        (record,) = (await running.admin.ListWorkers(admin_pb2.ListWorkersRequest())).workers
        assert record.state == "draining"
        place = leases_pb2.PlaceRequest(session="s", server_id="desk")
        fault = await fault_of(running.placement.Place(place, timeout=60))
        assert fault.reason is Reason.SERVER_NOT_READY


async def test_commands_are_audited_by_the_worker_before_their_execution(running: Running) -> None:
    running.load()
    nobody = LOOPBACK.name
    async with worker(running.address) as w1:
        await hold(running, w1)
        for lease in ("L9", "L1"):
            request = admin_pb2.RevokeLeaseRequest(lease_id=lease, reason="it is stuck")
            asked = asyncio.ensure_future(running.admin.RevokeLease(request, timeout=60))
            if lease == "L9":
                assert (await fault_of(asked)).reason is Reason.LEASE_LOST
        await w1.receive("revoke")
        refused, revoked = w1.operated
        assert (refused.action, refused.lease_id, refused.by) == ("revoke", "L9", nobody)
        assert refused.outcome == "LEASE_LOST"
        assert (revoked.lease_id, revoked.outcome, revoked.by) == ("L1", "ok", nobody)
        assert (revoked.server_id, revoked.session, revoked.reason) == ("desk", "s", "it is stuck")
        await w1.send(report=sync_pb2.Report(leases_lost=["L1"]))
        assert (await asked).ended
        w1.operated.clear()
        await fault_of(running.admin.DrainWorker(admin_pb2.DrainWorkerRequest(worker_id="w9")))
        await running.admin.DrainWorker(admin_pb2.DrainWorkerRequest(worker_id="w1"))
        await w1.receive("drain")
        told = [
            (operation.action, operation.worker_id, operation.outcome, operation.by)
            for operation in w1.operated
        ]
        assert told == [
            ("drain", "w9", "INVALID_REQUEST", nobody),
            ("drain", "w1", "ok", nobody),
        ]
        history = running.plane.events.history.select(kinds=("operator",))
        assert [
            (each_lease.action, each_lease.lease_id, each_lease.worker_id) for each_lease in history
        ] == [
            ("revoked", "L1", "w1"),
            ("drained", "", "w1"),
        ]


async def test_draining_an_unknown_worker_lists_the_connected_ones(running: Running) -> None:
    unknown = admin_pb2.DrainWorkerRequest(worker_id="w9")
    fault = await fault_of(running.admin.DrainWorker(unknown))
    assert fault.message == "No worker is connected."
    async with worker(running.address, "w1"), worker(running.address, "w2"):
        fault = await fault_of(running.admin.DrainWorker(unknown))
    assert fault.message == "No worker 'w9' is connected. Connected are: w1, w2."


async def test_a_reported_lease_is_found_by_its_key_and_nothing_is_reserved(
    running: Running,
) -> None:
    find = running.placement.FindLease
    request = leases_pb2.FindLeaseRequest(session="s", server_id="desk")
    async with worker(running.address) as w1:
        await serve_desk(running, w1)
        assert not (await find(request)).HasField("worker")
        await hold(running, w1)
        found = await find(request)
        assert (found.worker.id, found.worker.incarnation, found.lease_id) == ("w1", "run-1", "L1")
        other = leases_pb2.FindLeaseRequest(session="s", server_id="desk", tenant="acme")
        assert not (await find(other)).HasField("worker")
        [of_session] = (await find(leases_pb2.FindLeaseRequest(session="s"))).leases
        assert (of_session.worker, of_session.server_id) == (found.worker, "desk")
        assert of_session.lease_id == "L1"
        assert running.plane.state.placements.load("w1") == 1
    await running.until(lambda state: not state.workers["w1"].connected)
    assert not (await find(request)).HasField("worker")
    assert not (await find(leases_pb2.FindLeaseRequest(session="s"))).leases
    for blank in (leases_pb2.FindLeaseRequest(server_id="desk"), leases_pb2.FindLeaseRequest()):
        assert (await fault_of(find(blank))).reason is Reason.INVALID_REQUEST


async def test_finding_a_lease_waits_for_reports_after_a_start(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed, waits = running.plane.wait_for_change, asyncio.Event()

    async def noted(timeout: float) -> None:
        waits.set()
        await changed(timeout)

    monkeypatch.setattr(running.plane, "wait_for_change", noted)
    find = running.placement.FindLease
    waiting = find(leases_pb2.FindLeaseRequest(session="s", server_id="desk"), timeout=60)
    all_of_it = find(leases_pb2.FindLeaseRequest(session="s"), timeout=60)
    async with asyncio.timeout(BOUND):
        await waits.wait()
    running.load(spec("desk", shared=False))
    async with worker(running.address, leases=[LEASE]):
        assert (await waiting).lease_id == "L1"
        assert [found.lease_id for found in (await all_of_it).leases] == ["L1"]


async def test_finding_a_lease_ends_at_the_callers_deadline(
    running: Running, hurried: float
) -> None:
    request = leases_pb2.FindLeaseRequest(session="s", server_id="desk")
    found = await running.placement.FindLease(request, timeout=hurried)
    assert not running.plane.state.settled
    assert not found.HasField("worker")


async def test_the_admin_toolset_is_listed_on_every_worker_and_not_among_the_servers(
    running: Running,
) -> None:
    async with worker(running.address, "w1") as w1:
        await serve_desk(running, w1)
        async with worker(running.address, "w2"):
            request = catalog_pb2.ListToolsRequest(servers=["mcp_admin"])
            (tool,) = (await running.catalog.ListTools(request)).tools
            names = catalog_pb2.ResolveToolsRequest(names=["mcp_release", "mcp_admin:mcp_release"])
            resolved = (await running.catalog.ResolveTools(names, timeout=60)).tools
            listed = await running.catalog.ListServers(catalog_pb2.ListServersRequest())
    assert (tool.name, tool.original_name, tool.server_id) == (
        "mcp_release",
        "mcp_release",
        "mcp_admin",
    )
    assert tool.title
    assert tool.description
    schema = json.loads(tool.input_schema)
    assert (schema["required"], schema["additionalProperties"]) == (["serverId"], False)
    assert json.loads(tool.annotations)["idempotentHint"] is True
    for operation in resolved:
        assert (operation.server_id, operation.original_name) == ("mcp_admin", "mcp_release")
        assert operation.shared
        assert operation.idempotent
        assert [ref.id for ref in operation.workers] == ["w1", "w2"]
    assert [server.server_id for server in listed.servers] == ["desk", "time"]


async def test_without_a_leased_server_there_is_no_admin_toolset(running: Running) -> None:
    running.load(spec("time"))
    async with worker(running.address) as w1:
        await w1.serve("now")
        await w1.apply_until("time")
        await running.until(lambda state: state.ready)
        listed = (await running.catalog.ListTools(catalog_pb2.ListToolsRequest())).tools
        names = catalog_pb2.ResolveToolsRequest(names=["mcp_release", "mcp_admin:mcp_release"])
        resolved = (await running.catalog.ResolveTools(names, timeout=60)).tools
    assert [tool.name for tool in listed] == ["time_now"]
    reasons = [fault_from_status(tool.error).reason for tool in resolved]
    assert reasons == [Reason.TOOL_NOT_FOUND] * 2


async def test_rejected_rpcs_are_sent_to_the_audit_of_a_worker(running: Running) -> None:
    steering = OperatorCommands(running.plane)
    refusal = RpcRefusal(
        "AdminService/DrainWorker", "key abc", "ipv4:192.0.2.7", "PERMISSION_DENIED"
    )
    steering.record_refusals(refusal, 1)  # no worker is connected to record it
    async with worker(running.address) as w1:
        steering.record_refusals(refusal, 7)
        heard = (await w1.receive("refused_rpc")).refused_rpc
        assert (heard.rpc, heard.by, heard.peer) == (refusal.rpc, refusal.by, refusal.peer)
        assert (heard.outcome, heard.times) == ("PERMISSION_DENIED", 7)


async def test_recent_lease_ends_are_listed_for_their_tenant(running: Running) -> None:
    running.load()
    async with worker(running.address) as w1:
        await hold(running, w1)
        ends = [
            admin_pb2.LeaseEnd(lease_id="L1", tenant="default", how="released"),
            admin_pb2.LeaseEnd(lease_id="L2", tenant="acme", how="expired"),
        ]
        await w1.send(report=sync_pb2.Report(leases_lost=["L1"], lease_ends=ends))
        await running.until(lambda state: not state.placements.leases)
        for tenant, known in (("", ["L1", "L2"]), ("default", ["L1"]), ("acme", ["L2"])):
            request = admin_pb2.ListHeldLeasesRequest(tenant=tenant)
            answer = await running.admin.ListHeldLeases(request)
            assert not answer.leases
            assert [end.lease_id for end in answer.ended] == known
        assert answer.ended[0].how == "expired"


async def test_lease_ends_of_older_workers_have_no_details(running: Running) -> None:
    running.load()
    async with worker(running.address) as w1:
        await hold(running, w1)
        await w1.send(report=sync_pb2.Report(leases_lost=["L1"]))
        await running.until(lambda state: not state.placements.leases)
        answer = await running.admin.ListHeldLeases(admin_pb2.ListHeldLeasesRequest())
        assert not answer.ended


async def listed(running: Running, more: Sequence[leases_pb2.Lease]) -> list[str]:
    """Hold a lease of nobody and more of `mail`; return the ids that are listed."""
    running.load()
    async with worker(running.address) as w1:
        await hold(running, w1)
        for lease in more:
            lease.server_id, lease.tenant, lease.session = "mail", "default", lease.id
        await w1.send(report=sync_pb2.Report(leases_gained=more))
        await running.until(lambda state: len(state.placements.leases) == 1 + len(more))
        answer = await running.admin.ListHeldLeases(admin_pb2.ListHeldLeasesRequest())
        return [lease.id for lease in answer.leases]


@pytest.mark.parametrize(
    ("who", "seen"),
    [
        (Principal("ann's key", CALLS, "default", user="ann"), ["L1", "ann"]),
        (Principal("a service", CALLS, "default"), ["L1"]),
        (Principal("a delegate", CALLS | {Role.DELEGATE}, "default"), ["L1", "ann", "bob"]),
        (Principal("an operator", frozenset({Role.OPERATOR})), ["L1", "ann", "bob"]),
    ],
    ids=lambda value: value.name if isinstance(value, Principal) else None,
)
async def test_a_lease_that_acts_for_a_user_is_listed_for_those_who_speak_for_him(
    running: Running, monkeypatch: pytest.MonkeyPatch, who: Principal, seen: list[str]
) -> None:
    monkeypatch.setattr(admin_service, "caller", lambda: who)
    of_users = [leases_pb2.Lease(id=user, user=user) for user in ("ann", "bob")]
    assert await listed(running, of_users) == seen


@pytest.mark.parametrize(
    ("who", "seen"),
    [
        (Principal("a service", CALLS, "default"), ["L1", "a service"]),
        (Principal("ann's key", CALLS, "default", user="ann"), ["L1"]),
        (Principal("a delegate", CALLS | {Role.DELEGATE}, "default"), ["L1", "a service", "b"]),
        (Principal("an operator", frozenset({Role.OPERATOR})), ["L1", "a service", "b"]),
    ],
    ids=lambda value: value.name if isinstance(value, Principal) else None,
)
async def test_a_lease_that_acts_for_the_holder_of_a_token_is_listed_for_him(
    running: Running, monkeypatch: pytest.MonkeyPatch, who: Principal, seen: list[str]
) -> None:
    monkeypatch.setattr(admin_service, "caller", lambda: who)
    of_tokens = [leases_pb2.Lease(id=name, holder=name) for name in ("a service", "b")]
    assert await listed(running, of_tokens) == seen
