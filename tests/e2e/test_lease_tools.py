"""Sessions see the tools that their own instances of leased servers add, change and remove."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import mcp_types as types
import pytest
from mcp import Client, MCPError
from mcp.client.subscriptions import (
    PromptsListChanged,
    ResourcesListChanged,
    ToolsListChanged,
    listen,
)
from tests.conftest import BOUND, absent
from tests.e2e.clients import node
from tests.e2e.forking import run_leaseway
from tests.e2e.mcp_front import ERAS, PLACES, Place, front, text_of
from tests.e2e.system import SERVERS, eventually, official_server, running
from tests.ports import free_port

from leaseway.sdk import AsyncClient, AsyncSession, InvalidArguments, LeaseRevoked, ToolNotFound

GROWING = {
    "growing": official_server(
        "growing.py",
        transform=[{"prefix": "g_"}],
        tools={"blacklist": ["hidden*"]},
        prompts={"blacklist": ["hidden*"]},
    )
}
AT_FIRST = ["g_add", "g_change", "g_login", "g_logout"]
LOGGED_IN = ["g_add", "g_change", "g_logout", "g_whoami"]


@pytest.fixture(scope="module")
async def place(
    tmp_path_factory: pytest.TempPathFactory, conformance_folder: Path, npm_folder: Path
) -> AsyncIterator[Place]:
    address = f"127.0.0.1:{free_port()}"
    servers: dict[str, object] = dict(GROWING)
    if (npm_folder / "node_modules" / "@modelcontextprotocol" / "server").exists():
        command = [node(conformance_folder), str(SERVERS / "toggling.mjs"), str(npm_folder)]
        servers["toggling"] = {"transport": "stdio", "command": command[0], "args": command[1:]}
    made = running(tmp_path_factory.mktemp("system"), servers, worker_options=("--mcp", address))
    async with made as (system, sdk), front(system) as url:
        yield Place(system, sdk, url, f"http://{address}/mcp")


async def names(session: AsyncSession) -> list[str]:
    return [tool.name for tool in await session.list_tools(["growing"])]


async def test_a_session_lists_and_calls_the_tools_of_its_own_instance(place: Place) -> None:
    client = place.sdk
    async with (
        client.session("one") as one,
        client.session("two") as two,
        asyncio.timeout(2 * BOUND),
    ):
        assert await names(one) == AT_FIRST
        assert (await two.call_tool("g_add", {"a": 1, "b": 2})).text == "3"
        assert (await one.call_tool("g_login", {"user": "ada"})).text == "welcome"
        assert (await one.call_tool("g_whoami", {"prefix": "I am"})).text == "I am ada"
        assert (await one.call_tool("growing:whoami", {"prefix": "still"})).text == "still ada"
        assert await names(one) == LOGGED_IN
        with pytest.raises(InvalidArguments):
            await one.call_tool("g_whoami", {"prefix": 5})
        for gone in ("g_login", "g_hidden_too"):
            with pytest.raises(ToolNotFound):
                await one.call_tool(gone, {"user": "eve"})
        assert await names(two) == AT_FIRST
        with pytest.raises(ToolNotFound):
            await two.call_tool("g_whoami", {"prefix": "I am"})
        await one.call_tool("g_change")
        await names(one)  # waits until the change has been read
        assert (await one.call_tool("g_add", {"a": 1, "b": 2, "c": 3})).text == "6"
        await one.release("growing")
        assert await names(one) == AT_FIRST


async def test_another_client_continues_a_session_with_the_tools_of_its_instance(
    place: Place,
) -> None:
    async with place.sdk.session("shared") as one, asyncio.timeout(2 * BOUND):
        await one.call_tool("g_login", {"user": "ada"})
        async with AsyncClient(place.system.address) as other:
            assert await names(other.session("shared")) == LOGGED_IN
        async with AsyncClient(place.system.address) as other:
            same = other.session("shared")
            assert (await same.call_tool("g_whoami", {"prefix": "I am"})).text == "I am ada"
            assert "Describe ada" in str((await same.get_prompt("g_portrait")).messages)
            with pytest.raises(ToolNotFound):
                await other.session("else").call_tool("g_whoami", {"prefix": "I am"})
        listing = ("tools", "growing", "--session", "shared", "--json")
        listed = await run_leaseway("--address", place.system.address, *listing)
        assert [tool["name"] for tool in json.loads(listed.stdout)] == LOGGED_IN


async def offered(session: AsyncSession) -> tuple[list[str], list[str], list[str]]:
    """Return the prompts, resources and templates that a session sees."""
    servers = ["growing"]
    return (
        [prompt.name for prompt in await session.list_prompts(servers)],
        [resource.uri for resource in await session.list_resources(servers)],
        [template.uri_template for template in await session.list_resource_templates(servers)],
    )


Offered = tuple[list[str], list[str], list[str]]
TO_GUESTS: Offered = ["g_welcome"], ["about://server"], []
TO_USERS: Offered = ["g_portrait"], ["user://me"], ["user://{name}/notes"]


async def test_a_session_lists_and_uses_the_prompts_and_resources_of_its_own_instance(
    place: Place,
) -> None:
    client = place.sdk
    async with (
        client.session("reading") as one,
        client.session("other") as two,
        asyncio.timeout(2 * BOUND),
    ):
        assert await offered(one) == TO_GUESTS
        assert "guest" in str((await two.get_prompt("g_welcome")).messages)
        await one.call_tool("g_login", {"user": "ada"})
        # At once: the request waits until the change has been read.
        assert "Describe ada" in str((await one.get_prompt("g_portrait")).messages)
        assert await offered(one) == TO_USERS
        assert "ada" in str((await one.read_resource("user://me")).contents)
        assert "notes of bob" in str((await one.read_resource("user://bob/notes")).contents)
        for gone in ("g_welcome", "g_hidden_portrait"):
            with pytest.raises(ToolNotFound):
                await one.get_prompt(gone)
        assert await offered(two) == TO_GUESTS
        with pytest.raises(ToolNotFound):
            await two.get_prompt("g_portrait")
        with pytest.raises(ToolNotFound):
            await two.read_resource("user://me")
        await one.release("growing")
        assert await offered(one) == TO_GUESTS


async def test_watches_yield_the_lists_of_their_session_until_the_lease_is_lost(
    place: Place,
) -> None:
    async with place.sdk.session("watched") as session, asyncio.timeout(2 * BOUND):
        lease = await session.acquire("growing")
        watch = session.watch_tools(["growing"])
        assert [tool.name for tool in await anext(watch)] == AT_FIRST
        prompts, resources = (
            session.watch_prompts(["growing"]),
            session.watch_resources(["growing"]),
        )
        assert [prompt.name for prompt in await anext(prompts)] == TO_GUESTS[0]
        assert [resource.uri for resource in await anext(resources)] == TO_GUESTS[1]
        others = asyncio.gather(anext(prompts), anext(resources))
        changed = asyncio.create_task(anext(watch))
        await session.call_tool("g_login", {"user": "ada"})
        assert [tool.name for tool in await changed] == LOGGED_IN
        of_user = await others
        assert [prompt.name for prompt in of_user[0]] == TO_USERS[0]
        assert [resource.uri for resource in of_user[1]] == TO_USERS[1]
        changed = asyncio.create_task(anext(watch))
        await place.sdk.revoke_lease(lease.id)
        with pytest.raises(LeaseRevoked):
            await changed


async def listed(client: Client) -> list[str]:
    tools = await client.list_tools(cache_mode="bypass")
    return sorted(tool.name for tool in tools.tools if tool.name.startswith("g_"))


@PLACES
async def test_a_client_of_mcp_is_told_and_listed_the_tools_of_its_session(
    place: Place, transport: str
) -> None:
    changed = asyncio.Event()

    async def on_message(message: object) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            changed.set()

    async with (
        Client(place.target(transport), mode="legacy", message_handler=on_message) as one,
        Client(place.target(transport), mode="legacy") as two,
        asyncio.timeout(2 * BOUND),
    ):
        assert await listed(one) == AT_FIRST
        await two.call_tool("g_add", {"a": 1, "b": 2})
        changed.clear()
        assert text_of(await one.call_tool("g_login", {"user": "ada"})) == "welcome"
        assert text_of(await one.call_tool("g_whoami", {"prefix": "I am"})) == "I am ada"
        assert await listed(one) == LOGGED_IN
        await changed.wait()
        assert (await one.call_tool("g_whoami", {"prefix": 5})).is_error
        with pytest.raises(MCPError):
            await one.call_tool("g_login", {"user": "eve"})
        assert await listed(two) == AT_FIRST
        with pytest.raises(MCPError):
            await two.call_tool("g_whoami", {"prefix": "I am"})


async def seen(client: Client) -> tuple[set[str], set[str], set[str]]:
    """Return the prompts, resources and templates of the growing server that a client sees."""
    prompts = (await client.list_prompts(cache_mode="bypass")).prompts
    resources = (await client.list_resources(cache_mode="bypass")).resources
    templates = (await client.list_resource_templates(cache_mode="bypass")).resource_templates
    return (
        {prompt.name for prompt in prompts if prompt.name.startswith("g_")},
        {str(resource.uri) for resource in resources},
        {template.uri_template for template in templates},
    )


@PLACES
async def test_a_client_of_mcp_is_told_and_listed_the_prompts_and_resources_of_its_session(
    place: Place, transport: str
) -> None:
    prompts, resources = asyncio.Event(), asyncio.Event()

    async def on_message(message: object) -> None:
        if isinstance(message, types.PromptListChangedNotification):
            prompts.set()
        elif isinstance(message, types.ResourceListChangedNotification):
            resources.set()

    async with (
        Client(place.target(transport), mode="legacy", message_handler=on_message) as one,
        Client(place.target(transport), mode="legacy") as two,
        asyncio.timeout(2 * BOUND),
    ):
        guests, users = (tuple(map(set, lists)) for lists in (TO_GUESTS, TO_USERS))
        assert await seen(one) == guests
        await one.call_tool("g_login", {"user": "ada"})
        await asyncio.gather(prompts.wait(), resources.wait())
        assert await seen(one) == users
        assert "Describe ada" in str((await one.get_prompt("g_portrait")).messages)
        assert "ada" in str((await one.read_resource("user://me")).contents)
        assert await seen(two) == guests
        with pytest.raises(MCPError):
            await two.get_prompt("g_portrait")


@pytest.mark.npm
@pytest.mark.parametrize("era", ERAS)
async def test_what_the_typescript_sdk_enables_and_disables_follows(place: Place, era: str) -> None:
    async def listed(client: Client) -> set[str]:
        tools = (await client.list_tools(cache_mode="bypass")).tools
        return {tool.name for tool in tools} & {"open", "close", "drill"}

    async def prompts(client: Client) -> list[types.Prompt]:
        return (await client.list_prompts(cache_mode="bypass")).prompts

    async with Client(place.url, mode=era) as client, asyncio.timeout(2 * BOUND):
        if "close" not in await listed(client):
            absent("npm", "The TypeScript SDK is missing; run `make npm-servers`.")
        assert text_of(await client.call_tool("open", {})) == "opened"
        assert await listed(client) == {"close", "drill"}
        assert "plan" in {prompt.name for prompt in await prompts(client)}
        assert text_of(await client.call_tool("drill", {})) == "drilled"
        await client.call_tool("close", {})
        assert await listed(client) == {"close", "open"}
        assert "plan" not in {prompt.name for prompt in await prompts(client)}


@pytest.mark.parametrize("transport", ["http", "stdio"])
async def test_a_stream_of_a_modern_client_brings_the_changes_of_its_session(
    place: Place, transport: str
) -> None:
    async with (
        Client(place.target(transport), mode="2026-07-28") as client,
        asyncio.timeout(2 * BOUND),
    ):
        await client.call_tool("g_add", {"a": 1, "b": 2})  # over HTTP, it brings the cookie
        async with listen(
            client.session,
            tools_list_changed=True,
            prompts_list_changed=True,
            resources_list_changed=True,
        ) as events:
            await client.call_tool("g_login", {"user": "ada"})
            expected = {ToolsListChanged, PromptsListChanged, ResourcesListChanged}
            while expected:
                expected.discard(type(await anext(aiter(events))))
            assert await listed(client) == LOGGED_IN
            assert await seen(client) == tuple(map(set, TO_USERS))


async def test_a_model_calls_a_tool_of_its_session_that_its_client_is_not_listed(
    place: Place,
) -> None:
    async with Client(place.url, mode="2026-07-28") as one, asyncio.timeout(2 * BOUND):
        result = await one.call_tool("g_login", {"user": "ada"})
        assert result.meta is not None
        session = result.meta["leaseway/session"]
        async with Client(place.url, mode="2026-07-28") as other:
            assert await listed(other) == AT_FIRST
            arguments = {"prefix": "I am", "session": session}
            assert text_of(await other.call_tool("g_whoami", arguments)) == "I am ada"


async def test_a_client_whose_lease_ends_is_told_at_once_that_it_sees_the_common_tools(
    place: Place,
) -> None:
    changes: asyncio.Queue[object] = asyncio.Queue()

    async def on_message(message: object) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            changes.put_nowait(message)

    async with (
        Client(place.url, mode="legacy", message_handler=on_message) as client,
        asyncio.timeout(2 * BOUND),
    ):
        others = {lease.id for lease in await place.sdk.leases()}
        await client.call_tool("g_login", {"user": "ada"})
        await changes.get()
        own = await new_lease(place, others)
        await place.sdk.revoke_lease(own)
        while await listed(client) != AT_FIRST:
            await changes.get()  # the login may be told more than once
        with pytest.raises(MCPError):
            await client.call_tool("g_add", {"a": 1, "b": 2})


async def new_lease(place: Place, others: set[str]) -> str:
    """Return the only lease that is new, once the control plane knows it."""
    found: list[str] = []

    async def is_known() -> bool:
        found[:] = [lease.id for lease in await place.sdk.leases() if lease.id not in others]
        return len(found) == 1

    await eventually(is_known)
    return found[0]


async def test_the_address_of_one_server_has_the_tools_of_its_session(place: Place) -> None:
    async with (
        Client(f"{place.url}/growing", mode="legacy") as client,
        asyncio.timeout(2 * BOUND),
    ):
        await client.call_tool("g_login", {"user": "ada"})
        assert text_of(await client.call_tool("g_whoami", {"prefix": "I am"})) == "I am ada"
        assert await listed(client) == LOGGED_IN
        with pytest.raises(MCPError, match="has no tool"):
            await client.call_tool("g_hidden_too", {})


async def test_a_search_finds_the_tools_of_a_session(place: Place) -> None:
    async with (
        front(place.system, "--tools", "search") as url,
        Client(url, mode="legacy") as client,
        asyncio.timeout(2 * BOUND),
    ):
        search = {"query": "say who has logged in"}
        assert "g_whoami" not in text_of(await client.call_tool("search_tools", search))
        call = {"name": "g_login", "arguments": {"user": "ada"}}
        await client.call_tool("call_tool", call)
        assert "g_whoami" in text_of(await client.call_tool("search_tools", search))
        defined = await client.call_tool("describe_tool", {"name": "g_whoami"})
        assert "prefix" in text_of(defined)
        call = {"name": "g_whoami", "arguments": {"prefix": "I am"}}
        assert text_of(await client.call_tool("call_tool", call)) == "I am ada"
