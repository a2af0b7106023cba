"""`mcp_release` and the leases of a client's own session."""

from __future__ import annotations

import asyncio

import pytest
from tests.sdk.fakes import FakeControlPlane, FakeWorker, in_thread, never, until

from leaseway.sdk import AsyncClient, Client, LeaseReleased, LeaseRevoked, WorkerLost
from leaseway.wire.errors import Fault, Reason

DESK = {"serverId": "desk"}


@pytest.fixture(autouse=True)
def _admin(plane: FakeControlPlane) -> None:
    plane.add("mcp_admin", "mcp_release", idempotent=True)
    tool = plane.tools["mcp_admin_mcp_release"]
    plane.tools["mcp_release"] = tool


async def test_a_release_goes_to_the_holder_and_the_next_call_acquires(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker, second: FakeWorker
) -> None:
    session = client.session("job")
    first = await session.call_tool("desk_open")
    plane.workers.insert(0, second)
    result = await session.call_tool("mcp_release", DESK)
    assert (result.text, result.is_error, result.new_lease) == ("Released desk.", False, None)
    assert first.new_lease is not None
    assert worker.released == [first.new_lease.id]
    assert worker.calls[-1].lease_id == first.new_lease.id
    assert worker.calls[-1].session == "job"
    assert plane.finds == []
    assert session.leases() == []
    again = await session.call_tool("desk_open")
    assert again.new_lease is not None
    assert again.new_lease != first.new_lease


async def test_the_qualified_name_releases_too(client: AsyncClient, worker: FakeWorker) -> None:
    session = client.session("job")
    await session.acquire("desk")
    await session.call_tool("mcp_admin:mcp_release", DESK)
    assert len(worker.released) == 1
    assert session.leases() == []


async def test_a_lease_of_another_client_is_found_at_the_control_plane(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker, second: FakeWorker
) -> None:
    await client.list_tools()
    async with AsyncClient(plane.address) as other:
        theirs = other.session("job")
        await theirs.acquire("desk")
        plane.workers.insert(0, second)
        result = await client.session("job").call_tool("mcp_release", DESK)
        assert result.text == "Released desk."
        assert len(plane.finds) == 1
        assert (
            worker.calls[-1].lease_id == ""
        )  # the lease that the session holds when the call runs
        with pytest.raises(LeaseReleased):
            await theirs.call_tool("desk_open")
        with pytest.raises(LeaseReleased):
            await theirs.call_tool("desk_open")


async def test_without_a_control_plane_any_worker_handles_a_release(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker
) -> None:
    session = client.session("job")
    assert (await session.call_tool("mcp_release", DESK)).is_error
    await plane.stop()
    result = await session.call_tool("mcp_release", DESK)
    assert (result.text, result.is_error) == ("No lease of desk.", True)
    assert worker.calls[-1].lease_id == ""


async def test_releasing_a_lost_lease_allows_a_new_one(
    client: AsyncClient, worker: FakeWorker
) -> None:
    session = client.session("job")
    lease = await session.acquire("desk")
    del worker.leases[lease.id]
    worker.lease_faults[lease.id] = Fault(Reason.LEASE_REVOKED, "It was revoked.")
    for _ in range(2):
        with pytest.raises(LeaseRevoked):
            await session.call_tool("desk_open")
    assert (await session.call_tool("mcp_release", DESK)).is_error
    assert (await session.call_tool("desk_open")).new_lease is not None


async def test_a_newer_lease_survives_the_release_of_an_older_one(
    client: AsyncClient, worker: FakeWorker
) -> None:
    session = client.session("job")
    lease = await session.acquire("desk")
    hold = asyncio.Event()
    release = worker.release_by_tool

    def late(call: object, arguments: bytes) -> object:
        async def answer() -> bytes:
            payload = release(call, arguments)  # type: ignore[arg-type]
            await hold.wait()
            return payload

        return answer()

    worker.release_by_tool = late  # type: ignore[method-assign,assignment]
    releasing = asyncio.create_task(session.call_tool("mcp_release", DESK))
    await until(lambda: worker.released)
    await session.release("desk")
    newer = await session.acquire("desk")
    assert newer.id != lease.id
    hold.set()
    await releasing
    assert session.leases() == [newer]


