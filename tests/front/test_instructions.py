"""What servers say about their use, as MCP clients get it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from mcp import Client
from tests.conftest import BOUND

from leaseway.front.app import McpListener
from leaseway.front.catalog import CatalogCache, Instructions, joined_instructions
from leaseway.front.http.callers import Callers
from leaseway.front.http.request_checks import AccessCheck
from leaseway.front.http.server import HttpServer
from leaseway.front.http.streamable import HttpFront
from leaseway.front.methods import Methods
from leaseway.front.sessions.sealing import Owner, Sealer
from leaseway.front.sessions.table import SessionTable
from leaseway.sdk.relay import ServerIntroduction
from leaseway.sdk.testing import FakeLeaseway
from leaseway.wire.channels.endpoint import Endpoint


def now() -> str:
    return "noon"


@pytest.fixture
def fake() -> Iterator[FakeLeaseway]:
    """Serve two servers that say how to use them, and one that does not."""
    with FakeLeaseway() as fake:
        fake.server("clock", prefix="clock_", instructions="Times are UTC.").tool(now)
        fake.server("atlas", prefix="atlas_", instructions="Give cities.").tool(now)
        fake.server("mute", prefix="mute_").tool(now)
        yield fake


@asynccontextmanager
async def front(fake: FakeLeaseway) -> AsyncIterator[str]:
    """Serve a system to MCP clients; yield the URL."""

    def build(tenant: str, *_: object) -> HttpFront:
        client = fake.async_client(tenant=tenant)
        table = SessionTable(client, Sealer("key", "mcp session"), Owner(tenant))
        return HttpFront(Methods(client), table)

    listener = McpListener(Endpoint("127.0.0.1", 0), None)
    callers = Callers(build, "default", "mcp", None, None)
    server = HttpServer(AccessCheck(listener.endpoint, None), callers)
    async with callers.running(), server.serving(listener.socket):
        yield f"http://{listener.endpoint}/mcp"


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_the_official_client_gets_the_instructions_below_a_heading_for_each_server(
    fake: FakeLeaseway, mode: str
) -> None:
    async with front(fake) as url:
        async with Client(url, mode=mode) as client:
            assert client.instructions == "# atlas\n\nGive cities.\n\n# clock\n\nTimes are UTC."
        async with Client(f"{url}/clock", mode=mode) as client:
            assert client.instructions == "# clock\n\nTimes are UTC."
        async with Client(f"{url}/mute", mode=mode) as client:
            assert not client.instructions


async def test_new_instructions_are_told_to_clients_that_come_later(fake: FakeLeaseway) -> None:
    async with fake.async_client() as client:
        catalog = CatalogCache(client)
        instructions = Instructions(catalog)
        changes: list[str] = []
        catalog.subscribe(lambda kind, _servers, _client: changes.append(kind))
        try:
            assert "Drive" not in await instructions.text()
            fake.server("roads", instructions="Drive on the left.").tool(now)
            async with asyncio.timeout(BOUND):
                while "# roads\n\nDrive" not in await instructions.text():
                    await asyncio.sleep(0.01)
            assert changes == []  # MCP has no notification for them
        finally:
            await catalog.close()


async def test_the_first_list_of_tools_still_waits_for_first_starts_after_instructions(
    fake: FakeLeaseway,
) -> None:
    async with fake.async_client() as client:
        catalog = CatalogCache(client)
        waited: list[str] = []
        wait = catalog._await_first_starts

        async def recording(kind: str, items: object) -> object:
            waited.append(kind)
            return await wait(kind, items)  # type: ignore[arg-type]

        catalog._await_first_starts = recording  # type: ignore[method-assign, assignment]
        try:
            await catalog.introductions()
            await catalog.listing("tools")
            await catalog.listing("prompts")
        finally:
            await catalog.close()
        assert waited == ["tools"]


async def test_what_this_leaseway_says_about_itself_comes_first(fake: FakeLeaseway) -> None:
    async with fake.async_client() as client:
        catalog = CatalogCache(client)
        instructions = Instructions(catalog)
        instructions.own = "Server x does not run."
        try:
            text = await instructions.text("clock")
            assert text == "Server x does not run.\n\n# clock\n\nTimes are UTC."
            assert await instructions.text("mute") == "Server x does not run."
        finally:
            await catalog.close()


def test_instructions_that_are_too_long_together_are_left_out_whole_and_named() -> None:
    said = [ServerIntroduction(f"s{number}", str(number) * 16_000, ()) for number in range(4)]
    text = joined_instructions([*said, ServerIntroduction("z", "Short.", ())])
    assert [f"# s{number}" in text for number in range(4)] == [True, True, False, False]
    assert "# z\n\nShort." in text
    assert text.endswith("The instructions of 2 servers are left out, because all together are too "
                         "long: s2, s3")  # fmt: skip
