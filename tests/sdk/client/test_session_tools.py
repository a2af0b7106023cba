"""A session lists the tools of its leases, as their workers tell."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest
from tests.conftest import BOUND
from tests.sdk.fakes import FakeControlPlane, FakeWorker

from leaseway.sdk import AsyncClient, ToolNotFound
from leaseway.sdk.relay import hear_servers
from leaseway.v1 import catalog_pb2, leases_pb2

OPENED = leases_pb2.ListLeaseToolsResponse(
    digest="1",
    tools=[catalog_pb2.Tool(name="desk_write", original_name="write", server_id="desk")],
    absent=["open"],
)


async def names(client: AsyncClient, session: str) -> list[str]:
    return [tool.name for tool in await client.session(session).list_tools()]


async def test_only_the_session_of_the_lease_sees_its_tools(
    client: AsyncClient, worker: FakeWorker
) -> None:
    await client.session("one").acquire("desk")
    worker.lease_tools = OPENED
    assert await names(client, "one") == ["desk_write", "time_now"]
    assert await names(client, "two") == ["desk_open", "time_now"]
    assert [tool.name for tool in await client.list_tools()] == ["desk_open", "time_now"]
    await client.session("one").release("desk")
    assert await names(client, "one") == ["desk_open", "time_now"]


async def test_another_client_of_the_session_sees_its_tools(
    client: AsyncClient, plane: FakeControlPlane, worker: FakeWorker
) -> None:
    async with AsyncClient(plane.address) as first:
        await first.session("one").acquire("desk")
        worker.lease_tools = OPENED
        session = client.session("one")
        assert await names(client, "one") == ["desk_write", "time_now"]
        assert not session.leases(), "listing is no use of the lease"
        assert await names(client, "two") == ["desk_open", "time_now"]


async def test_an_unchanged_list_is_kept(client: AsyncClient, worker: FakeWorker) -> None:
    await client.session("one").acquire("desk")
    worker.lease_tools = OPENED
    await names(client, "one")
    worker.lease_tools = leases_pb2.ListLeaseToolsResponse(digest="1")
    assert await names(client, "one") == ["desk_write", "time_now"]


async def test_leases_that_differ_alike_share_a_list_which_ends_with_them(
    client: AsyncClient, worker: FakeWorker
) -> None:
    worker.lease_tools = OPENED
    lists = []
    for name in ("one", "two"):
        await client.session(name).acquire("desk")
        lists.append(await client.session(name).list_tools())
    [own, same] = [tool for tools in lists for tool in tools if tool.name == "desk_write"]
    assert own is same
    kept = weakref.ref(own)
    del own, same, lists
    gc.collect()
    assert kept() is not None
    for name in ("one", "two"):
        await client.session(name).release("desk")
    gc.collect()
    assert kept() is None


async def test_a_session_at_an_older_worker_sees_the_common_tools(
    client: AsyncClient, worker: FakeWorker
) -> None:
    await client.session("one").acquire("desk")
    worker.lease_tools = None
    assert await names(client, "one") == ["desk_open", "time_now"]


async def test_the_prompts_of_a_session_at_an_older_worker_are_those_of_all(
    client: AsyncClient, worker: FakeWorker
) -> None:
    """It lists and resolves tools, whatever it is asked for."""
    session = client.session("one")
    await session.acquire("desk")
    worker.lease_tools = OPENED
    assert await session.list_prompts() == await client.list_prompts()
    with pytest.raises(ToolNotFound):
        await session.get_prompt("desk_write")
    assert worker.resolved == ["desk_write"]


async def test_a_worker_that_does_not_answer_has_the_tools_that_it_told_last(
    client: AsyncClient, worker: FakeWorker
) -> None:
    await client.session("one").acquire("desk")
    worker.lease_tools = OPENED
    await names(client, "one")
    worker.lease_tools = None
    assert await names(client, "one") == ["desk_write", "time_now"]


async def test_a_name_that_nobody_has_is_not_found(client: AsyncClient, worker: FakeWorker) -> None:
    """An older worker resolves the names of all only, which the control plane has denied."""
    session = client.session("one")
    await session.acquire("desk")
    with pytest.raises(ToolNotFound):
        await session.call_tool("desk_unknown")
    assert worker.resolved == ["desk_unknown"]


async def test_a_gateway_hears_at_once_that_a_lease_was_released(client: AsyncClient) -> None:
    session = client.session("one")
    await session.acquire("desk")
    ended = asyncio.Event()
    stop = hear_servers(session, lambda *_: None, ended.set)
    await session.release("desk")
    async with asyncio.timeout(BOUND):
        await ended.wait()
    assert not session.leases()
    stop()
    ended.clear()
    await session.acquire("desk")
    await session.release("desk")
    await asyncio.sleep(0)
    assert not ended.is_set()
