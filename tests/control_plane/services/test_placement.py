"""The placement service with fake workers."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest
from tests.conftest import BOUND
from tests.control_plane.conftest import Running
from tests.control_plane.core.builders import spec
from tests.control_plane.fake_worker import FakeWorker, worker
from tests.control_plane.services.answers import fault_of
from tests.control_plane.services.desk import hold, serve_desk

from leaseway.control_plane.core.coordinator import Coordinator
from leaseway.control_plane.core.moment import Moment
from leaseway.control_plane.core.queries import place as lookup
from leaseway.control_plane.services import placement as placement_service
from leaseway.v1 import admin_pb2, catalog_pb2, leases_pb2, sync_pb2
from leaseway.wire import bounds
from leaseway.wire.clients.greeting import Greeting
from leaseway.wire.clients.mcp_client import McpClient
from leaseway.wire.errors import Reason
from leaseway.wire.names import LeaseKey
from leaseway.wire.timing.durations import duration


async def test_a_chosen_worker_is_silent_until_its_next_message(running: Running) -> None:
    async with worker(running.address) as w1:
        await serve_desk(running, w1)
        await running.placement.Place(leases_pb2.PlaceRequest(session="s", server_id="desk"))
        assert running.plane.state.placements.unanswered_since("w1") is not None
        await w1.send(report=sync_pb2.Report(calls_in_flight=1))
        await running.until(
            lambda state: state.placements.unanswered_since("w1") is None,
        )


async def test_requests_that_wait_for_a_first_start_do_not_wake_each_other(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    ask = lookup.place_or_wait

    def counting(state: Coordinator, key: LeaseKey, *args: Any, **more: Any) -> Any:
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
        for number in range(20):  # each is an event that wakes all waiting requests
            await running.admin.GetStatus(admin_pb2.GetStatusRequest())
            await w1.send(report=sync_pb2.Report(calls_in_flight=number))
        assert sorted(asked) == ["s0", "s1", "s2"]
        await w1.serve("type")
        await w1.apply_until("desk")
        async with asyncio.timeout(BOUND):
            placed = await asyncio.gather(*waiting)
    assert {placement.worker.id for placement in placed} == {"w1"}
    assert sorted(asked) == ["s0", "s0", "s1", "s1", "s2", "s2"]


async def test_a_waiting_request_keeps_only_known_worker_ids(running: Running) -> None:
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


async def test_a_lease_is_placed_on_the_worker_in_its_callers_process(running: Running) -> None:
    async with worker(running.address) as w1:
        await serve_desk(running, w1)  # before the other one joins, which would probe a server
        async with worker(running.address, "w2") as w2:
            await w2.apply_until("desk", "time")
            placed = {}
            for session, prefers in (("a", "w2"), ("b", "w2"), ("c", "w1"), ("d", "nobody")):
                request = leases_pb2.PlaceRequest(
                    session=session, server_id="desk", prefers=prefers
                )
                answer = await running.placement.Place(request, timeout=BOUND)
                placed[session] = answer.worker.id
            assert placed == {"a": "w2", "b": "w2", "c": "w1", "d": "w1"}


async def test_unused_placements_of_one_tenant_do_not_block_another(running: Running) -> None:
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


async def test_a_spare_is_preferred_for_clients_that_it_serves(running: Running) -> None:
    one, other = (McpClient("2025-11-25", {}, {"name": name}) for name in ("one", "other"))

    async def placed(session: str, client: McpClient | None) -> str:
        encoded = client.encoded if client is not None else b""
        request = leases_pb2.PlaceRequest(session=session, server_id="desk", mcp_client=encoded)
        return (await running.placement.Place(request)).worker.id

    async with worker(running.address) as w1:
        await serve_desk(running, w1)
        async with worker(running.address, "w2") as w2:
            await w2.apply_until("desk", "time")
            (good,) = [
                good
                for key, good in running.plane.state.servers.last_known_good.items()
                if key.server_id == "desk"
            ]
            spare = catalog_pb2.InstanceStatus(
                id="i",
                state="ready",
                role="spare",
                variant=catalog_pb2.VariantKey(server_id="desk"),
                launch_hash=good.launch_hash,
                serves=[Greeting.of(one).name, *("x" * 99 for _ in range(9))],
            )
            await w2.send(report=sync_pb2.Report(instances=[spare], instances_changed=True))
            await running.until(lambda state: bool(state.workers["w2"].instances.live))
            assert await placed("a", other) == "w1"
            assert await placed("b", other) == "w2", "the emptier"
            assert await placed("c", one) == "w2"
            assert await placed("d", None) == "w1"
    request = leases_pb2.PlaceRequest(session="e", server_id="desk", mcp_client=b"7")
    assert (await fault_of(running.placement.Place(request))).reason is Reason.INVALID_REQUEST


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
        await w1.send(report=sync_pb2.Report(leases_lost=["L1"]))
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


async def test_room_for_a_lease_whose_request_has_failed_is_free_before_its_time_is_over(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "RESERVATION", 3600.0)
    async with worker(running.address) as w1:
        await serve_desk(running, w1)
        await fill(running, "a", "b", "c", "d")
        patient = await waiting(running, "patient", 0)
        unused = sync_pb2.UnusedPlacement(tenant="default", session="a", server_id="desk")
        await w1.send(report=sync_pb2.Report(unused_placements=[unused]))
        async with asyncio.timeout(BOUND):
            assert (await patient).worker.id == "w1"


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


async def test_a_new_client_is_told_once_that_the_sessions_worker_is_lost(
    running: Running,
) -> None:
    async with worker(running.address) as w1:
        await serve_desk(running, w1)
        await hold(running, w1)
    with running.plane.transition() as (state, _now):
        state.placements.remove_worker("w1")
    request = leases_pb2.PlaceRequest(session="s", server_id="desk", report_end=True)
    fault = await fault_of(running.placement.Place(request, timeout=BOUND))
    assert fault.reason is Reason.LEASE_LOST
    assert "was lost with worker 'w1'" in fault.message
    recorded = running.plane.events.history.after(0)
    assert [event.message for event in recorded if event.action == "lost"][-1] in fault.message
    again = await fault_of(running.placement.Place(request, timeout=1))
    assert again.reason is not Reason.LEASE_LOST


async def test_another_client_is_told_that_a_lease_may_have_been_lost_unreported(
    running: Running,
) -> None:
    async with worker(running.address) as w1, AsyncExitStack() as stack:
        await serve_desk(running, w1)
        w2 = await stack.enter_async_context(worker(running.address, "w2"))
        await w2.apply_until("desk", "time")
        for session in ("s", "t"):
            first = first_call(session=session, acquirer="one", prefers="w1")
            assert (await running.placement.Place(first)).worker.id == "w1"
        await w1.close()
        await running.until(lambda state: not state.workers["w1"].connected)
        soon = await fault_of(running.placement.Place(first_call(acquirer="two")))
        assert soon.reason is Reason.SYNCING, "it may come back"
        unreached = first_call(acquirer="two", exclude_workers=["w1"])
        for _ in range(2):  # its answer may have been lost, as it does not name the end
            fault = await fault_of(running.placement.Place(unreached))
            assert fault.reason is Reason.LEASE_LOST
            assert "was lost just after calls of the session had been sent" in fault.message
        unreached.known_ends.append(fault.metadata["lease"])
        assert (await running.placement.Place(unreached)).worker.id == "w2"
        own = first_call(session="t", acquirer="one", exclude_workers=["w1"])
        assert (await running.placement.Place(own)).worker.id == "w2", "it knows what it got"


STARTED = leases_pb2.Lease(
    id="L1", server_id="desk", tenant="default", session="s", instance_id="run-1:1"
)


async def use(running: Running, fake: FakeWorker) -> None:
    """Let a worker report a lease whose instance has started."""
    await fake.send(report=sync_pb2.Report(leases_gained=[STARTED]))
    await running.until(lambda state: "L1" in state.placements.leases)


async def lose_worker_in_use(running: Running) -> None:
    """Let the only worker, which has a session's lease, count as lost."""
    async with worker(running.address) as w1:
        await serve_desk(running, w1)
        await use(running, w1)
    await running.until(lambda state: not state.workers["w1"].connected)
    with running.plane.transition() as (state, now):
        state.roster.forget_lost_workers(Moment(now.mono + 11, now.unix + 11))


