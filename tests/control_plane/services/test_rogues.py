"""A malicious caller and a malicious worker against every RPC."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.conftest import BOUND
from tests.control_plane.conftest import Running, serving
from tests.control_plane.core.builders import spec
from tests.control_plane.fake_worker import FakeWorker, recorded, worker
from tests.hostile import TEXTS, calling, hostile, methods_of

from leaseway.control_plane.sync import service
from leaseway.control_plane.sync.seal import Seal
from leaseway.identity.authenticator import authenticator_for
from leaseway.identity.interceptor import IdentityInterceptor
from leaseway.identity.keys import add_key, make_key
from leaseway.identity.principal import Role
from leaseway.spec.codec import encode_spec
from leaseway.spec.kinds.table import server_spec
from leaseway.spec.model import VariantKey
from leaseway.v1 import admin_pb2, catalog_pb2, leases_pb2, sync_pb2
from leaseway.wire.channels.auth import bearer_metadata
from leaseway.wire.errors import Reason
from leaseway.wire.status import fault_from_rpc_error
from leaseway.wire.timing.durations import duration

SERVICES = [
    admin_pb2.DESCRIPTOR.services_by_name["AdminService"],
    catalog_pb2.DESCRIPTOR.services_by_name["CatalogService"],
    leases_pb2.DESCRIPTOR.services_by_name["PlacementService"],
]
METHODS = methods_of(SERVICES)
_WAITS = 0.5
_FLOOD = 200
_BROKEN = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE)
LEASE = leases_pb2.Lease(id="L1", server_id="desk", tenant="default", session="s")


@pytest.mark.parametrize("full", sorted(METHODS))
async def test_any_request_is_answered_and_harms_no_other_caller(
    running: Running, full: str
) -> None:
    running.load(spec("desk", shared=False))
    method = METHODS[full]
    async with worker(running.address) as w1, grpc.aio.insecure_channel(running.address) as channel:
        await w1.send(report=sync_pb2.Report(leases_gained=[LEASE]))
        await running.until(lambda state: "L1" in state.placements.leases)

        async def send(text: str) -> None:
            request = hostile(method, text)
            call = calling(channel, full, method, request, timeout=_WAITS)
            with suppress(grpc.aio.AioRpcError):
                await (call.read() if method.server_streaming else call)
            if call.done():
                assert await call.code() not in _BROKEN, await call.details()
            call.cancel()

        for text in TEXTS:
            await send(text)
        await asyncio.gather(*(send("guessed-1") for _ in range(_FLOOD)))
        stub = running.admin
        listed = await stub.ListWorkers(admin_pb2.ListWorkersRequest(), timeout=BOUND)
        assert [each_worker.state for each_worker in listed.workers] != ["draining"]
        assert running.plane.state.placements.leases["L1"].worker_id == "w1"


async def test_false_leases_and_versions_of_a_worker_harm_no_other(running: Running) -> None:
    running.load(spec("desk", shared=False))
    async with worker(running.address) as honest:
        await honest.serve("open")
        await honest.apply_until("desk")
        await running.until(lambda state: state.ready)
        place = leases_pb2.PlaceRequest(session="s", server_id="desk")
        assert (await running.placement.Place(place, timeout=BOUND)).worker.id == "w1"
        await honest.send(report=sync_pb2.Report(leases_gained=[LEASE]))
        await running.until(lambda state: "L1" in state.placements.leases)
        for claim in ({"highest_registry_version": 2**64 - 1}, {"highest_epoch": 2**64 - 1}):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                async with worker(running.address, "far", **claim):
                    pass
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        async with worker(running.address, "rogue") as rogue:
            older = leases_pb2.Lease(age=duration(3600))
            older.MergeFrom(LEASE)
            duplicate = leases_pb2.Lease()
            duplicate.MergeFrom(older)
            duplicate.id = "L2"
            await rogue.send(
                report=sync_pb2.Report(leases_gained=[older, duplicate], leases_lost=["L1"])
            )
            await running.until(lambda state: "L2" in state.placements.leases)
            found = await running.placement.FindLease(
                leases_pb2.FindLeaseRequest(session="s", server_id="desk"), timeout=BOUND
            )
            assert (found.worker.id, found.lease_id) == ("w1", "L1")
            await running.until(lambda state: "L2" in state.workers["rogue"].revoked_duplicates)
            assert "L1" not in running.plane.state.workers["w1"].revoked_duplicates


def _poisoned(server_id: str, launch_hash: str) -> sync_pb2.Upsert:
    """Return a variant signed with another key."""
    made = sync_pb2.Upsert(
        spec=encode_spec(server_spec(VariantKey(server_id), "stdio", command="sh")),
        hashes=sync_pb2.HeldHashes(
            key=catalog_pb2.VariantKey(server_id=server_id),
            launch_hash=launch_hash,
            exposure_hash="e",
            toolset_hash="t",
        ),
        toolset=sync_pb2.Toolset(
            recorded=recorded("poison"),
            exposed=[sync_pb2.ExposedTool(original_name="poison", name=f"{server_id}_poison")],
        ),
    )
    return Seal(b"the key of another deployment").sign(made)


def _listing(server_id: str, launch_hash: str, probe_id: int = 0) -> sync_pb2.ProbeResult:
    return sync_pb2.ProbeResult(
        id=probe_id,
        key=catalog_pb2.VariantKey(server_id=server_id),
        launch_hash=launch_hash,
        tools=recorded("poison"),
    )


async def _heard_out(running: Running, rogue: FakeWorker) -> None:
    """Wait until the control plane has handled all messages of a worker."""
    name = f"heard-{rogue.id}"
    lease = leases_pb2.Lease(id=name, server_id=name, tenant="default", session=name)
    await rogue.send(report=sync_pb2.Report(leases_gained=[lease]))
    await running.until(lambda state: name in state.placements.leases)


async def test_false_specs_and_toolsets_of_a_worker_are_ignored(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    desk = spec("desk")
    hashes = [desk.launch_hash, "0" * 64]
    async with worker(running.address) as honest:
        running.load(desk)
        probe = (await honest.receive("probe")).probe
        claims = [
            sync_pb2.HeldHashes(
                key=catalog_pb2.VariantKey(server_id=server), launch_hash=launch, toolset_hash="t"
            )
            for server, launch in (("desk", hashes[0]), ("ghost", hashes[1]))
        ]
        async with worker(running.address, "rogue", held=claims, servers=["other"]) as rogue:
            forged = [
                _poisoned(server, launch) for server in ("desk", "ghost") for launch in hashes
            ]
            await rogue.send(held=sync_pb2.Held(variants=forged))
            await rogue.send(probe_result=_listing("desk", hashes[0], probe.id))
            for server, launch in (("desk", hashes[0]), ("desk", hashes[1]), ("ghost", hashes[1])):
                await rogue.send(probe_result=_listing(server, launch))
            await _heard_out(running, rogue)
        assert "with a signature that does not match" in caplog.text
        assert "which it was not asked to probe" in caplog.text
        # The reported content is awaited: the probe was cancelled and starts again.
        await honest.serve_until("desk", "open")
        async with worker(running.address, "stranger", servers=["another"]) as stranger:
            await stranger.send(probe_result=_listing("desk", hashes[0]))
            running.load(desk, spec("other-desk"))
            probe = (await honest.receive("probe")).probe
            await stranger.send(probe_result=_listing("other-desk", probe.launch_hash, probe.id))
            await _heard_out(running, stranger)
        listed = sync_pb2.ProbeResult(id=probe.id, tools=recorded("open"))
        await honest.send(probe_result=listed)
        await honest.apply_until("desk", "other-desk")
        for held in honest.held.values():
            assert held.spec == probe.spec
            assert b'"sh"' not in held.spec
            assert b"poison" not in held.SerializeToString()
        tools = await running.catalog.ListTools(catalog_pb2.ListToolsRequest(), timeout=BOUND)
        servers = await running.catalog.ListServers(catalog_pb2.ListServersRequest(), timeout=BOUND)
        for answer in (tools, servers):
            told = answer.SerializeToString()
            assert b"desk" in told
            assert b"poison" not in told
            assert b"ghost" not in told


async def test_one_worker_alone_cannot_change_a_listing(running: Running) -> None:
    """Neither by a changed listing nor by changed content on its disk."""
    desk = spec("desk")
    async with worker(running.address) as honest:
        running.load(desk)
        await honest.serve_until("desk", "open")
        async with worker(running.address, "rogue") as rogue:
            await rogue.apply_until("desk")
            await rogue.send(probe_result=_listing("desk", desk.launch_hash))
            asked = (await honest.receive("probe")).probe
            assert asked.relist
            listed = sync_pb2.ProbeResult(
                id=asked.id, tools=recorded("open"), protocol_version="2025-11-25"
            )
            await honest.send(probe_result=listed)
            await running.until(lambda state: state.problems.open())
            [found] = running.plane.state.problems.open()
            assert (found.problem.reason, found.problem.worker_id) == ("LISTS_DIFFER", "rogue")
            changed = sync_pb2.Upsert()
            changed.CopyFrom(rogue.held["desk"])
            changed.toolset.recorded[0].CopyFrom(recorded("poison")[0])
            changed.hashes.toolset_hash = "t"
        tools = await running.catalog.ListTools(catalog_pb2.ListToolsRequest(), timeout=BOUND)
        assert [tool.name for tool in tools.tools] == ["desk_open"]
    async with serving() as restarted:
        restarted.load(desk)
        claims = [changed.hashes]
        async with (
            worker(restarted.address, "rogue", held=claims) as rogue,
            worker(restarted.address, held=[honest.held["desk"].hashes]) as back,
        ):
            await rogue.receive("want")
            await rogue.send(held=sync_pb2.Held(variants=[changed]))
            await back.receive("want")
            await back.send(held=sync_pb2.Held(variants=[honest.held["desk"]]))
            await back.receive("delta")
            await restarted.until(lambda state: state.ready)
            tools = await restarted.catalog.ListTools(catalog_pb2.ListToolsRequest(), timeout=BOUND)
            assert [tool.name for tool in tools.tools] == ["desk_open"]
            assert restarted.plane.state.servers.probes._next_id == 1, "nothing was tried again"


async def test_a_reported_problem_gets_the_tenant_of_its_credential(tmp_path: Path) -> None:
    keys = {}
    for role, tenant in ((Role.CALLER, "rival"), (Role.OPERATOR, None)):
        keys[role], record = make_key(roles=[role], tenant=tenant, agent=None, now=0.0)
        add_key(tmp_path / "keys.json", record)
    known = authenticator_for(None, keys=tmp_path / "keys.json")
    async with serving(IdentityInterceptor(known)) as running:
        problem = admin_pb2.Problem(tenant="acme", reason="PROVIDER_REFUSED", message="No $ref.")
        request = admin_pb2.ReportProblemRequest(problem=problem)
        rival, operator = (bearer_metadata(keys[role]) for role in (Role.CALLER, Role.OPERATOR))
        await running.admin.ReportProblem(request, metadata=rival, timeout=BOUND)
        listed = await running.admin.ListProblems(
            admin_pb2.ListProblemsRequest(), metadata=operator, timeout=BOUND
        )
        assert [(each_problem.tenant, each_problem.reason) for each_problem in listed.problems] == [
            ("rival", "PROVIDER_REFUSED")
        ]


@pytest.mark.parametrize("name", ["x" * 257, "a\nb"])
async def test_invalid_caller_names_are_rejected_everywhere(running: Running, name: str) -> None:
    agent = catalog_pb2.ClientInfo(agent=name)
    asked: list[Awaitable[Any]] = [
        running.catalog.ListTools(catalog_pb2.ListToolsRequest(tenant=name)),
        running.catalog.ListTools(catalog_pb2.ListToolsRequest(client=agent)),
        running.catalog.ResolveTools(catalog_pb2.ResolveToolsRequest(tenant=name)),
        running.catalog.ListServers(catalog_pb2.ListServersRequest(tenant=name)),
        running.admin.ListHeldLeases(admin_pb2.ListHeldLeasesRequest(tenant=name)),
        running.placement.Place(leases_pb2.PlaceRequest(session=name, server_id="a")),
        running.placement.Place(leases_pb2.PlaceRequest(session="s", server_id="a", client=agent)),
        running.placement.FindLease(
            leases_pb2.FindLeaseRequest(session="s", server_id="a", tenant=name)
        ),
    ]
    for request in asked:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await request
        fault = fault_from_rpc_error(caught.value)
        assert fault is not None
        assert fault.reason is Reason.INVALID_REQUEST


async def test_a_listing_on_which_the_control_plane_fails_is_a_problem_of_its_server(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_result: sync_pb2.ProbeResult) -> None:
        raise RuntimeError("What is this?")

    running.load(spec("a"))
    async with worker(running.address) as w1:
        monkeypatch.setattr(service, "listing_from_proto", fail)
        await w1.serve("x")
        await running.until(lambda state: state.problems.open())
        (problem,) = (await running.admin.ListProblems(admin_pb2.ListProblemsRequest())).problems
        assert (problem.reason, problem.server_id) == ("LIST_FAILED", "a")
        monkeypatch.undo()
        running.load(spec("b"))
        await w1.serve_until("b", "x")  # on the same stream; a may be probed again before
