"""Clients are listed the prompts and resources that a leased server lists to them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import mcp_types as types
from mcp import Client
from tests.conftest import BOUND
from tests.e2e.mcp_front import front
from tests.e2e.system import python_server, running

Lists = tuple[list[str], list[str], list[str]]
ALL: Lists = (
    ["ask"],
    ["ui://choosy/answers", "ui://choosy/note"],
    ["ui://choosy/answers/{id}"],
)
FEW: Lists = ([], ["ui://choosy/note"], [])


async def listed(client: Client) -> Lists:
    prompts = await client.list_prompts(cache_mode="bypass")
    resources = await client.list_resources(cache_mode="bypass")
    templates = await client.list_resource_templates(cache_mode="bypass")
    return (
        [prompt.name for prompt in prompts.prompts],
        [str(resource.uri) for resource in resources.resources],
        [template.uri_template for template in templates.resource_templates],
    )


async def test_a_client_is_listed_the_prompts_and_resources_that_its_server_lists_to_it(
    tmp_path: Path,
) -> None:
    told: set[str] = set()
    changed = asyncio.Event()

    async def on_message(message: Any) -> None:
        if isinstance(
            message, types.PromptListChangedNotification | types.ResourceListChangedNotification
        ):
            told.add(message.method)
            if len(told) == 2:
                changed.set()

    async def sample(context: Any, params: Any) -> types.CreateMessageResult:
        raise AssertionError("the server asks for nothing")

    async with (
        running(tmp_path, {"choosy": python_server("choosy.py")}) as (system, _),
        front(system) as url,
        Client(url, mode="legacy", message_handler=on_message) as client,
        Client(url, mode="legacy", sampling_callback=sample) as able,
        asyncio.timeout(2 * BOUND),
    ):
        assert await listed(client) == ALL, "nothing is known of this client"
        told.clear()
        for caller in (able, client):
            await caller.call_tool("wait", {})
        await changed.wait()
        assert await listed(client) == FEW
        assert await listed(able) == ALL
