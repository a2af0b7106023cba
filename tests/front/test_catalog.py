"""The lists that a front caches: read again with every version of the registry."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from tests.conftest import BOUND

from leaseway.front import catalog as front_catalog
from leaseway.front.calling.conversations import SessionOptions
from leaseway.front.calling.handles import SessionOffer
from leaseway.front.catalog import CatalogCache
from leaseway.sdk import AsyncClient, LeasewayError
from leaseway.sdk.catalog.tools import CatalogList
from leaseway.sdk.relay import SharedItems, list_shared, watch_registry
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
        read, answer = asyncio.Event(), asyncio.Event()

        async def answer_late(*which: Any) -> CatalogList[Any]:
            tools = await list_shared(*which)
            read.set()
            await answer.wait()
            return tools

        monkeypatch.setattr(front_catalog, "list_shared", answer_late)
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
        fails = False

        async def fail_later(of: AsyncClient, kind: str, shared: SharedItems) -> CatalogList[Any]:
            if fails and kind == "tools":
                raise LeasewayError("The registry changed 5 times while its pages were read.")
            return await list_shared(of, kind, shared)

        monkeypatch.setattr(front_catalog, "list_shared", fail_later)
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


async def test_a_list_that_was_read_with_a_fault_is_read_again(
    fake: FakeLeaseway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fake.async_client() as client:
        faults: list[Exception] = []

        async def fail_once(of: AsyncClient, kind: str, shared: SharedItems) -> CatalogList[Any]:
            if faults:
                raise faults.pop()
            return await list_shared(of, kind, shared)

        monkeypatch.setattr(front_catalog, "list_shared", fail_once)
        catalog = CatalogCache(client)
        try:
            await catalog.listing("tools")
            faults.append(ValueError("A newer control plane sends what this front cannot read."))
            fake.server("roads", prefix="roads_").tool(now)
            await listed(catalog, "tools", 2)
            assert not faults
        finally:
            await catalog.close()


async def test_lists_of_many_credentials_share_what_they_have_in_common(
    fake: FakeLeaseway,
) -> None:
    desk = fake.server("desk", stateful=True)
    desk.tool(now)
    desk.prompt()(now)
    offers = []
    async with fake.async_client() as one, fake.async_client(agent="other") as other:
        catalogs = CatalogCache(one), CatalogCache(other)
        try:
            for kind, count in (("tools", 3), ("prompts", 1)):
                for catalog in catalogs:
                    await listed(catalog, kind, count)
                first, second = [await catalog.listing(kind) for catalog in catalogs]
                pairs = zip(first.items.values(), second.items.values(), strict=True)
                assert all(item is same for item, same in pairs)
                pairs = zip(first.encoded, second.encoded, strict=True)
                assert all(definition is same for definition, same in pairs)
            for catalog in catalogs:
                tools = await catalog.listing("tools")
                offers.append(SessionOffer(SessionOptions()).add_tools(tools, "", tools, False))
            of_desk = [dict(zip(offer.keys, offer.encoded, strict=True)) for offer in offers]
            assert of_desk[0]["now",] is of_desk[1]["now",]
        finally:
            for catalog in catalogs:
                await catalog.close()


async def test_shared_items_are_freed_with_their_last_list(fake: FakeLeaseway) -> None:
    freed: list[str] = []

    async def list_once() -> None:
        async with fake.async_client() as client:
            catalog = CatalogCache(client)
            await listed(catalog, "tools", 1)
            await catalog.close()
            (tool,) = (await catalog.listing("tools")).items.values()
            weakref.finalize(tool, freed.append, tool.name)

    await asyncio.create_task(list_once())
    gc.collect()
    assert freed == ["clock_now"]
