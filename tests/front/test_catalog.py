"""The lists that a front caches: read again with every version of the registry."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from tests.conftest import BOUND

from leaseway.front.catalog import CatalogCache
from leaseway.sdk import LeasewayError, ToolList
from leaseway.sdk.relay import watch_registry
from leaseway.sdk.testing import FakeLeaseway


def now() -> str:
    return "noon"


@pytest.fixture
def fake() -> Iterator[FakeLeaseway]:
    with FakeLeaseway() as fake:
        fake.server("clock", prefix="clock_").tool(now)
        yield fake


async def listed(catalog: CatalogCache, kind: str, count: int) -> None:
    """Wait until a list has so many items."""
    async with asyncio.timeout(BOUND):
        while len((await catalog.listing(kind)).items) != count:
            await asyncio.sleep(0.01)


async def test_a_list_that_was_read_while_the_registry_changed_is_read_again(
    fake: FakeLeaseway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fake.async_client() as client:
        read, answer, list_tools = asyncio.Event(), asyncio.Event(), client.list_tools

        async def answer_late() -> ToolList:
            tools = await list_tools()
            read.set()
            await answer.wait()
            return tools

        monkeypatch.setattr(client, "list_tools", answer_late)
        catalog = CatalogCache(client)
        try:
            reading = asyncio.create_task(catalog.listing("tools"))
            await asyncio.wait_for(read.wait(), BOUND)
            registry = watch_registry(client)
            version = registry.version
            fake.server("roads", prefix="roads_").tool(now)
            await asyncio.wait_for(registry.wait_beyond(version), BOUND)
            answer.set()
            assert len((await reading).items) == 1
            await listed(catalog, "tools", 2)
        finally:
            await catalog.close()


async def test_a_list_that_cannot_be_read_leaves_the_others_current(
    fake: FakeLeaseway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fake.async_client() as client:
        list_tools, fails = client.list_tools, False

        async def fail_later() -> ToolList:
            if fails:
                raise LeasewayError("The registry changed 5 times while its pages were read.")
            return await list_tools()

        monkeypatch.setattr(client, "list_tools", fail_later)
        catalog = CatalogCache(client)
        try:
            await catalog.listing("tools")
            await catalog.listing("prompts")
            fails = True
            fake.server("roads", prefix="roads_").prompt()(now)
            await listed(catalog, "prompts", 1)
            assert len((await catalog.listing("tools")).items) == 1, "the last one is served"
        finally:
            await catalog.close()
