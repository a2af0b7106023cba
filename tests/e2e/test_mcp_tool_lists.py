"""Clients are listed what a leased server lists to them directly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client, MCPError
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.subscriptions import listen
from tests.conftest import BOUND, ServerCommand
from tests.e2e.mcp_front import ERAS, TRANSPORTS, Place, front
from tests.e2e.servers import entry
from tests.e2e.system import running

pytestmark = [pytest.mark.npm, pytest.mark.usefixtures("leak_guard")]

TASKS = {"simulate-research-query"}
"""Runs only as a task, which the front does not pass."""
OWN = {"lease_acquire", "lease_release", "mcp_release"}


async def listed(client: Client) -> set[str]:
    """Return the names of the listed tools of servers."""
    tools = (await client.list_tools(cache_mode="bypass")).tools
    return {tool.name for tool in tools} - OWN


@asynccontextmanager
async def changes(target: Any, mode: str) -> AsyncIterator[tuple[Client, asyncio.Event]]:
    """Connect a client that has declared nothing; yield it, and what is set by a changed list."""
    changed = asyncio.Event()

    async def on_message(message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            changed.set()

    async with Client(target, mode=mode, message_handler=on_message) as client:
        if mode == "legacy":
            yield client, changed
            return
        async with listen(client.session, tools_list_changed=True) as events:

            async def wait() -> None:
                await anext(aiter(events))
                changed.set()

            waiting = asyncio.create_task(wait())
            yield client, changed
            waiting.cancel()


@TRANSPORTS
async def test_a_client_is_listed_what_a_server_lists_to_it_directly(
    tmp_path: Path, transport: str, npm_server: ServerCommand
) -> None:
    (command,) = npm_server("mcp-server-everything")
    parameters = StdioServerParameters(command=command, args=[])
    async with Client(stdio_client(parameters), mode="legacy") as direct:
        shown = await listed(direct) - TASKS
    servers = {"everything": entry([command])}
    async with running(tmp_path, servers) as (system, sdk), front(system) as url:
        target = Place(system, sdk, url).target(transport)
        for mode in ERAS:
            async with changes(target, mode) as (client, changed), asyncio.timeout(2 * BOUND):
                before = await listed(client)
                assert before > shown, "nothing is known of this client"
                await client.call_tool("echo", {"message": "hi"})
                await changed.wait()
                assert await listed(client) == shown
                with pytest.raises(MCPError) as unknown:
                    await client.call_tool("trigger-sampling-request", {"prompt": "hi"})
                assert unknown.value.error.code == -32602