def first_call(**more: object) -> leases_pb2.PlaceRequest:
    """Return what a caller asks that knows of no lease of the session."""
    asked: dict[str, Any] = {"session": "s", "server_id": "desk", "report_end": True, **more}
    return leases_pb2.PlaceRequest(**asked)


async def test_a_session_is_not_placed_beside_a_lease_whose_worker_one_caller_does_not_reach(
    running: Running,
) -> None:
    async with worker(running.address) as w1:
        await serve_desk(running, w1)
        async with worker(running.address, "w2") as w2:
            await w2.apply_until("desk", "time")
            await use(running, w1)
            acquiring = leases_pb2.PlaceRequest(session="s", server_id="desk")
            acquiring.exclude_workers.append("w1")
            for request in (first_call(exclude_workers=["w1"]), acquiring):
                placed = await running.placement.Place(request)
                assert (placed.worker.id, placed.lease_id) == ("w1", "L1")


async def test_a_lease_that_has_not_started_binds_no_caller(running: Running) -> None:
    async with worker(running.address) as w1:
        await serve_desk(running, w1)
        async with worker(running.address, "w2") as w2:
            await w2.apply_until("desk", "time")
            await hold(running, w1)
            placed = await running.placement.Place(first_call(exclude_workers=["w1"]))
            assert placed.worker.id == "w2"