async def test_a_release_on_a_stopped_worker_fails_and_allows_a_new_lease(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker, second: FakeWorker
) -> None:
    session = client.session("job")
    await session.acquire("desk")
    await session.call_tool("desk_open")
    await worker.stop()
    with pytest.raises(WorkerLost):
        await session.call_tool("mcp_release", DESK, timeout=30)
    plane.workers = [second]
    plane.move()
    assert (await session.call_tool("desk_open")).new_lease is not None


async def test_the_worker_rejects_a_release_without_a_server(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker
) -> None:
    refusal = Fault(Reason.INVALID_ARGUMENTS, "It needs a serverId.")
    for arguments in (None, {}, {"serverId": 7}, {"serverId": ""}, {"serverId": "x" * 65}):
        worker.faults = [refusal]
        with pytest.raises(Exception, match="It needs a serverId"):
            await client.call_tool("mcp_release", arguments)
    assert plane.finds == []


async def test_outside_a_session_the_clients_own_lease_is_released(
    client: AsyncClient, worker: FakeWorker
) -> None:
    first = await client.call_tool("desk_open")
    assert (await client.call_tool("mcp_release", DESK)).text == "Released desk."
    again = await client.call_tool("desk_open")
    assert None not in (first.new_lease, again.new_lease)
    assert again.new_lease != first.new_lease


async def test_the_synchronous_client_releases_too(
    plane: FakeControlPlane, worker: FakeWorker
) -> None:
    def work() -> None:
        with Client(plane.address) as client:
            client.call_tool("desk_open")
            assert client.call_tool("mcp_release", DESK).text == "Released desk."
            lease = client.acquire("desk")
            assert client.release(lease) is True
            assert len(worker.released) == 2
            with client.session("job") as session:
                session.call_tool("desk_open")
            with pytest.raises(RuntimeError, match="is closed"):
                session.call_tool("desk_open")
            assert client.session("job").call_tool("desk_open").new_lease is not None

    await in_thread(work)


async def test_a_loss_in_the_clients_own_session_fails_one_call(
    client: AsyncClient, worker: FakeWorker
) -> None:
    first = await client.call_tool("desk_open")
    assert first.new_lease is not None
    del worker.leases[first.new_lease.id]
    worker.lease_faults[first.new_lease.id] = Fault(Reason.LEASE_REVOKED, "It was revoked.")
    with pytest.raises(LeaseRevoked):
        await client.call_tool("desk_open")
    assert (await client.call_tool("desk_open")).new_lease is not None


async def test_the_clients_own_lease_is_acquired_and_released_by_name(
    client: AsyncClient, worker: FakeWorker
) -> None:
    lease = await client.acquire("desk", ttl=30)
    assert lease.ttl == 30
    assert (await client.call_tool("desk_open")).new_lease is None
    assert await client.release("desk") is True
    assert await client.release("desk") is False
    assert worker.released == [lease.id]


async def test_a_closed_session_raises_an_error(client: AsyncClient, worker: FakeWorker) -> None:
    async with client.session("job") as session:
        await session.call_tool("desk_open")
    for use in (
        session.call_tool("desk_open"),
        session.acquire("desk"),
        session.call_tool("time_now"),
        session.release("desk"),
    ):
        with pytest.raises(RuntimeError, match="Session 'job' is closed"):
            await use
    with pytest.raises(RuntimeError, match="is closed"):
        session.stream_tool("time_now")
    assert worker.leases == {}
    async with client.session("job") as session:
        assert (await session.call_tool("desk_open")).new_lease is not None
    async with session:
        assert (await session.call_tool("desk_open")).new_lease is not None


async def test_a_cancelled_release_changes_nothing_here(
    client: AsyncClient, worker: FakeWorker
) -> None:
    session = client.session("job")
    lease = await session.acquire("desk")
    worker.release_by_tool = lambda call, arguments: never(worker, call, arguments)  # type: ignore
    releasing = asyncio.create_task(session.call_tool("mcp_release", DESK))
    await until(lambda: worker.calls)
    releasing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await releasing
    assert session.leases() == [lease]


async def test_operators_revoke_leases_and_drain_workers(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker
) -> None:
    session = client.session("job")
    lease = await session.acquire("desk")
    assert await client.revoke_lease(lease.id, "it is stuck") is True
    assert plane.revoked[0].reason == "it is stuck"
    with pytest.raises(LeaseRevoked, match="it is stuck"):
        await session.call_tool("desk_open")
    await client.drain_worker("w1")
    assert plane.drained == ["w1"]
