"""Gateways are told what a leased server does not list to its MCP client."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.data_plane.conftest import BOTH_WAYS

from leaseway.data_plane.core.ports import ListedPromptsResources
from leaseway.data_plane.instances.generation import Generation
from leaseway.data_plane.instances.live_instance import LiveInstance
from leaseway.wire import bounds
from leaseway.wire.clients.mcp_client import ListedToClient, McpClient
from leaseway.wire.messages.mcp import TOOLS_CHANGED

Bench = Any
Caller = Any
CLIENT = McpClient("2025-11-25", {"roots": {}}, {"name": "one", "version": "1"})


def tool(name: str) -> bytes:
    return msgspec.json.encode({"name": name, "inputSchema": {"type": "object"}})


def told(caller: Caller) -> list[ListedToClient]:
    """Return what the caller was told, the oldest first."""
    return [
        msgspec.json.decode(notification.params, type=ListedToClient)
        for message in caller.frames
        for notification in message.notifications
        if (notification.method, notification.session, notification.server_id)
        == (TOOLS_CHANGED, "s1", "db")
    ]


def with_lists(
    listed: ListedToClient,
    prompts: tuple[str, ...],
    resources: tuple[str, ...],
    templates: tuple[str, ...],
) -> ListedToClient:
    """Return what is told once prompts, resources and templates are known."""
    return ListedToClient(listed.client, listed.absent, prompts, resources, templates)


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
    less = ListedToClient(CLIENT.encoded.decode(), ["roots"])
    for caller in (first, second):
        await caller.until(lambda caller=caller: told(caller))
        assert told(caller) == [less]
    (instance,) = bench.servers.live
    instance.change_tools({name: tool(name) for name in ("echo", "roots")})
    await second.until(lambda: len(told(second)) == 2)
    assert told(second)[1].absent == []
    assert told(first) == [less]


async def test_a_bounded_number_of_tools_is_told(bench: Bench) -> None:
    await serve(bench, *(f"t{number}" for number in range(bounds.MAX_ABSENT + 1)))
    caller = bench.caller()
    await caller.call("db", session="s1", mcp_client=CLIENT.encoded)
    await caller.until(lambda: told(caller))
    assert len(told(caller)[0].absent) == bounds.MAX_ABSENT


async def test_a_bounded_size_of_tool_names_is_told(bench: Bench) -> None:
    names = [f"{number:0>110}" for number in range(400)]
    await serve(bench, *names)
    caller = bench.caller()
    await caller.call("db", session="s1", mcp_client=CLIENT.encoded)
    await caller.until(lambda: told(caller))
    told_names = told(caller)[0].absent
    assert told_names
    assert len(msgspec.json.encode(told_names)) <= bounds.MAX_ABSENT_BYTES + len(told_names) + 1
    assert len(told_names) < len(names)


GREET, HIDDEN = b'{"name":"greet"}', b'{"name":"hidden"}'
NOTE, OWN = b'{"uri":"note://a"}', b'{"uri":"note://roots"}'
TEMPLATE = b'{"uriTemplate":"note://{id}"}'


async def serve_notes(bench: Bench) -> None:
    """Serve a server with prompts and resources, of which callers may use most."""
    upsert = bench.upsert(bench.spec("db", shared=False))
    toolset = upsert.toolset
    toolset.recorded_prompts.extend((GREET, HIDDEN))
    toolset.prompts.add(original_name="greet", name="own_greet")
    toolset.recorded_resources.extend((NOTE, OWN, b'{"uri":"note://secret"}'))
    toolset.recorded_templates.append(TEMPLATE)
    toolset.resource_filter.blacklist.append("note://secret")
    await bench.push(upsert)


async def test_prompts_and_resources_are_told_with_the_first_call(bench: Bench) -> None:
    await serve_notes(bench)
    bench.servers.prompts_resources = ListedPromptsResources((), (NOTE,))
    caller = bench.caller()
    await caller.call("db", session="s1", mcp_client=CLIENT.encoded)
    await caller.until(lambda: told(caller))
    least = ListedToClient(CLIENT.encoded.decode(), [])
    assert told(caller) == [with_lists(least, ("greet",), ("note://roots",), ("note://{id}",))]


async def test_prompts_and_resources_that_take_long_to_list_follow_the_first_call(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def take_too_long(_generation: Generation, _live: LiveInstance) -> None:
        """Return without a list, as after 2 s."""

    monkeypatch.setattr(Generation, "list_for_client", take_too_long)
    await serve_notes(bench)
    bench.servers.prompts_resources = ListedPromptsResources((), (NOTE,))
    caller = bench.caller()
    await caller.call("db", session="s1", mcp_client=CLIENT.encoded)
    await caller.until(lambda: len(told(caller)) == 2)
    first, second = told(caller)
    assert first == ListedToClient(CLIENT.encoded.decode(), [])
    assert second == with_lists(first, ("greet",), ("note://roots",), ("note://{id}",))


async def test_what_an_instance_takes_away_later_is_not_told(bench: Bench) -> None:
    """It is the state of one session; other sessions of the client have it."""
    await serve_notes(bench)
    bench.servers.prompts_resources = ListedPromptsResources((), (NOTE,), (TEMPLATE,))
    caller = bench.caller()
    await caller.call("db", session="s1", mcp_client=CLIENT.encoded)
    await caller.until(lambda: told(caller))
    bench.servers.prompts_resources = ListedPromptsResources((GREET,), (), (TEMPLATE,))
    (instance,) = bench.servers.live
    instance.change_tools(instance.tools)
    await caller.until(lambda: len(told(caller)) == 2)
    assert told(caller)[1] == with_lists(told(caller)[0], (), ("note://roots",), ())


async def test_lists_that_fail_leave_nothing_out(bench: Bench) -> None:
    await serve_notes(bench)
    bench.servers.prompts_resources = ListedPromptsResources(gaps=("prompts/list failed.",))
    caller = bench.caller()
    await caller.call("db", session="s1", mcp_client=CLIENT.encoded)
    await caller.until(lambda: told(caller))
    assert told(caller)[0] == with_lists(told(caller)[0], (), (), ())


async def test_a_caller_that_speaks_for_no_client_is_told_nothing(bench: Bench) -> None:
    await serve(bench, "roots")
    caller = bench.caller()
    await caller.call("db", session="s1")
    await caller.call("db", session="s1")
    assert not told(caller)