async def test_a_session_is_told_once_of_a_lease_that_neither_its_caller_nor_the_plane_reaches(
    running: Running,
) -> None:
    async with worker(running.address) as w1, AsyncExitStack() as stack:
        await serve_desk(running, w1)
        w2 = await stack.enter_async_context(worker(running.address, "w2"))
        await w2.apply_until("desk", "time")
        await use(running, w1)
        await w1.close()
        await running.until(lambda state: not state.workers["w1"].connected)
        unreached = first_call(exclude_workers=["w1"])
        fault = await fault_of(running.placement.Place(unreached))
        assert (fault.reason, fault.metadata["lease"]) == (Reason.LEASE_LOST, "L1")
        placed = await running.placement.Place(unreached)
        assert (placed.worker.id, placed.known_end) == ("w2", "L1")
        async with worker(running.address, leases=[STARTED]) as back:
            assert (await back.receive("revoke")).revoke.lease_id == "L1"


async def test_whoever_acquires_gives_up_a_lease_that_neither_it_nor_the_plane_reaches(
    running: Running,
) -> None:
    async with worker(running.address) as w1, AsyncExitStack() as stack:
        await serve_desk(running, w1)
        w2 = await stack.enter_async_context(worker(running.address, "w2"))
        await w2.apply_until("desk", "time")
        await use(running, w1)
        await w1.close()
        await running.until(lambda state: not state.workers["w1"].connected)
        request = leases_pb2.PlaceRequest(session="s", server_id="desk", exclude_workers=["w1"])
        placed = await running.placement.Place(request)
        assert (placed.worker.id, placed.known_end) == ("w2", "L1")  # told by the acquisition
        async with worker(running.address, leases=[STARTED]) as back:
            assert (await back.receive("revoke")).revoke.lease_id == "L1"


async def test_a_caller_is_not_told_the_end_of_a_lease_that_it_knows(running: Running) -> None:
    async with worker(running.address) as w1, AsyncExitStack() as stack:
        await serve_desk(running, w1)
        w2 = await stack.enter_async_context(worker(running.address, "w2"))
        await w2.apply_until("desk", "time")
        await use(running, w1)
        await w1.close()
        await running.until(lambda state: not state.workers["w1"].connected)
        placed = await running.placement.Place(
            first_call(exclude_workers=["w1"], known_ends=["L1"])
        )
        assert (placed.worker.id, placed.known_end) == ("w2", "L1")
        fault = await fault_of(running.placement.Place(first_call(known_ends=["L1"] * 9)))
        assert fault.reason is Reason.INVALID_REQUEST


