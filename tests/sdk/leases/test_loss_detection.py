"""The effect of a failed worker on its leases."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from tests.sdk.fakes import BOUND, FakeControlPlane, FakeWorker, never, until

from leaseway.sdk import (
    AsyncClient,
    AsyncSession,
    FateUnknown,
    LeaseLost,
    LeaseRevoked,
    ServerLost,
    ToolResult,
    WorkerLost,
)
from leaseway.sdk.transport.workers import WorkerLink, WorkerRun
from leaseway.wire.errors import Fault, Reason


def link_to(client: AsyncClient, worker: FakeWorker) -> WorkerLink:
    ref = worker.ref
    return client._runtime().pool.link(WorkerRun(ref.id, ref.incarnation, ref.address))


async def lose(client: AsyncClient, worker: FakeWorker) -> None:
    """Stop a worker, and wait until the client notices."""
    link = link_to(client, worker)
    await worker.stop()
    await until(lambda: link.idle)


async def called_again(session: AsyncSession) -> ToolResult:
    """Call until the worker is reached: gRPC lets up to 2 s pass between its tries."""
    async with asyncio.timeout(BOUND):
        while True:
            with contextlib.suppress(WorkerLost):
                return await session.call_tool("desk_open")


async def test_a_client_asks_for_the_failed_worker_alone_and_once(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker, second: FakeWorker
) -> None:
    session = client.session("dialog")
    await session.call_tool("desk_open")
    await lose(client, worker)
    plane.workers, plane.says_settled = [second], True

    def asked() -> None:
        raise AssertionError("one question is enough")

    plane.on_status = asked
    with pytest.raises(LeaseLost):
        await session.call_tool("desk_open")
    assert plane.worker_questions == [["w1"]]


async def test_a_lease_on_a_lost_worker_fails_calls_until_it_is_acquired_again(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker, second: FakeWorker
) -> None:
    session = client.session("dialog")
    await session.call_tool("desk_open")
    await lose(client, worker)
    plane.workers = [second]
    for _ in range(2):
        with pytest.raises(LeaseLost, match="'w1' is lost") as caught:
            await session.call_tool("desk_open")
        assert caught.value.started == "no"
    assert not second.calls
    lease = await session.acquire("desk")
    assert lease.worker == "w2"
    assert plane.places[-1].known_ends == [caught.value.lease_id]
    await session.call_tool("desk_open")


async def test_a_client_names_the_end_that_the_control_plane_told_it(
    client: AsyncClient, plane: FakeControlPlane
) -> None:
    told = Fault(Reason.LEASE_LOST, "Lease L9 was lost.", metadata={"lease": "L9"})
    plane.place_faults.append(told)
    session = client.session("dialog")
    with pytest.raises(LeaseLost):
        await session.call_tool("desk_open")
    await session.call_tool("desk_open")
    first, second = plane.places
    assert (list(first.known_ends), list(second.known_ends)) == ([], ["L9"])
    assert first.acquirer == second.acquirer != ""


async def test_a_lost_lease_is_released_if_its_worker_becomes_reachable(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker, second: FakeWorker
) -> None:
    """Otherwise its process would run on, and its state could return to the session."""
    lost = await client.session("dialog").acquire("desk")
    port = int(worker.ref.address.rpartition(":")[2])
    await lose(client, worker)
    plane.workers = [second]
    with pytest.raises(LeaseLost):
        await client.session("dialog").call_tool("desk_open")
    assert (await client.session("dialog").acquire("desk")).worker == "w2"
    assert plane.places[-1].lost_lease == lost.id
    await worker.start(port=port)  # the same run, which was only unreachable
    await until(lambda: worker.released == [lost.id])
    assert not second.released
    await client.session("another").acquire("desk")
    assert plane.places[-1].lost_lease == ""


async def test_all_leases_on_a_lost_worker_end_together(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker, second: FakeWorker
) -> None:
    sessions = [client.session(f"s{number}") for number in range(20)]
    await asyncio.gather(*(session.call_tool("desk_open") for session in sessions))
    await lose(client, worker)
    plane.workers = [second]
    async with asyncio.timeout(BOUND):
        ends = await asyncio.gather(
            *(session.call_tool("desk_open") for session in sessions), return_exceptions=True
        )
    assert {type(end) for end in ends} == {LeaseLost}
    assert len({end.lease_id for end in ends if isinstance(end, LeaseLost)}) == 20


async def test_a_call_in_flight_has_an_unknown_fate_and_the_next_one_a_lost_lease(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker, second: FakeWorker
) -> None:
    session = client.session("dialog")
    await session.call_tool("desk_open")
    worker.answer = never
    call = asyncio.create_task(session.call_tool("desk_open"))
    await until(lambda: len(worker.calls) == 2)
    plane.workers = [second]
    await worker.stop()
    with pytest.raises(FateUnknown):
        await call
    with pytest.raises(LeaseLost):
        await session.call_tool("desk_open")


async def test_a_new_run_of_a_worker_does_not_hold_the_leases_of_the_old_one(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker
) -> None:
    session = client.session("dialog")
    await session.call_tool("desk_open")
    await lose(client, worker)
    again = FakeWorker("w1")
    again.stateful = {"desk"}
    plane.workers = [again]
    await again.start("two")
    try:
        with pytest.raises(LeaseLost):
            await session.call_tool("desk_open")
    finally:
        await again.stop()


async def test_a_lease_is_kept_while_the_control_plane_sees_its_worker(
    client: AsyncClient, worker: FakeWorker
) -> None:
    session = client.session("dialog")
    await session.call_tool("desk_open")
    port = int(worker.ref.address.rpartition(":")[2])
    await lose(client, worker)
    with pytest.raises(WorkerLost):
        await session.call_tool("desk_open", timeout=3)
    await worker.start(port=port)
    assert (await called_again(session)).new_lease is None


async def test_without_a_control_plane_a_worker_counts_as_alive(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker
) -> None:
    session = client.session("dialog")
    await session.call_tool("desk_open")
    await plane.stop()
    await lose(client, worker)
    async with asyncio.timeout(BOUND):
        with pytest.raises(WorkerLost):
            await session.call_tool("desk_open", timeout=3)


async def test_a_lease_on_a_draining_worker_is_revoked(
    client: AsyncClient, worker: FakeWorker
) -> None:
    session = client.session("dialog")
    first = await session.call_tool("desk_open")
    assert first.new_lease is not None
    worker.go_away()
    link = link_to(client, worker)
    await until(lambda: link.draining)
    await lose(client, worker)
    with pytest.raises(LeaseRevoked, match="'w1' is shutting down") as caught:
        await session.call_tool("desk_open")
    assert caught.value.lease_id == first.new_lease.id


DIED = Fault(
    Reason.SERVER_LOST, "It died.", "yes", metadata={"exit_status": "9", "stderr": "oh no"}
)


def assert_reports_the_death(error: ServerLost) -> None:
    assert (error.started, error.exit_status, error.stderr) == ("yes", 9, "oh no")


async def test_a_call_whose_server_died_with_its_lease_reports_the_server(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker
) -> None:
    plane.tools["desk_open"].idempotent = True
    session = client.session("dialog")
    await session.call_tool("desk_open")
    worker.faults = [DIED, Fault(Reason.LEASE_LOST, "Its instance ended.")]
    with pytest.raises(ServerLost) as caught:
        await session.call_tool("desk_open")
    assert_reports_the_death(caught.value)
    with pytest.raises(LeaseLost):
        await session.call_tool("desk_open")
    assert len(worker.calls) == 3


async def test_a_call_that_cannot_be_repeated_fails_with_its_first_error(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker
) -> None:
    plane.tools["time_now"].idempotent = True
    worker.faults = [DIED, Fault(Reason.SERVER_NOT_READY, "It is down.")]
    with pytest.raises(ServerLost) as caught:
        await client.call_tool("time_now")
    assert_reports_the_death(caught.value)


async def test_a_call_is_not_repeated_if_its_lease_ended(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker
) -> None:
    plane.tools["desk_open"].idempotent = True
    session = client.session("dialog")
    lease = (await session.call_tool("desk_open")).new_lease
    assert lease is not None

    def die(worker: FakeWorker, call: object, arguments: bytes) -> bytes:
        fault = Fault(Reason.LEASE_LOST, "Its instance ended.")
        client._runtime().leases.book.end(lease.id, fault, asyncio.get_running_loop().time())
        raise DIED

    worker.answer = die
    with pytest.raises(ServerLost) as caught:
        await session.call_tool("desk_open")
    assert_reports_the_death(caught.value)
    assert len(worker.calls) == 2
