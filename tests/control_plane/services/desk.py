"""A worker that serves the leased server `desk`, and a lease of it."""

from __future__ import annotations

from dataclasses import replace

from tests.control_plane.conftest import Running
from tests.control_plane.core.builders import spec
from tests.control_plane.fake_worker import FakeWorker

from leaseway.spec.policy import NO_POLICY, ServerPolicy
from leaseway.v1 import leases_pb2, sync_pb2

LEASE = leases_pb2.Lease(id="L1", server_id="desk", tenant="default", session="s")


async def hold(running: Running, fake: FakeWorker) -> None:
    await fake.send(report=sync_pb2.Report(leases_gained=[LEASE]))
    await running.until(lambda state: "L1" in state.placements.leases)


async def serve_desk(running: Running, fake: FakeWorker, policy: ServerPolicy = NO_POLICY) -> None:
    running.load(replace(spec("desk", shared=False), policy=policy), spec("time"))
    await fake.serve("open")
    await fake.serve("open")
    await fake.apply_until("desk", "time")
    await running.until(lambda state: state.ready)
