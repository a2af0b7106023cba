"""Placement as callers and workers see it."""

from __future__ import annotations

from tests.control_plane.edge.conftest import Running
from tests.control_plane.edge.fake_worker import worker
from tests.control_plane.edge.test_operators import serve_desk

from leaseway.v1 import leases_pb2, sync_pb2


async def test_a_named_worker_counts_as_silent_until_it_says_anything(running: Running) -> None:
    async with worker(running.address) as w1:
        await serve_desk(running, w1)
        await running.placement.Place(leases_pb2.PlaceRequest(session="s", server_id="desk"))
        assert running.plane.state.placements.unanswered_since("w1") is not None
        await w1.say(report=sync_pb2.Report(calls_in_flight=1))
        await running.until(
            lambda state: state.placements.unanswered_since("w1") is None,
        )
