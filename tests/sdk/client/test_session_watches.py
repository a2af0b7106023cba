"""`session.watch_tools` and the like: the session's list, then one for each change of it."""

from __future__ import annotations

import asyncio
import threading

import pytest
from tests.sdk.client.watched_lists import all_of, names, next_list
from tests.sdk.fakes import BOUND, FakeControlPlane, FakeWorker, until

from leaseway.sdk import AsyncClient, AsyncSession, Client, LeaseRevoked
from leaseway.sdk.calls import own_lists
from leaseway.sdk.transport.workers import WorkerRun, worker_from_proto
from leaseway.v1 import catalog_pb2, leases_pb2
from leaseway.wire.errors import Fault, Reason

COMMON = ["desk_open", "time_now"]
OWN = ["desk_write", "time_now"]
OPENED = leases_pb2.ListLeaseToolsResponse(
    digest="1",
    tools=[catalog_pb2.Tool(name="desk_write", original_name="write", server_id="desk")],
    absent=["open"],
)
CLOSED = leases_pb2.ListLeaseToolsResponse()
GREETED = leases_pb2.ListLeaseToolsResponse(
    digest="2",
    prompts=[catalog_pb2.Prompt(name="desk_greet", original_name="greet", server_id="desk")],
    resources=[
        catalog_pb2.Resource(uri="desk://me", server_id="desk", name="me"),
        catalog_pb2.Resource(
            uri="desk://{name}", server_id="desk", name="anybody", is_template=True
        ),
    ],
)


@pytest.fixture
async def session(client: AsyncClient) -> AsyncSession:
    """Return a session that holds a lease."""
    made = client.session("one")
    await made.acquire("desk")
    return made


async def test_each_change_of_a_lease_or_of_the_registry_is_yielded(
    plane: FakeControlPlane, worker: FakeWorker, client: AsyncClient
) -> None:
    session = client.session("one")
    watch = session.watch_tools()
    assert names(await next_list(watch)) == COMMON
    worker.change_tools(OPENED)
    changed = asyncio.create_task(next_list(watch))
    await session.acquire("desk")
    assert names(await changed) == OWN
    changed = asyncio.create_task(next_list(watch))
    await until(lambda: worker.waiting_lists)
    worker.change_tools(CLOSED)
    assert names(await changed) == COMMON
    plane.add("time", "zones")
    plane.move()
    assert names(await next_list(watch)) == [*COMMON, "time_zones"]


async def test_a_change_is_yielded_that_another_list_has_shown_before(
    worker: FakeWorker, session: AsyncSession
) -> None:
    watch = session.watch_tools()
    await next_list(watch)
    worker.change_tools(OPENED)
    assert names(await session.list_tools()) == OWN
    assert names(await next_list(watch)) == OWN


async def test_a_released_lease_leaves_the_common_tools(
    worker: FakeWorker, session: AsyncSession
) -> None:
    worker.change_tools(OPENED)
    watch = session.watch_tools()
    assert names(await next_list(watch)) == OWN
    changed = asyncio.create_task(next_list(watch))
    await until(lambda: worker.waiting_lists)
    await session.release("desk")
    assert names(await changed) == COMMON


async def test_a_lost_lease_is_an_error_until_it_is_released(
    worker: FakeWorker, session: AsyncSession
) -> None:
    worker.change_tools(OPENED)
    watch = session.watch_tools()
    assert names(await next_list(watch)) == OWN
    changed = asyncio.create_task(next_list(watch))
    await until(lambda: worker.waiting_lists)
    worker.lease_faults[session.leases()[0].id] = Fault(Reason.LEASE_REVOKED, "It was revoked.")
    worker.change_tools(CLOSED)
    with pytest.raises(LeaseRevoked):
        await changed
    for ended in (watch, session.watch_tools()):
        with pytest.raises(LeaseRevoked):
            await next_list(ended)
    assert names(await next_list(session.watch_tools(["time"]))) == ["time_now"]
    await session.release("desk")
    assert names(await next_list(watch)) == COMMON


