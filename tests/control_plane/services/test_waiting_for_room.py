"""Requests that wait for capacity."""

from __future__ import annotations

import asyncio

from tests.conftest import BOUND
from tests.control_plane.conftest import Running
from tests.control_plane.core.builders import spec
from tests.control_plane.fake_worker import worker
from tests.control_plane.services.test_admin import hold, serve_desk
from tests.control_plane.services.test_catalog import fault_of

from leaseway.v1 import leases_pb2, sync_pb2
from leaseway.wire.errors import Reason


def wanted(session: str, seconds: float = 30.0, **more: object) -> leases_pb2.PlaceRequest:
    request = leases_pb2.PlaceRequest(session=session, server_id="desk", **more)  # type: ignore[arg-type]
    request.wait.FromMilliseconds(int(seconds * 1000))
    return request


async def fill(running: Running, *sessions: str) -> None:
    """Reserve all capacity of a worker with capacity 4."""
    for session in sessions:
        await running.placement.Place(leases_pb2.PlaceRequest(session=session, server_id="desk"))


async def waiting(
    running: Running, session: str, behind: int
) -> asyncio.Future[leases_pb2.PlaceResponse]:
    """Request a lease and return when the request is queued."""
    asked = asyncio.ensure_future(running.placement.Place(wanted(session), timeout=60))
    await running.until(lambda state: len(state.wait_queue) == behind + 1)
    return asked


async def test_capacity_is_given_in_the_order_of_requests(running: Running) -> None:
    async with worker(running.address) as w1:
        await serve_desk(running, w1)
        await hold(running, w1)
        await fill(running, "a", "b", "c")
        first = await waiting(running, "first", 0)
        second = await waiting(running, "second", 1)
        await w1.say(report=sync_pb2.Report(leases_lost=["L1"]))
        async with asyncio.timeout(BOUND):
            assert (await first).worker.id == "w1"
        assert not second.done()
        late = leases_pb2.PlaceRequest(session="late", server_id="desk")
        assert (await fault_of(running.placement.Place(late))).reason is Reason.CAPACITY
        second.cancel()
        await running.until(lambda state: not len(state.wait_queue))


async def test_capacity_of_a_joining_worker_is_given_to_waiting_requests(running: Running) -> None:
    async with worker(running.address) as w1:
        await serve_desk(running, w1)
        await fill(running, "a", "b", "c", "d")
        patient = await waiting(running, "patient", 0)
        async with worker(running.address, "w2") as w2:
            await w2.apply_until("desk", "time")
            async with asyncio.timeout(BOUND):
                assert (await patient).worker.id == "w2"


async def test_a_request_that_waits_in_vain_gets_the_reason(
    running: Running, hurried: float
) -> None:
    async with worker(running.address) as w1:
        await serve_desk(running, w1)
        await fill(running, "a", "b", "c", "d")
        fault = await fault_of(running.placement.Place(wanted("hasty", 0.05), timeout=hurried))
        assert fault.reason is Reason.CAPACITY
        fault = await fault_of(running.placement.Place(wanted("hurried", 3600), timeout=hurried))
        assert fault.reason is Reason.CAPACITY, "before the caller's own deadline"
        assert not len(running.plane.state.wait_queue)


async def test_a_removed_server_is_not_waited_for(running: Running) -> None:
    async with worker(running.address) as w1:
        await serve_desk(running, w1)
        await fill(running, "a", "b", "c", "d")
        patient = await waiting(running, "patient", 0)
        running.load(spec("time"))
        await w1.apply_until("time")
        assert (await fault_of(patient)).reason is Reason.TOOL_NOT_FOUND
