"""Leases from the first call to the release, and lost leases."""

from __future__ import annotations

import asyncio

import pytest
from tests.sdk.fakes import BOUND, FakeControlPlane, FakeWorker, Gate, never, text_result, until

from leaseway.sdk import (
    AsyncClient,
    ControlPlaneUnavailable,
    LeaseExpired,
    LeaseLost,
    LeaseReleased,
    LeaseRevoked,
    LeasewayError,
)
from leaseway.sdk.leases import manager
from leaseway.sdk.leases.lease import ClientLease
from leaseway.wire.errors import Fault, Reason


async def test_the_first_call_returns_its_new_lease(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker
) -> None:
    session = client.session("dialog")
    first = await session.call_tool("desk_open")
    assert first.new_lease is not None
    assert first.new_lease.server_id == "desk"
    assert first.new_lease.session == "dialog"
    assert first.new_lease.worker == "w1"
    assert first.reminder == "Release desk when you are done."
    second = await session.call_tool("desk_open")
    assert (second.new_lease, second.reminder) == (None, None)
    assert [call.lease_id for call in worker.calls] == ["", first.new_lease.id]
    assert [call.session for call in worker.calls] == ["dialog", "dialog"]
    assert len(plane.places) == 1


async def test_first_calls_of_one_session_share_a_placement_and_a_lease(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker
) -> None:
    session = client.session("dialog")
    results = await asyncio.gather(*(session.call_tool("desk_open") for _ in range(20)))
    assert len(plane.places) == 1
    assert len(worker.leases) == 1
    assert sum(result.new_lease is not None for result in results) == 1


async def test_sessions_have_leases_of_their_own(client: AsyncClient, worker: FakeWorker) -> None:
    for key in ("a", "b"):
        await client.session(key).call_tool("desk_open")
    assert sorted(lease.session for lease in worker.leases.values()) == ["a", "b"]


async def test_a_call_outside_a_session_uses_the_clients_own(
    plane: FakeControlPlane, worker: FakeWorker
) -> None:
    async with AsyncClient(plane.address) as client, AsyncClient(plane.address) as other:
        await client.call_tool("desk_open")
        await other.call_tool("desk_open")
        names = {lease.session for lease in worker.leases.values()}
        assert len(names) == 2
        assert all(name.startswith("client-") for name in names)
    assert len(worker.released) == 2


async def test_a_call_after_acquire_uses_that_lease(
    client: AsyncClient, worker: FakeWorker
) -> None:
    session = client.session("dialog")
    lease = await session.acquire("desk")
    assert (await session.call_tool("desk_open")).new_lease is None
    assert worker.calls[0].lease_id == lease.id


@pytest.mark.parametrize("by", ["server", "lease"])
async def test_a_call_after_a_release_acquires_a_new_lease(
    client: AsyncClient, worker: FakeWorker, by: str
) -> None:
    session = client.session("dialog")
    lease = await session.acquire("desk")
    assert await session.release(lease if by == "lease" else "desk") is True
    assert worker.released == [lease.id]
    assert worker.released_for == [("", "dialog")]
    assert session.leases() == []
    assert (await session.call_tool("desk_open")).new_lease is not None


async def test_a_released_lease_is_not_brought_back_by_a_slow_first_call(
    client: AsyncClient, worker: FakeWorker
) -> None:
    session = client.session("dialog")
    gate = worker.answer = Gate(b"slow")
    slow = asyncio.create_task(session.call_tool("desk_open", {"pace": "slow"}))
    await until(lambda: worker.calls)
    await session.call_tool("desk_open", {})
    assert await session.release("desk")
    gate.open()
    await slow
    assert session.leases() == []
    assert (await session.call_tool("desk_open", {})).new_lease is not None


async def test_releasing_an_unknown_lease_returns_false(client: AsyncClient) -> None:
    assert await client.session("dialog").release("desk") is False


async def test_a_client_releases_a_lease_that_only_another_client_has_used(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker
) -> None:
    async with AsyncClient(plane.address) as other:
        lease = await other.session("dialog").acquire("desk")
        assert await client.session("dialog").release("desk") is True
        assert worker.released == [lease.id]


