"""`watch_tools`: the current list, then one for each change, until the client is closed."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref

import pytest
from tests.sdk.client.watched_lists import all_of, names, next_list
from tests.sdk.fakes import BOUND, FakeControlPlane, until

from leaseway.sdk import (
    AsyncClient,
    AsyncToolWatch,
    Client,
    ControlPlaneUnavailable,
    ToolNotFound,
)


@pytest.fixture
async def watch(client: AsyncClient) -> AsyncToolWatch:
    """Return a watch whose first list was read."""
    watch = client.watch_tools()
    await next_list(watch)
    return watch


async def test_a_watch_returns_the_first_list_at_once_and_then_each_change(
    plane: FakeControlPlane, client: AsyncClient
) -> None:
    watch = client.watch_tools()
    assert names(await next_list(watch)) == ["desk_open", "time_now"]
    plane.add("time", "zones")
    plane.move()
    assert names(await next_list(watch)) == ["desk_open", "time_now", "time_zones"]
    del plane.tools["desk_open"], plane.tools["desk:open"]
    plane.move()
    tools = await next_list(watch)
    assert names(tools) == ["time_now", "time_zones"]
    assert tools.registry_version == plane.version


async def test_a_registry_version_without_changes_is_skipped(
    plane: FakeControlPlane, watch: AsyncToolWatch
) -> None:
    waiting = asyncio.create_task(next_list(watch))
    asked = len(plane.clients)
    plane.move()
    await until(lambda: len(plane.clients) > asked)
    plane.notify()
    assert not waiting.done()
    plane.add("time", "zones")
    plane.move()
    assert "time_zones" in names(await waiting)


async def test_a_newly_pending_server_is_a_change(
    plane: FakeControlPlane, client: AsyncClient
) -> None:
    watch = client.watch_tools()
    assert (await next_list(watch)).pending == ()
    plane.pending = ["slow"]
    plane.move()
    assert (await next_list(watch)).pending == ("slow",)


async def test_a_watch_is_limited_to_its_servers(
    plane: FakeControlPlane, client: AsyncClient
) -> None:
    watch = client.watch_tools(["time"])
    assert names(await next_list(watch)) == ["time_now"]
    plane.add("desk", "close", shared=False)
    plane.move()
    plane.add("time", "zones")
    plane.move()
    assert names(await next_list(watch)) == ["time_now", "time_zones"]


async def test_a_removed_server_has_no_tools_until_it_is_added_again(
    plane: FakeControlPlane, client: AsyncClient
) -> None:
    watch = client.watch_tools(["time", "desk"])
    assert names(await next_list(watch)) == ["desk_open", "time_now"]
    plane.absent.add("desk")
    removed = plane.tools.pop("desk_open"), plane.tools.pop("desk:open")
    plane.add("other", "tool")
    plane.move()
    tools = await next_list(watch)
    assert names(tools) == ["time_now"]
    assert tools.registry_version == plane.version
    plane.absent.clear()
    plane.tools["desk_open"], plane.tools["desk:open"] = removed
    plane.move()
    assert names(await next_list(watch)) == ["desk_open", "time_now"]


async def test_a_watch_of_an_unknown_server_is_an_error(
    plane: FakeControlPlane, client: AsyncClient
) -> None:
    plane.absent.add("dsek")
    with pytest.raises(ToolNotFound, match="There is no server 'dsek'"):
        await next_list(client.watch_tools(["dsek"]))


async def test_several_changes_between_two_reads_are_one(
    plane: FakeControlPlane, watch: AsyncToolWatch
) -> None:
    for number in range(50):
        plane.add("time", f"t{number}")
        plane.move()
    seen = await next_list(watch)
    while len(seen) < 52:
        seen = await next_list(watch)
    again = asyncio.create_task(next_list(watch))
    await until(lambda: plane.watchers == 1)
    assert not again.done()
    again.cancel()


async def test_all_watches_of_a_client_and_its_calls_share_one_stream(
    plane: FakeControlPlane, client: AsyncClient
) -> None:
    await client.call_tool("time_now")
    watches = [client.watch_tools() for _ in range(3)]
    for watch in watches:
        await next_list(watch)
    await until(lambda: plane.watchers == 1)
    plane.add("time", "zones")
    plane.move()
    assert all([len(await next_list(watch)) == 3 for watch in watches])
    assert plane.watchers == 1


async def test_a_watch_waits_for_a_restarting_control_plane(
    plane: FakeControlPlane, watch: AsyncToolWatch
) -> None:
    waiting = asyncio.create_task(next_list(watch))
    port = int(plane.address.rpartition(":")[2])
    await plane.stop()
    await until(lambda: plane.watchers == 0)
    plane.add("time", "zones")
    plane.version += 1
    await plane.start(port)
    assert "time_zones" in names(await waiting)


async def test_a_change_just_before_a_restart_is_reported_after_it(
    plane: FakeControlPlane, client: AsyncClient, watch: AsyncToolWatch
) -> None:
    port = int(plane.address.rpartition(":")[2])
    plane.add("time", "zones")
    plane.move()
    await until(lambda: client._runtime().resolver.registry_version.version == plane.version)
    await plane.stop()
    waiting = asyncio.create_task(next_list(watch))
    await until(lambda: not client._runtime().control.connected)
    await plane.start(port)
    assert "time_zones" in names(await waiting)


async def test_a_watch_fails_if_the_control_plane_is_unreachable_at_first() -> None:
    async with AsyncClient("127.0.0.1:1") as client:
        with pytest.raises(ControlPlaneUnavailable):
            await next_list(client.watch_tools())


async def test_a_watch_ends_when_its_client_is_closed(plane: FakeControlPlane) -> None:
    async with AsyncClient(plane.address) as client:
        watch = client.watch_tools()
        await next_list(watch)
        rest = asyncio.create_task(all_of(watch))
        await until(lambda: plane.watchers == 1)
    async with asyncio.timeout(BOUND):
        assert await rest == []
    assert await all_of(watch) == []


async def test_a_watch_ends_when_its_client_is_closed_during_a_read(
    plane: FakeControlPlane,
) -> None:
    async with AsyncClient(plane.address) as client:
        watch = client.watch_tools()
        await next_list(watch)
        port = int(plane.address.rpartition(":")[2])
        plane.move()
        await until(lambda: client._runtime().resolver.registry_version.version == plane.version)
        await plane.stop()
        rest = asyncio.create_task(all_of(watch))
        await until(lambda: not client._runtime().control.connected)
    async with asyncio.timeout(BOUND):
        assert await rest == []
    await plane.start(port)


async def test_a_watch_can_be_read_again_after_a_cancelled_read(
    plane: FakeControlPlane, watch: AsyncToolWatch
) -> None:
    waiting = asyncio.create_task(next_list(watch))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    plane.add("time", "zones")
    plane.move()
    assert "time_zones" in names(await next_list(watch))


async def test_a_change_whose_read_was_cancelled_is_read_again(
    plane: FakeControlPlane, watch: AsyncToolWatch
) -> None:
    await until(lambda: plane.watchers)
    waiting = asyncio.create_task(next_list(watch))
    plane.on_list = waiting.cancel  # type: ignore[assignment]
    plane.users_changed = [""]  # lists change without a new version
    plane.add("time", "zones")
    plane.notify()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    plane.on_list = lambda: None
    assert "time_zones" in names(await next_list(watch))


async def test_an_abandoned_watch_is_freed(plane: FakeControlPlane) -> None:
    client = AsyncClient(plane.address)
    async with asyncio.timeout(BOUND):
        async for tools in client.watch_tools():
            assert len(tools) == 2
            break
    watch = weakref.ref(client.watch_tools())
    gc.collect()
    assert watch() is None
    await client.close()


async def test_the_synchronous_client_watches_tools(plane: FakeControlPlane) -> None:
    seen: list[list[str]] = []
    client = Client(plane.address)

    def work() -> None:
        seen.extend(names(tools) for tools in client.watch_tools())

    thread = threading.Thread(target=work)
    thread.start()
    await until(lambda: seen)
    plane.add("time", "zones")
    plane.move()
    await until(lambda: len(seen) == 2)
    await asyncio.to_thread(client.close)
    await asyncio.to_thread(thread.join, BOUND)
    assert not thread.is_alive()
    assert seen == [["desk_open", "time_now"], ["desk_open", "time_now", "time_zones"]]
