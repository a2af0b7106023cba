"""The release of leases that were acquired by abandoned calls."""

from __future__ import annotations

import asyncio

import pytest
from tests.calls import ReceivedCall
from tests.sdk.fakes import (
    BOUND,
    FakeControlPlane,
    FakeWorker,
    echo,
    never,
    text_result,
    until,
)

from leaseway.sdk import AsyncClient, AsyncSession, DeadlineExceeded
from leaseway.wire.bounds import LEASE_IDLE
from leaseway.wire.errors import Fault, Reason


async def abandon_call(session: AsyncSession | AsyncClient, worker: FakeWorker) -> None:
    """Cancel a first call that its worker has started."""
    worker.answer = never
    before = len(worker.calls)
    call = asyncio.create_task(session.call_tool("desk_open"))
    await until(lambda: len(worker.calls) > before and worker.leases)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    worker.answer = echo


async def test_the_lease_of_a_cancelled_call_is_released_when_the_session_closes(
    client: AsyncClient, worker: FakeWorker
) -> None:
    async with client.session("dialog") as session:
        await abandon_call(session, worker)
        lease = next(iter(worker.leases))
    assert worker.released == [lease]


async def test_the_lease_of_a_cancelled_call_is_released_by_release(
    client: AsyncClient, worker: FakeWorker
) -> None:
    session = client.session("dialog")
    await abandon_call(session, worker)
    lease = next(iter(worker.leases))
    assert await session.release("desk")
    assert worker.released == [lease]
    assert not await session.release("desk")


async def test_release_does_not_wait_for_the_worker_of_an_abandoned_call(
    client: AsyncClient,
    plane: FakeControlPlane,
    worker: FakeWorker,
    second: FakeWorker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answered = asyncio.Event()

    async def hang(*_: object) -> bool:
        return not await answered.wait()

    session = client.session("dialog")
    await abandon_call(session, worker)
    plane.workers = [second]
    await worker.stop()
    lease = await session.acquire("desk")
    monkeypatch.setattr(client._runtime().leases._releases, "leave_unknown", hang)
    release = asyncio.create_task(session.release("desk"))
    await until(lambda: second.released == [lease.id])
    answered.set()
    assert await release


async def test_the_lease_of_a_timed_out_call_is_released_when_the_client_closes(
    plane: FakeControlPlane, worker: FakeWorker
) -> None:
    worker.answer = never
    async with AsyncClient(plane.address) as client:
        while not worker.leases:  # on a busy machine the time may pass before there is one
            with pytest.raises(DeadlineExceeded):
                await client.call_tool("desk_open", timeout=2.0)
        leases = list(worker.leases)
    assert worker.released == leases


async def test_the_lease_of_a_call_that_timed_out_at_the_worker_is_released(
    client: AsyncClient, worker: FakeWorker
) -> None:
    def late(worker: FakeWorker, call: ReceivedCall, arguments: bytes) -> bytes:
        raise Fault(Reason.DEADLINE_EXCEEDED, "The server took too long to start.")

    worker.answer = late
    async with client.session("dialog") as session:
        with pytest.raises(DeadlineExceeded):
            await session.call_tool("desk_open")
        lease = next(iter(worker.leases))
    assert worker.released == [lease]


async def test_the_lease_of_a_call_in_flight_is_released_when_the_client_closes(
    plane: FakeControlPlane, worker: FakeWorker
) -> None:
    worker.answer = never
    async with AsyncClient(plane.address) as client:
        call = asyncio.create_task(client.call_tool("desk_open"))
        await until(lambda: worker.leases)
        lease = next(iter(worker.leases))
    await asyncio.gather(call, return_exceptions=True)
    assert worker.released == [lease]


async def test_a_later_call_owns_the_lease_of_an_abandoned_call(
    client: AsyncClient, worker: FakeWorker
) -> None:
    async with client.session("dialog") as session:
        await abandon_call(session, worker)
        assert (await session.call_tool("desk_open")).new_lease is None
        (lease,) = session.leases()
    assert worker.released == [lease.id]


async def test_a_lease_that_another_call_joined_is_released_after_the_first_was_cancelled(
    client: AsyncClient, worker: FakeWorker
) -> None:
    async def slow(worker: FakeWorker, call: ReceivedCall, arguments: bytes) -> bytes:
        if b"quick" not in arguments:
            await asyncio.Event().wait()
        return text_result("done")

    worker.answer = slow
    async with client.session("dialog") as session:
        maker = asyncio.create_task(session.call_tool("desk_open"))
        await until(lambda: worker.leases)
        assert (await session.call_tool("desk_open", {"quick": 1})).new_lease is None
        maker.cancel()
        await asyncio.wait([maker])
        lease = next(iter(worker.leases))
    assert worker.released == [lease]


async def test_another_clients_lease_is_not_released_after_an_abandoned_call(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker
) -> None:
    async with AsyncClient(plane.address) as other:
        await other.session("dialog").acquire("desk")
        async with client.session("dialog") as session:
            await abandon_call(session, worker)
        async with client.session("dialog") as session:
            await abandon_call(session, worker)
            await session.call_tool("desk_open")
        assert worker.released == []


@pytest.mark.parametrize("acquirer_cancels", [True, False])
async def test_of_two_clients_only_the_acquirer_releases_the_lease(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker, acquirer_cancels: bool
) -> None:
    worker.answer = never
    plane.hold_place = asyncio.Event()
    async with AsyncClient(plane.address) as other:
        calls = {
            caller: asyncio.create_task(caller.session("dialog").call_tool("desk_open"))
            for caller in (client, other)
        }
        await until(lambda: len(plane.places) == 2)
        plane.hold_place.set()  # both calls are placed before a lease exists
        await until(lambda: len(worker.calls) == 2 and worker.leases)
        (lease,) = worker.leases.values()
        (giver,) = (
            each_call
            for each_call in calls
            if (each_call._runtime().own_session == lease.acquirer) is acquirer_cancels
        )
        async with giver.session("dialog"):
            calls[giver].cancel()
            await asyncio.wait([calls[giver]])
        assert worker.released == ([lease.id] if acquirer_cancels else [])
        for call in calls.values():
            call.cancel()
        await asyncio.wait(calls.values())
        await client.close()
    if not acquirer_cancels:
        assert worker.left == [(lease.id, LEASE_IDLE)]


async def test_closing_a_session_waits_a_limited_time_for_a_stopped_worker(
    client: AsyncClient, worker: FakeWorker, caplog: pytest.LogCaptureFixture
) -> None:
    async with asyncio.timeout(BOUND):
        async with client.session("dialog") as session:
            await abandon_call(session, worker)
            await worker.stop()
    assert "could not be released" in caplog.text