async def test_a_session_that_joins_a_lease_while_it_releases_it_acquires_another_one(
    client: AsyncClient, plane: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, releases = client.session("dialog"), client._runtime().leases._releases
    release = releases.release

    async def release_joined(lease: ClientLease) -> bool:
        assert (await session.acquire("desk")).id == lease.lease_id
        return await release(lease)

    monkeypatch.setattr(releases, "release", release_joined)
    async with AsyncClient(plane.address) as other:
        await other.session("dialog").acquire("desk")
        assert await session.release("desk") is True
        assert (await session.call_tool("desk_open")).new_lease is not None


async def test_a_release_fails_if_nobody_tells_what_other_clients_hold(
    client: AsyncClient, plane: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "_RELEASE_TIMEOUT", 0.2)
    await plane.stop()
    with pytest.raises(ControlPlaneUnavailable):
        await client.session("dialog").release("desk")


async def test_a_lease_of_another_client_is_joined_and_kept_alive(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker
) -> None:
    async with AsyncClient(plane.address) as other:
        lease = await other.session("dialog").acquire("desk")
        session = client.session("dialog")
        result = await session.call_tool("desk_open")
        assert result.new_lease is None
        assert session.leases() == [lease]
        await session.call_tool("desk_open")
        assert worker.calls[-1].lease_id == lease.id
        assert len(plane.places) == 2


@pytest.mark.parametrize(
    ("reason", "error"),
    [
        (Reason.LEASE_EXPIRED, LeaseExpired),
        (Reason.LEASE_REVOKED, LeaseRevoked),
        (Reason.LEASE_RELEASED, LeaseReleased),
        (Reason.LEASE_LOST, LeaseLost),
    ],
)
async def test_an_ended_lease_fails_calls_until_it_is_acquired_again(
    client: AsyncClient, worker: FakeWorker, reason: Reason, error: type[LeasewayError]
) -> None:
    session = client.session("dialog")
    lease = await session.acquire("desk")
    worker.lease_faults[lease.id] = Fault(reason, "It is over.")
    for _ in range(3):
        with pytest.raises(error) as caught:
            await session.call_tool("desk_open")
        assert getattr(caught.value, "lease_id", "") == lease.id
    assert len(worker.calls) == 1
    del worker.leases[lease.id]
    fresh = await session.acquire("desk")
    assert fresh != lease
    assert (await session.call_tool("desk_open")).text == "{}"


async def test_releasing_a_lost_lease_forgets_it(client: AsyncClient, worker: FakeWorker) -> None:
    session = client.session("dialog")
    lease = await session.acquire("desk")
    del worker.leases[lease.id]
    with pytest.raises(LeaseLost):
        await session.call_tool("desk_open")
    assert await session.release("desk") is False
    assert (await session.call_tool("desk_open")).new_lease is not None


async def test_a_lease_that_the_worker_lost_is_released_without_an_error(
    client: AsyncClient, worker: FakeWorker
) -> None:
    session = client.session("dialog")
    lease = await session.acquire("desk")
    del worker.leases[lease.id]
    assert await session.release(lease) is False


async def test_a_lost_lease_does_not_affect_other_sessions(
    client: AsyncClient, worker: FakeWorker
) -> None:
    lost = await client.session("a").acquire("desk")
    await client.session("b").acquire("desk")
    del worker.leases[lost.id]
    with pytest.raises(LeaseLost):
        await client.session("a").call_tool("desk_open")
    assert (await client.session("b").call_tool("desk_open")).text == "{}"


async def test_a_first_call_keeps_its_timeout_if_another_shares_the_placement(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker
) -> None:
    plane.hold_place = asyncio.Event()
    session = client.session("dialog")
    hasty = asyncio.create_task(session.call_tool("desk_open", timeout=1))
    await until(lambda: plane.places)
    patient = asyncio.create_task(session.call_tool("desk_open", timeout=BOUND))
    with pytest.raises(LeasewayError):
        await hasty
    await until(lambda: len(plane.places) > 1)
    plane.hold_place.set()
    assert (await patient).new_lease is not None


async def test_a_worker_that_cannot_be_reached_is_excluded(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker, second: FakeWorker
) -> None:
    plane.workers = [worker, second]
    await worker.stop()
    lease = await client.session("dialog").acquire("desk")
    assert lease.worker == "w2"


async def test_a_call_on_a_lease_is_repeated_on_that_lease_only(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker, second: FakeWorker
) -> None:
    session = client.session("dialog")
    await session.acquire("desk")
    plane.workers = [second]
    worker.faults = [Fault(Reason.OVERLOADED, "Full.", retry_delay=0.001)] * 2
    assert (await session.call_tool("desk_open")).text == "{}"
    assert len(worker.calls) == 3
    assert second.calls == []


async def test_leases_work_without_a_control_plane(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker
) -> None:
    session = client.session("dialog")
    await session.call_tool("desk_open")
    await plane.stop()
    assert (await session.call_tool("desk_open")).text == "{}"
    assert await session.release("desk") is True
    with pytest.raises(ControlPlaneUnavailable):
        await session.acquire("desk")


async def test_a_session_is_usable_after_a_cancelled_first_call(
    client: AsyncClient, worker: FakeWorker
) -> None:
    worker.answer = never
    session = client.session("dialog")
    task = asyncio.create_task(session.call_tool("desk_open"))
    await until(lambda: worker.calls)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    worker.answer = lambda *_: text_result("fine")
    assert (await session.call_tool("desk_open")).text == "fine"
    assert len(worker.leases) == 1


async def test_a_server_that_became_leased_is_called_on_a_lease(
    client: AsyncClient, worker: FakeWorker, plane: FakeControlPlane
) -> None:
    await client.call_tool("time_now")
    worker.stateful.add("time")
    plane.tools["time_now"].shared = False
    session = client.session("dialog")
    lease = (await session.call_tool("time_now")).new_lease
    assert lease is not None
    await session.call_tool("time_now")
    assert worker.calls[-1].lease_id == lease.id


async def test_a_lease_is_used_after_its_server_became_shared(
    client: AsyncClient, worker: FakeWorker, second: FakeWorker, plane: FakeControlPlane
) -> None:
    session = client.session("dialog")
    lease = await session.acquire("desk")
    plane.tools["desk_open"].shared = True
    plane.workers = [second, worker]
    for _ in range(4):  # calls of a shared tool alternate between the workers
        await session.call_tool("desk_open")
    assert [call.lease_id for call in worker.calls] == [lease.id] * 4
    worker.lease_faults[lease.id] = Fault(Reason.LEASE_REVOKED, "Its time is over.")
    for _ in range(2):
        with pytest.raises(LeaseRevoked):
            await session.call_tool("desk_open")
    await session.release("desk")
    worker.stateful = second.stateful = set()
    assert (await session.call_tool("desk_open")).new_lease is None


async def test_a_call_of_a_server_that_became_shared_needs_no_lease(
    client: AsyncClient, worker: FakeWorker, plane: FakeControlPlane
) -> None:
    await client.session("earlier").call_tool("desk_open")
    worker.stateful = set()
    plane.tools["desk_open"].shared = True
    plane.place_faults = [Fault(Reason.NOT_LEASABLE, "Server 'desk' is shared.")]
    assert (await client.session("later").call_tool("desk_open")).new_lease is None
    assert worker.calls[-1].lease_id == ""
