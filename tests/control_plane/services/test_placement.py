"""The placement service with fake workers."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import grpc
import pytest
from tests.conftest import BOUND
from tests.control_plane.conftest import Running
from tests.control_plane.core.builders import spec
from tests.control_plane.fake_worker import worker
from tests.control_plane.services.test_admin import serve_desk

from leaseway.control_plane.core.coordinator import Coordinator
from leaseway.control_plane.core.placement.table import PlacementKey
from leaseway.control_plane.core.queries import place as lookup
from leaseway.control_plane.services import placement as placement_service
from leaseway.v1 import admin_pb2, leases_pb2, sync_pb2


async def test_a_chosen_worker_is_silent_until_its_next_message(running: Running) -> None:
    async with worker(running.address) as w1:
        await serve_desk(running, w1)
        await running.placement.Place(leases_pb2.PlaceRequest(session="s", server_id="desk"))
        assert running.plane.state.placements.unanswered_since("w1") is not None
        await w1.say(report=sync_pb2.Report(calls_in_flight=1))
        await running.until(
            lambda state: state.placements.unanswered_since("w1") is None,
        )


async def test_requests_that_wait_for_a_first_start_do_not_wake_each_other(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    ask = lookup.place_or_wait

    def counting(state: Coordinator, key: PlacementKey, *args: Any, **more: Any) -> Any:
        asked.append(key.session)
        return ask(state, key, *args, **more)

    monkeypatch.setattr(placement_service, "place_or_wait", counting)
    running.load(spec("desk", shared=False))
    async with worker(running.address) as w1:
        waiting = [
            asyncio.ensure_future(
                running.placement.Place(
                    leases_pb2.PlaceRequest(session=f"s{number}", server_id="desk"), timeout=BOUND
                )
            )
            for number in range(3)
        ]
        await running.until(lambda _: len(asked) >= 3)
        for number in range(20):  # each of them a change that all who wait look at
            await running.admin.GetStatus(admin_pb2.GetStatusRequest())
            await w1.say(report=sync_pb2.Report(calls_in_flight=number))
        assert sorted(asked) == ["s0", "s1", "s2"]
        await w1.serve("type")
        await w1.apply_until("desk")
        async with asyncio.timeout(BOUND):
            placed = await asyncio.gather(*waiting)
    assert {one.worker.id for one in placed} == {"w1"}
    assert sorted(asked) == ["s0", "s0", "s1", "s1", "s2", "s2"]


async def test_a_waiting_request_keeps_only_known_worker_ids(
    running: Running,
) -> None:
    async with worker(running.address) as w1:
        await serve_desk(running, w1)
        request = leases_pb2.PlaceRequest(session="s", server_id="desk")
        request.exclude_workers.extend(["w1", *(f"nobody{n}" for n in range(1000))])
        request.wait.FromMilliseconds(60_000)
        asked = asyncio.ensure_future(running.placement.Place(request, timeout=BOUND))
        await running.until(lambda state: len(state.wait_queue) == 1)
        (waiter,) = running.plane.state.wait_queue._waiting.values()
        assert set(waiter.avoided) == {"w1"}
        async with asyncio.timeout(BOUND):
            assert (await asked).worker.id == "w1", "it is tried again after a second"


async def test_unused_placements_of_one_tenant_do_not_block_another(
    running: Running,
) -> None:
    async with worker(running.address) as w1:  # which has room for four leases
        await serve_desk(running, w1)
        for number in range(8):
            request = leases_pb2.PlaceRequest(
                tenant="greedy", session=f"s{number}", server_id="desk"
            )
            with contextlib.suppress(grpc.aio.AioRpcError):
                await running.placement.Place(request, timeout=BOUND)
        assert running.plane.state.placements.load("w1") == 4
        placed = await running.placement.Place(
            leases_pb2.PlaceRequest(tenant="modest", session="s", server_id="desk"), timeout=BOUND
        )
        assert placed.worker.id == "w1"
        assert running.plane.state.placements.load("w1") == 4
