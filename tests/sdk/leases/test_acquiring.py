"""The acquisition of leases: placement, time to live, missing capacity."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from tests.ports import free_port
from tests.sdk.fakes import BOUND, FakeControlPlane, FakeWorker, until

from leaseway.sdk import (
    AsyncClient,
    Capacity,
    InvalidRequest,
    Lease,
    NotLeasable,
    Overloaded,
)
from leaseway.sdk.relay import RelayClient
from leaseway.wire.bounds import LEASE_IDLE
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.timing.durations import seconds


async def test_an_acquired_lease_describes_itself(client: AsyncClient, worker: FakeWorker) -> None:
    before = datetime.now(UTC)
    lease = await client.session("dialog").acquire("desk", ttl=90, wait=5)
    assert (lease.server_id, lease.session, lease.worker) == ("desk", "dialog", "w1")
    assert lease.ttl == 90
    assert lease.reminder == "Release desk when you are done."
    assert before + timedelta(seconds=89) < lease.expires_at <= datetime.now(UTC) + timedelta(90)
    assert lease.expires_at.tzinfo is not None
    request = worker.acquires[0]
    assert request.ttl.seconds == 90


async def test_acquiring_again_renews_the_lease_at_its_worker(
    client: AsyncClient, plane: FakeControlPlane
) -> None:
    session = client.session("dialog")
    first = await session.acquire("desk")
    second = await session.acquire("desk", ttl=10)
    assert first == second
    assert (second.ttl, first.ttl) == (10, 10)
    assert len(plane.places) == 1


async def test_acquisitions_of_one_key_share_a_request(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker
) -> None:
    session = client.session("dialog")
    leases = await asyncio.gather(*(session.acquire("desk") for _ in range(20)))
    assert (len(set(leases)), len(plane.places), len(worker.acquires)) == (1, 1, 1)


async def test_an_acquisition_with_another_time_to_live_follows_the_one_in_flight(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker
) -> None:
    session = client.session("dialog")
    leases = await asyncio.gather(session.acquire("desk"), session.acquire("desk", ttl=10))
    assert [request.ttl.seconds for request in worker.acquires] == [60, 10]
    assert (len(set(leases)), len(plane.places), leases[0].ttl) == (1, 1, 10)


@pytest.mark.parametrize("given_up", [0, 1])
async def test_a_cancelled_acquisition_does_not_cancel_another(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker, given_up: int
) -> None:
    session = client.session("dialog")
    hold = plane.hold_place = asyncio.Event()
    tasks = [asyncio.create_task(session.acquire("desk")) for _ in range(2)]
    await until(lambda: plane.places)
    tasks[given_up].cancel()
    await asyncio.wait([tasks[given_up]])
    hold.set()
    assert (await tasks[1 - given_up]).worker == "w1"
    assert len(plane.places) == 1


async def first_lease(client: AsyncClient, by: str) -> Lease:
    """Return a lease that is acquired explicitly, or by a first call."""
    session = client.session("dialog")
    if by == "acquire":
        return await session.acquire("desk")
    lease = (await session.call_tool("desk_open")).new_lease
    assert lease is not None
    return lease


@pytest.mark.parametrize("by", ["acquire", "call"])
@pytest.mark.parametrize("reason", [Reason.CAPACITY, Reason.DRAINING, Reason.NOT_APPLIED])
async def test_a_rejected_lease_is_placed_again(
    client: AsyncClient,
    plane: FakeControlPlane,
    worker: FakeWorker,
    second: FakeWorker,
    reason: Reason,
    by: str,
) -> None:
    plane.workers = [worker, second]
    worker.acquire_faults, worker.faults = [Fault(reason, "Not here.")], [Fault(reason, "No.")]
    assert (await first_lease(client, by)).worker == "w2"
    assert [list(place.exclude_workers) for place in plane.places] == [[], ["w1"]]


async def test_a_placement_prefers_the_worker_of_this_process(
    plane: FakeControlPlane, worker: FakeWorker
) -> None:
    class Local:
        """A worker that no call reaches."""

        id = "w9"
        incarnation = "run"
        address = "127.0.0.1:1"

        def admits(self, authorization: str | None) -> bool:
            return True

        async def carry(self, *_: object) -> None:
            raise AssertionError

    local = Local()
    async with RelayClient(
        plane.address, agent="front", tenant="default", key=None, local=local
    ) as within:
        await within.session("dialog").acquire("desk")
    async with AsyncClient(plane.address) as elsewhere:
        await elsewhere.session("dialog").acquire("desk")
    assert [place.prefers for place in plane.places] == ["w9", ""]


async def test_leases_of_the_worker_of_this_process_are_requested_where_it_listens(
    plane: FakeControlPlane, worker: FakeWorker
) -> None:
    class Local:
        """A worker whose advertised address does not lead to it from here."""

        id = worker.ref.id
        incarnation = worker.ref.incarnation
        address = worker.ref.address

        def admits(self, authorization: str | None) -> bool:
            return True

        async def carry(self, *_: object) -> None:
            await asyncio.Event().wait()

    local = Local()
    worker.ref.address = f"127.0.0.1:{free_port()}"
    async with RelayClient(
        plane.address, agent="front", tenant="default", key=None, local=local
    ) as within:
        assert (await within.session("dialog").acquire("desk")).worker == "w1"


async def test_a_lease_is_requested_again_from_a_worker_whose_connection_broke(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker, second: FakeWorker
) -> None:
    plane.workers = [worker, second]
    worker.cut_acquires = 2
    lease = await client.session("dialog").acquire("desk")
    assert lease.worker == "w1"
    assert (len(worker.leases), len(worker.acquires), second.leases) == (1, 3, {})
    assert len(plane.places) == 1
    await client.close()
    assert worker.left == [(lease.id, LEASE_IDLE)]


async def test_a_worker_whose_connection_keeps_breaking_is_avoided_and_its_lease_released(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker, second: FakeWorker
) -> None:
    plane.workers = [worker, second]
    worker.cut_acquires = 100
    lease = await client.session("dialog").acquire("desk")
    assert lease.worker == "w2"
    await client.close()
    assert len(worker.released) == 1
    assert second.left == [(lease.id, LEASE_IDLE)]


@pytest.mark.parametrize("by", ["acquire", "call"])
@pytest.mark.parametrize("reason", [Reason.OVERLOADED, Reason.NOT_APPLIED])
async def test_a_slow_worker_is_tried_again_if_no_other_has_capacity(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker, reason: Reason, by: str
) -> None:
    fault = Fault(reason, "Not now.")
    worker.acquire_faults = [fault] * 2
    worker.faults = [fault] * 2
    assert (await first_lease(client, by)).worker == "w1"
    excluded = [list(place.exclude_workers) for place in plane.places]
    assert excluded == [[], ["w1"], [], ["w1"], []]


@pytest.mark.parametrize("by", ["acquire", "call"])
async def test_an_overloaded_worker_is_reported_and_not_missing_capacity(
    client: AsyncClient, worker: FakeWorker, by: str
) -> None:
    fault = Fault(Reason.OVERLOADED, "Too much to do.")
    worker.acquire_faults = [fault] * 50
    worker.faults = [fault] * 50
    with pytest.raises(Overloaded, match="Too much to do") as caught:
        await first_lease(client, by)
    assert caught.value.started == "no"
    assert len(worker.calls) < 5


async def test_without_capacity_acquire_fails_at_once(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker
) -> None:
    worker.acquire_faults = [Fault(Reason.CAPACITY, "Full.", retry_delay=3.0)]
    with pytest.raises(Capacity) as caught:
        await client.session("dialog").acquire("desk")
    assert caught.value.retry_after is not None
    assert len(worker.acquires) == 1


async def test_acquire_waits_for_capacity_at_the_control_plane(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker
) -> None:
    lease = await client.session("dialog").acquire("desk", wait=BOUND)
    assert lease.worker == "w1"
    waits = [seconds(request.wait) for request in plane.places]
    assert waits == [pytest.approx(BOUND, abs=BOUND / 2)]
    assert len(worker.acquires) == 1


async def test_acquire_continues_to_wait_while_workers_reject_placements(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker, second: FakeWorker
) -> None:
    plane.workers.append(second)
    full = Fault(Reason.CAPACITY, "Full.", retry_delay=3.0)
    worker.acquire_faults, second.acquire_faults = [full] * 8, [full]
    lease = await client.session("dialog").acquire("desk", wait=BOUND)
    assert lease.worker == "w1"
    excluded = [sorted(request.exclude_workers) for request in plane.places]
    assert excluded == [[], ["w1"], *([["w1", "w2"]] * 8)]
    assert all(request.HasField("wait") for request in plane.places)


async def test_acquire_fails_if_no_capacity_became_free(
    client: AsyncClient, plane: FakeControlPlane
) -> None:
    plane.place_faults = [Fault(Reason.CAPACITY, "Full.", retry_delay=0.01)]
    with pytest.raises(Capacity):
        await client.session("dialog").acquire("desk", wait=BOUND)
    assert len(plane.places) == 1


async def test_a_settling_control_plane_is_waited_for(
    client: AsyncClient, plane: FakeControlPlane
) -> None:
    plane.place_faults = [Fault(Reason.SYNCING, "Settling.", retry_delay=0.001)] * 6
    assert (await client.session("dialog").call_tool("desk_open")).new_lease is not None


async def test_a_shared_server_cannot_be_leased(client: AsyncClient, worker: FakeWorker) -> None:
    worker.acquire_faults = [Fault(Reason.NOT_LEASABLE, "Server 'time' is shared.")]
    with pytest.raises(NotLeasable):
        await client.session("dialog").acquire("time")


@pytest.mark.parametrize("ttl", [0.5, 86_401, -1])
async def test_a_time_to_live_has_bounds(client: AsyncClient, ttl: float) -> None:
    with pytest.raises(InvalidRequest, match="ttl="):
        await client.session("dialog").acquire("desk", ttl=ttl)


@pytest.mark.parametrize("ttl", [1, 86_400])
async def test_the_bounds_of_a_time_to_live_are_within(client: AsyncClient, ttl: float) -> None:
    assert (await client.session("dialog").acquire("desk", ttl=ttl)).ttl == ttl


@pytest.mark.parametrize("key", ["", "x" * 257])
async def test_a_session_key_has_bounds(client: AsyncClient, key: str) -> None:
    with pytest.raises(InvalidRequest):
        client.session(key)


async def test_a_negative_wait_is_rejected(client: AsyncClient, plane: FakeControlPlane) -> None:
    with pytest.raises(InvalidRequest, match=r"wait=.*0 s or more"):
        await client.session("dialog").acquire("desk", wait=-5)
    assert not plane.places


@pytest.mark.parametrize("parameter", ["ttl", "wait"])
async def test_nan_is_rejected_as_a_time(
    client: AsyncClient, plane: FakeControlPlane, parameter: str
) -> None:
    with pytest.raises(ValueError, match=f"{parameter} is a number of seconds, not NaN"):
        await client.session("dialog").acquire("desk", **{parameter: float("nan")})
    assert not plane.places
