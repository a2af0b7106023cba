"""A caller and a worker that mean harm, against every RPC of the control plane that there is."""

from __future__ import annotations

from contextlib import suppress

import grpc
import pytest
from tests.conftest import BOUND
from tests.control_plane.conftest import Running
from tests.control_plane.core.builders import spec
from tests.control_plane.fake_worker import worker
from tests.hostile import TEXTS, calling, hostile, methods_of

from leaseway.v1 import admin_pb2, catalog_pb2, leases_pb2, sync_pb2
from leaseway.wire.timing.durations import duration

SERVICES = [
    admin_pb2.DESCRIPTOR.services_by_name["AdminService"],
    catalog_pb2.DESCRIPTOR.services_by_name["CatalogService"],
    leases_pb2.DESCRIPTOR.services_by_name["PlacementService"],
]
METHODS = methods_of(SERVICES)
_WAITS = 0.5
_BROKEN = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE)
LEASE = leases_pb2.Lease(id="L1", server_id="desk", tenant="default", session="s")


@pytest.mark.parametrize("full", sorted(METHODS))
async def test_whatever_a_caller_sends_is_answered_and_harms_nobody(
    running: Running, full: str
) -> None:
    running.load(spec("desk", shared=False))
    method = METHODS[full]
    async with worker(running.address) as w1, grpc.aio.insecure_channel(running.address) as channel:
        await w1.say(report=sync_pb2.Report(leases_gained=[LEASE]))
        await running.until(lambda state: "L1" in state.placements.leases)
        for text in TEXTS:
            request = hostile(method, text)
            call = calling(channel, full, method, request, timeout=_WAITS)
            with suppress(grpc.aio.AioRpcError):
                await (call.read() if method.server_streaming else call)
            if call.done():
                assert await call.code() not in _BROKEN, await call.details()
            call.cancel()
        stub = running.admin
        listed = await stub.ListWorkers(admin_pb2.ListWorkersRequest(), timeout=BOUND)
        assert [each.state for each in listed.workers] != ["draining"]
        assert running.plane.state.placements.leases["L1"].worker_id == "w1"


async def test_a_worker_that_lies_about_leases_and_versions_harms_no_other(
    running: Running,
) -> None:
    running.load(spec("desk", shared=False))
    async with worker(running.address) as honest:
        await honest.serve("open")
        await honest.apply_until("desk")
        await running.until(lambda state: state.ready)
        place = leases_pb2.PlaceRequest(session="s", server_id="desk")
        assert (await running.placement.Place(place, timeout=BOUND)).worker.id == "w1"
        await honest.say(report=sync_pb2.Report(leases_gained=[LEASE]))
        await running.until(lambda state: "L1" in state.placements.leases)
        for claim in ({"highest_registry_version": 2**64 - 1}, {"highest_epoch": 2**64 - 1}):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                async with worker(running.address, "far", **claim):
                    pass
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        async with worker(running.address, "rogue") as rogue:
            older = leases_pb2.Lease(age=duration(3600))
            older.MergeFrom(LEASE)
            twin = leases_pb2.Lease()
            twin.MergeFrom(older)
            twin.id = "L2"
            await rogue.say(report=sync_pb2.Report(leases_gained=[older, twin], leases_lost=["L1"]))
            await running.until(lambda state: "L2" in state.placements.leases)
            found = await running.placement.FindLease(
                leases_pb2.FindLeaseRequest(session="s", server_id="desk"), timeout=BOUND
            )
            assert (found.worker.id, found.lease_id) == ("w1", "L1")
            assert "L1" not in running.plane.state.workers["w1"].twins_revoked
            assert "L2" in running.plane.state.workers["rogue"].twins_revoked
