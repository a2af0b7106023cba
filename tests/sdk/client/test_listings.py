"""Lists of tools, prompts, resources and templates."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterable

import pytest
from tests.sdk.fakes import FakeControlPlane

from leaseway.sdk import (
    AsyncClient,
    Client,
    Overloaded,
    Prompt,
    PromptArgument,
    Resource,
    ResourceTemplate,
    Tool,
)
from leaseway.sdk.catalog.search import ToolIndex
from leaseway.sdk.client import listings
from leaseway.v1 import catalog_pb2

ARGUMENTS = [{"name": "city", "title": 7, "required": True}, "odd", {"name": "unit"}]


@pytest.fixture
def plane(plane: FakeControlPlane) -> FakeControlPlane:
    """Lists two prompts, two resources and a template."""
    plane.prompts = [
        catalog_pb2.Prompt(
            name=f"{server}_ask",
            original_name="ask",
            server_id=server,
            title="Ask",
            description="Asks.",
            arguments=json.dumps(ARGUMENTS).encode(),
            extra=b'{"icons": []}',
            shared=server == "time",
        )
        for server in ("desk", "time")
    ]
    plane.resources = [
        catalog_pb2.Resource(
            uri=f"{server}:///a",
            server_id=server,
            name="a",
            mime_type="text/plain",
            extra=b'{"size": 3}',
        )
        for server in ("desk", "time")
    ]
    template = catalog_pb2.Resource(
        uri="time:///{x}", is_template=True, server_id="time", name="any", shared=True
    )
    plane.resources.append(template)
    return plane


async def test_prompts_are_listed_with_their_arguments(
    client: AsyncClient, plane: FakeControlPlane
) -> None:
    plane.pending = ["slow"]
    prompts = await client.list_prompts()
    assert prompts[0] == Prompt(
        name="desk_ask",
        server_id="desk",
        original_name="ask",
        title="Ask",
        description="Asks.",
        arguments=(
            PromptArgument("city", "", "", required=True),
            PromptArgument("unit", "", "", required=False),
        ),
        extra={"icons": []},
        shared=False,
    )
    assert prompts[0].qualified_name == "desk:ask"
    assert (len(prompts), prompts.registry_version, prompts.pending) == (2, 1, ("slow",))
    assert repr(prompts) == "PromptList(2 at version 1)"
    assert [prompt.name for prompt in prompts[1:]] == ["time_ask"]


async def test_resources_and_templates_are_separate_lists(
    client: AsyncClient, plane: FakeControlPlane
) -> None:
    resources = await client.list_resources()
    assert resources[0] == Resource(
        uri="desk:///a",
        server_id="desk",
        name="a",
        title="",
        description="",
        mime_type="text/plain",
        extra={"size": 3},
        shared=False,
    )
    assert len(resources) == 2
    templates = await client.list_resource_templates()
    assert list(templates) == [
        ResourceTemplate(
            uri_template="time:///{x}",
            server_id="time",
            name="any",
            title="",
            description="",
            mime_type="",
            extra={},
            shared=True,
        )
    ]


async def test_lists_are_filtered_by_server_and_read_in_pages(
    client: AsyncClient, plane: FakeControlPlane
) -> None:
    plane.page_size = 1
    assert [tool.server_id for tool in await client.list_tools()] == ["desk", "time"]
    assert [tool.server_id for tool in await client.list_tools(servers=["desk"])] == ["desk"]
    assert [prompt.server_id for prompt in await client.list_prompts()] == ["desk", "time"]
    assert [prompt.server_id for prompt in await client.list_prompts(["time"])] == ["time"]
    assert [resource.uri for resource in await client.list_resources(servers=["time"])] == [
        "time:///a"
    ]
    assert len(await client.list_resources()) == 2
    assert len(await client.list_resource_templates(["desk"])) == 0


async def test_a_list_is_read_again_if_the_registry_changes_between_pages(
    client: AsyncClient, plane: FakeControlPlane
) -> None:
    plane.page_size = 1
    moves = iter([plane.move])
    plane.on_list = lambda: next(moves, lambda: None)()
    resources = await client.list_resources()
    assert (len(resources), resources.registry_version) == (2, 2)
    plane.on_list = plane.move
    with pytest.raises(Overloaded, match="changed 5 times"):
        await client.list_prompts()


async def test_the_synchronous_client_lists_the_same(
    client: AsyncClient, plane: FakeControlPlane
) -> None:
    def lists() -> list[list[object]]:
        with Client(plane.address) as plain:
            return [
                list(plain.list_tools()),
                list(plain.list_prompts()),
                list(plain.list_resources()),
                list(plain.list_resource_templates(timeout=60)),
            ]

    found = await asyncio.to_thread(lists)
    assert found == [
        list(await client.list_tools()),
        list(await client.list_prompts()),
        list(await client.list_resources()),
        list(await client.list_resource_templates()),
    ]


async def test_tools_are_searched_without_stopping_the_loop(
    client: AsyncClient, plane: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Index(ToolIndex):
        def __init__(self, tools: Iterable[Tool]) -> None:
            built.append(threading.get_ident())
            super().__init__(tools)

    built: list[int] = []
    monkeypatch.setattr(listings, "ToolIndex", Index)
    plane.add("atlas", "find_place")
    for _ in range(2):
        found = await client.search_tools("find a place", limit=1)
        assert [tool.name for tool in found] == ["atlas_find_place"]
    assert len(built) == 1
    assert built[0] != threading.get_ident()
