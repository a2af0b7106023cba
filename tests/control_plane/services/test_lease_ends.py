"""Lease ends, from a worker's report to the list of leases."""

from __future__ import annotations

from tests.control_plane.conftest import Running
from tests.control_plane.fake_worker import worker
from tests.control_plane.services.test_admin import hold

from leaseway.v1 import admin_pb2, sync_pb2


async def test_recent_lease_ends_are_listed_for_their_tenant(
    running: Running,
) -> None:
    running.load()
    async with worker(running.address) as w1:
        await hold(running, w1)
        ends = [
            admin_pb2.LeaseEnd(lease_id="L1", tenant="default", how="released"),
            admin_pb2.LeaseEnd(lease_id="L2", tenant="acme", how="expired"),
        ]
        await w1.say(report=sync_pb2.Report(leases_lost=["L1"], lease_ends=ends))
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
        await w1.say(report=sync_pb2.Report(leases_lost=["L1"]))
        await running.until(lambda state: not state.placements.leases)
        answer = await running.admin.ListHeldLeases(admin_pb2.ListHeldLeasesRequest())
        assert not answer.ended