async def test_a_session_is_told_once_of_a_lease_on_a_worker_that_shuts_down(
    running: Running,
) -> None:
    async with worker(running.address) as w1:
        await serve_desk(running, w1)
        async with worker(running.address, "w2") as w2:
            await w2.apply_until("desk", "time")
            await use(running, w1)
            await w1.send(report=sync_pb2.Report(draining=True))
            await running.until(lambda state: state.workers["w1"].draining)
            fault = await fault_of(running.placement.Place(first_call()))
            assert (fault.reason, fault.metadata["lease"]) == (Reason.LEASE_REVOKED, "L1")
            assert (await running.placement.Place(first_call())).worker.id == "w2"


async def test_whoever_acquires_a_lease_does_not_wait_for_the_worker_of_a_lost_one(
    running: Running,
) -> None:
    await lose_worker_in_use(running)
    acquiring = leases_pb2.PlaceRequest(session="other", server_id="desk")
    unrelated = await fault_of(running.placement.Place(acquiring))
    acquiring.session = "s"
    assert (await fault_of(running.placement.Place(acquiring))).reason is unrelated.reason


async def test_a_control_plane_that_was_cut_off_waits_for_the_sessions_worker(
    running: Running,
) -> None:
    await lose_worker_in_use(running)
    fault = await fault_of(running.placement.Place(first_call()))
    assert fault.reason is Reason.SYNCING
    async with worker(running.address, leases=[STARTED]):
        placed = await running.placement.Place(first_call())
        assert (placed.worker.id, placed.lease_id) == ("w1", "L1")


async def test_ended_sessions_are_shared_within_a_tenant_and_bounded(running: Running) -> None:
    share = running.placement.ShareSessionEnds
    first = await share(leases_pb2.ShareSessionEndsRequest(tenant="acme", ended=["a", "b"]))
    asked = leases_pb2.ShareSessionEndsRequest(tenant="acme", asked=["a", "c"])
    answer = await share(asked)
    assert (list(answer.ended), answer.run) == (["a"], first.run)
    asked.tenant = "beta"
    assert not (await share(asked)).ended
    for bad in (["x"] * 1_001, ["x" * 257], ["\x00"]):
        fault = await fault_of(share(leases_pb2.ShareSessionEndsRequest(ended=bad)))
        assert fault.reason is Reason.INVALID_REQUEST


async def test_a_request_hears_of_the_end_of_a_session_of_its_tenant(running: Running) -> None:
    share = running.placement.ShareSessionEnds
    hearing = leases_pb2.ShareSessionEndsRequest(tenant="acme", wait=duration(BOUND))
    now = await share(hearing)
    assert not now.ended
    hearing.run, hearing.known = now.run, now.last
    waiting = asyncio.ensure_future(share(hearing))
    await share(leases_pb2.ShareSessionEndsRequest(tenant="beta", ended=["b"]))
    told = await share(leases_pb2.ShareSessionEndsRequest(tenant="acme", ended=["a"]))
    answer = await waiting
    assert (list(answer.ended), answer.last) == (["a"], told.last)
    assert list((await share(hearing)).ended) == ["a"], "also one that came too late to wait"
    hearing.run = "another run"
    assert not (await share(hearing)).ended


async def test_the_waits_of_a_connection_for_ends_of_sessions_are_bounded(running: Running) -> None:
    share = running.placement.ShareSessionEnds
    hearing = leases_pb2.ShareSessionEndsRequest(tenant="acme", wait=duration(BOUND))
    now = await share(hearing)
    hearing.run, hearing.known = now.run, now.last
    waits = [asyncio.ensure_future(share(hearing)) for _ in range(bounds.MAX_WATCHERS + 1)]
    async with asyncio.timeout(BOUND):
        [refused], waiting = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        assert (await fault_of(refused)).reason is Reason.OVERLOADED
        await share(leases_pb2.ShareSessionEndsRequest(tenant="acme", ended=["a"]))
        assert {tuple((await wait).ended) for wait in waiting} == {("a",)}