@pytest.mark.parametrize("is_implemented", [True, False])
async def test_a_worker_that_does_not_wait_is_asked_again(
    worker: FakeWorker,
    session: AsyncSession,
    monkeypatch: pytest.MonkeyPatch,
    is_implemented: bool,
) -> None:
    monkeypatch.setattr(own_lists, "_MIN_WATCH", 0.01)
    worker.waits_for_tools = False
    worker.change_tools(CLOSED if is_implemented else None)
    watch = session.watch_tools()
    assert names(await next_list(watch)) == COMMON
    changed = asyncio.create_task(next_list(watch))
    await asyncio.sleep(0)
    worker.change_tools(OPENED)
    assert names(await changed) == OWN


async def test_a_watch_goes_on_when_the_connection_to_its_worker_was_closed_meanwhile(
    worker: FakeWorker, client: AsyncClient, session: AsyncSession
) -> None:
    watch = session.watch_tools()
    assert names(await next_list(watch)) == COMMON
    changed = asyncio.create_task(next_list(watch))
    await until(lambda: worker.waiting_lists)
    runtime, port = client._runtime(), int(worker.ref.address.rpartition(":")[2])
    pool = runtime.pool
    before = pool.link(worker_from_proto(worker.ref))
    await worker.stop()
    await until(lambda: before.idle)
    pool.link(WorkerRun("other", "run", "127.0.0.1:1"))  # closes idle connections
    assert before.worker not in pool.workers
    worker.change_tools(OPENED)
    await worker.start(port=port)
    assert names(await changed) == OWN


async def test_a_watch_ends_with_its_session_or_its_client(
    plane: FakeControlPlane, worker: FakeWorker
) -> None:
    async with AsyncClient(plane.address) as client, asyncio.timeout(BOUND):
        async with client.session("one") as session:
            await session.acquire("desk")
            watch = session.watch_tools()
            await next_list(watch)
            rest = asyncio.create_task(all_of(watch))
            await until(lambda: worker.waiting_lists)
        assert await rest == []
        async with client.session("two") as session:
            watch = session.watch_tools()
            await next_list(watch)
            rest = asyncio.create_task(all_of(watch))
            await until(lambda: plane.watchers == 1)
        assert await rest == []
        watch = client.session("three").watch_tools()
        await next_list(watch)
        rest = asyncio.create_task(all_of(watch))
        await until(lambda: plane.watchers == 1)
    async with asyncio.timeout(BOUND):
        assert await rest == []
    assert await all_of(watch) == []


@pytest.mark.parametrize(
    ("method", "seen"),
    [
        ("watch_prompts", ["desk_greet"]),
        ("watch_resources", ["me"]),
        ("watch_resource_templates", ["anybody"]),
    ],
)
async def test_prompts_and_resources_are_watched_like_tools(
    plane: FakeControlPlane, worker: FakeWorker, session: AsyncSession, method: str, seen: list[str]
) -> None:
    watch = getattr(session, method)()
    assert names(await next_list(watch)) == []
    changed = asyncio.create_task(next_list(watch))
    await until(lambda: worker.waiting_lists)
    worker.change_tools(GREETED)
    assert names(await changed) == seen

    def first_of_synchronous_watch() -> list[str]:
        with Client(plane.address) as client, client.session("one") as blocking:
            blocking.acquire("desk")
            return names(next(getattr(blocking, method)()))

    assert await asyncio.to_thread(first_of_synchronous_watch) == seen


async def test_a_worker_that_waits_for_tools_only_is_asked_again_for_prompts(
    worker: FakeWorker, session: AsyncSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_lists, "_MIN_WATCH", 0.01)
    worker.change_tools(OPENED)  # it answers with tools, whatever it is asked
    watch = session.watch_prompts()
    assert names(await next_list(watch)) == []
    changed = asyncio.create_task(next_list(watch))
    asked = worker.lists
    await until(lambda: worker.lists > asked + 2)
    assert not changed.done()
    worker.change_tools(GREETED)  # it was upgraded
    assert names(await changed) == ["desk_greet"]


async def test_the_synchronous_session_watches_tools(
    plane: FakeControlPlane, worker: FakeWorker
) -> None:
    seen: list[list[str]] = []
    client = Client(plane.address)

    def work() -> None:
        with client.session("one") as session:
            session.acquire("desk")
            seen.extend(names(tools) for tools in session.watch_tools())

    thread = threading.Thread(target=work)
    thread.start()
    await until(lambda: worker.waiting_lists)
    worker.change_tools(OPENED)
    await until(lambda: seen == [COMMON, OWN])
    await asyncio.to_thread(client.close)
    await asyncio.to_thread(thread.join, BOUND)
