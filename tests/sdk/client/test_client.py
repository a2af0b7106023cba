"""The asynchronous client: addresses, listing, closing, event loops."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest
from tests.sdk.fakes import FakeControlPlane, FakeWorker

from leaseway.sdk import AsyncClient, ControlPlaneUnavailable


async def test_tools_are_listed_with_all_fields(client: AsyncClient) -> None:
    tools = await client.list_tools()
    assert [tool.name for tool in tools] == ["desk_open", "time_now"]
    tool = tools[1]
    assert (tool.qualified_name, tool.server_id, tool.original_name) == ("time:now", "time", "now")
    assert (tool.title, tool.description) == ("A title", "What it does.")
    assert tool.input_schema == {"type": "object"}
    assert tool.output_schema is None
    assert tool.annotations == {"readOnlyHint": True}
    assert (tool.shared, tools[0].shared) == (True, False)


async def test_a_list_has_its_registry_version_load_time_and_pending_servers(
    client: AsyncClient, plane: FakeControlPlane
) -> None:
    plane.pending = ["slow"]
    tools = await client.list_tools()
    assert tools.registry_version == 1
    assert tools.pending == ("slow",)
    assert tools.config_loaded_at == datetime.fromtimestamp(1_700_000_000, UTC)


async def test_address_and_key_are_read_from_the_environment(
    plane: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEASEWAY_ADDRESS", plane.address)
    monkeypatch.setenv("LEASEWAY_KEY", "k")
    async with AsyncClient() as client:
        assert len(await client.list_tools()) == 2
    assert plane.metadata[0]["authorization"] == "Bearer k"


async def test_the_default_address_is_local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEASEWAY_ADDRESS", raising=False)
    assert repr(AsyncClient()) == "<AsyncClient of 127.0.0.1:7600>"


@pytest.mark.parametrize("address", ["nonsense", "host:", "127.0.0.1:0", "1:2:3"])
def test_an_invalid_address_is_rejected(address: str) -> None:
    with pytest.raises(ValueError, match="write"):
        AsyncClient(address)


def test_a_key_that_cannot_be_sent_is_rejected_without_showing_it() -> None:
    with pytest.raises(ValueError, match="LEASEWAY_KEY") as caught:
        AsyncClient(key="ümlaut secret")
    assert "ümlaut" not in str(caught.value)


async def test_an_unreachable_control_plane_fails_the_request_in_time() -> None:
    loop = asyncio.get_running_loop()
    started_at = loop.time()
    async with AsyncClient("127.0.0.1:1") as client:
        with pytest.raises(ControlPlaneUnavailable):
            await client.list_tools()
    assert loop.time() - started_at < 20


async def test_a_control_plane_that_starts_in_time_is_reached(plane: FakeControlPlane) -> None:
    port = int(plane.address.rpartition(":")[2])
    await plane.stop()
    async with AsyncClient(plane.address) as client:
        listing = asyncio.create_task(client.list_tools())
        await asyncio.sleep(0)
        await plane.start(port)
        assert len(await listing) == 2


@pytest.mark.parametrize("used", [False, True])
async def test_a_client_can_be_closed_twice_and_then_rejects_requests(
    plane: FakeControlPlane, used: bool
) -> None:
    client = AsyncClient(plane.address)
    if used:
        await client.list_tools()
    await client.close()
    await client.close()
    with pytest.raises(RuntimeError, match="closed"):
        await client.list_tools()
    with pytest.raises(RuntimeError, match="closed"):
        await client.session("dialog").call_tool("time_now")


async def test_a_client_rejects_a_second_event_loop(
    client: AsyncClient, worker: FakeWorker
) -> None:
    await client.call_tool("time_now")
    with pytest.raises(RuntimeError, match="second event loop"):
        await asyncio.to_thread(lambda: asyncio.run(client.call_tool("time_now")))


async def test_a_key_returns_the_same_session_object(client: AsyncClient) -> None:
    session = client.session("dialog")
    assert client.session("dialog") is session
    assert client.session("other") is not session
    assert session.key == "dialog"


async def test_the_tenant_is_sent_with_calls_and_leases(
    plane: FakeControlPlane, worker: FakeWorker
) -> None:
    async with AsyncClient(plane.address, tenant="acme") as client:
        await client.call_tool("time_now")
        await client.session("dialog").acquire("desk")
    assert worker.calls[0].tenant == "acme"
    assert plane.places[0].tenant == "acme"
    assert worker.acquires[0].tenant == "acme"
