"""The client itself: addresses, listing, closing, loops."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest
from tests.sdk.fakes import FakeControlPlane, FakeWorker

from leaseway.sdk import AsyncClient, ControlPlaneUnavailable, Overloaded


async def test_tools_are_listed_with_all_that_callers_see(client: AsyncClient) -> None:
    tools = await client.list_tools()
    assert [tool.name for tool in tools] == ["desk_open", "time_now"]
    tool = tools[1]
    assert (tool.qualified_name, tool.server_id, tool.original_name) == ("time:now", "time", "now")
    assert (tool.title, tool.description) == ("A title", "What it does.")
    assert tool.input_schema == {"type": "object"}
    assert tool.output_schema is None
    assert tool.annotations == {"readOnlyHint": True}
    assert (tool.shared, tools[0].shared) == (True, False)


async def test_a_list_says_of_when_it_is_and_what_is_missing(
    client: AsyncClient, plane: FakeControlPlane
) -> None:
    plane.pending = ["slow"]
    tools = await client.list_tools()
    assert tools.registry_version == 1
    assert tools.pending == ("slow",)
    assert tools.config_loaded_at == datetime.fromtimestamp(1_700_000_000, UTC)


async def test_only_the_servers_asked_for_are_listed(client: AsyncClient) -> None:
    assert [tool.server_id for tool in await client.list_tools(servers=["desk"])] == ["desk"]


async def test_a_long_list_comes_in_pages(client: AsyncClient, plane: FakeControlPlane) -> None:
    plane.add("many", *(f"t{n:03}" for n in range(25)))
    plane.page_size = 10
    tools = await client.list_tools()
    assert len(tools) == 27
    assert list(tools) == sorted(tools, key=lambda tool: tool.name)
    assert len(plane.clients) == 3


async def test_a_list_that_changes_between_pages_is_read_anew(
    client: AsyncClient, plane: FakeControlPlane
) -> None:
    plane.page_size = 1
    moves = iter([True])

    def move_once() -> None:
        if next(moves, False):
            plane.move()

    plane.on_list = move_once
    assert (await client.list_tools()).registry_version == 2


async def test_a_list_that_never_stands_still_is_given_up(
    client: AsyncClient, plane: FakeControlPlane
) -> None:
    plane.page_size = 1
    plane.on_list = plane.move
    with pytest.raises(Overloaded, match="changed"):
        await client.list_tools()


async def test_the_address_comes_from_the_environment(
    plane: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEASEWAY_ADDRESS", plane.address)
    async with AsyncClient() as client:
        assert len(await client.list_tools()) == 2


async def test_the_key_comes_from_the_environment(
    plane: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEASEWAY_KEY", "k")
    async with AsyncClient(plane.address) as client:
        await client.list_tools()
    assert plane.metadata[0]["authorization"] == "Bearer k"


async def test_the_default_address_is_this_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEASEWAY_ADDRESS", raising=False)
    assert repr(AsyncClient()) == "<AsyncClient of 127.0.0.1:7600>"


@pytest.mark.parametrize("address", ["nonsense", "host:", "127.0.0.1:0", "1:2:3"])
def test_a_wrong_address_is_refused_at_once(address: str) -> None:
    with pytest.raises(ValueError, match="write"):
        AsyncClient(address)


def test_a_key_that_cannot_be_sent_is_refused_without_showing_it() -> None:
    with pytest.raises(ValueError, match="LEASEWAY_KEY") as caught:
        AsyncClient(key="ümlaut secret")
    assert "ümlaut" not in str(caught.value)


async def test_an_unreachable_control_plane_is_given_up_within_its_bound() -> None:
    loop = asyncio.get_running_loop()
    begun = loop.time()
    async with AsyncClient("127.0.0.1:1") as client:
        with pytest.raises(ControlPlaneUnavailable):
            await client.list_tools()
    assert loop.time() - begun < 20


async def test_a_control_plane_that_comes_up_in_time_is_found(plane: FakeControlPlane) -> None:
    port = int(plane.address.rpartition(":")[2])
    await plane.stop()
    async with AsyncClient(plane.address) as client:
        listing = asyncio.create_task(client.list_tools())
        await asyncio.sleep(0)
        await plane.start(port)
        assert len(await listing) == 2


async def test_closing_twice_is_allowed(plane: FakeControlPlane) -> None:
    client = AsyncClient(plane.address)
    await client.list_tools()
    await client.close()
    await client.close()


async def test_a_client_that_was_never_used_can_be_closed() -> None:
    await AsyncClient().close()


async def test_a_closed_client_says_so(plane: FakeControlPlane) -> None:
    client = AsyncClient(plane.address)
    await client.close()
    with pytest.raises(RuntimeError, match="closed"):
        await client.list_tools()
    with pytest.raises(RuntimeError, match="closed"):
        await client.session("dialog").call_tool("time_now")


async def test_a_client_of_another_loop_says_so(client: AsyncClient, worker: FakeWorker) -> None:
    await client.call_tool("time_now")
    with pytest.raises(RuntimeError, match="second event loop"):
        await asyncio.to_thread(lambda: asyncio.run(client.call_tool("time_now")))


async def test_a_session_is_the_same_while_somebody_has_it(client: AsyncClient) -> None:
    session = client.session("dialog")
    assert client.session("dialog") is session
    assert client.session("other") is not session
    assert session.key == "dialog"


async def test_the_tenant_goes_with_everything(plane: FakeControlPlane, worker: FakeWorker) -> None:
    async with AsyncClient(plane.address, tenant="acme") as client:
        await client.call_tool("time_now")
        await client.session("dialog").acquire("desk")
    assert worker.calls[0].tenant == "acme"
    assert plane.places[0].tenant == "acme"
    assert worker.acquires[0].tenant == "acme"
