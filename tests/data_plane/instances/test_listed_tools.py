"""Gateways are told which tools a leased server does not list to its MCP client."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.data_plane.conftest import BOTH_WAYS

from leaseway.wire import bounds
from leaseway.wire.mcp_client import ListedTools, McpClient
from leaseway.wire.messages.mcp import TOOLS_CHANGED

Bench = Any
Caller = Any
CLIENT = McpClient("2025-11-25", {"roots": {}}, {"name": "one", "version": "1"})


def tool(name: str) -> bytes:
    return msgspec.json.encode({"name": name, "inputSchema": {"type": "object"}})


def told(caller: Caller) -> list[ListedTools]:
    """Return what the caller was told, the oldest first."""
    return [
        msgspec.json.decode(notification.params, type=ListedTools)
        for message in caller.frames
        for notification in message.notifications
        if (notification.method, notification.session, notification.server_id)
        == (TOOLS_CHANGED, "s1", "db")
    ]


async def serve(bench: Bench, *others: str) -> None:
    """Serve a server that lists other tools only to those who declare everything."""
    bench.servers.tools = {name: tool(name) for name in ("echo", *others)}
    await bench.serve("db", shared=False)
    bench.servers.tools = {"echo": tool("echo")}


@BOTH_WAYS
async def test_the_gateway_of_the_newest_call_is_told_once_and_at_each_change(
    bench: Bench,
) -> None:
    await serve(bench, "roots")
    call = {"session": "s1", "mcp_client": CLIENT.encoded}
    first, second = bench.caller(), bench.caller()
    for caller in (first, first, second):
        await caller.call("db", **call)
    less = ListedTools(CLIENT.encoded.decode(), ["roots"])
    for caller in (first, second):
        await caller.until(lambda caller=caller: told(caller))
        assert told(caller) == [less]
    (instance,) = bench.servers.live
    instance.change_tools({name: tool(name) for name in ("echo", "roots")})
    await second.until(lambda: len(told(second)) == 2)
    assert told(second)[1].absent == []
    assert told(first) == [less]


async def test_a_bounded_number_of_tools_is_told(bench: Bench) -> None:
    await serve(bench, *(f"t{number}" for number in range(bounds.MAX_ABSENT_TOOLS + 1)))
    caller = bench.caller()
    await caller.call("db", session="s1", mcp_client=CLIENT.encoded)
    await caller.until(lambda: told(caller))
    assert len(told(caller)[0].absent) == bounds.MAX_ABSENT_TOOLS


async def test_a_caller_that_speaks_for_no_client_is_told_nothing(bench: Bench) -> None:
    await serve(bench, "roots")
    caller = bench.caller()
    await caller.call("db", session="s1")
    await caller.call("db", session="s1")
    assert not told(caller)
