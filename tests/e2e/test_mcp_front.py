"""MCP clients of a whole system: HTTP and stdio, both eras, leases of their sessions."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import warnings
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import httpx2
import mcp_types as types
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import listen
from tests.conftest import BOUND
from tests.e2e.forking import fork_leaseway
from tests.e2e.mcp_front import (
    COUNTER,
    ERAS,
    INITIALIZE,
    JSON,
    PLACES,
    ROOTS,
    TRANSPORTS,
    Place,
    counters,
    echo,
    front,
    has_leases,
    stdio,
    text_of,
    write_config,
)
from tests.e2e.system import eventually, python_server, running
from tests.mcp_answers import response_in
from tests.ports import free_port
from tests.servers.pictures import png

from leaseway.sdk import AsyncClient, LeaseLost


async def send_roots(context: Any) -> Any:
    """Answer a server's request for roots."""
    return types.ListRootsResult.model_validate(ROOTS)


@pytest.fixture(scope="module")
async def place(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Place]:
    """Run one system with shared and leased servers of both eras, and a front at each place."""
    servers = {
        **COUNTER,
        "echo": echo("echo", "fail", "meta", "progress"),
        "bank": echo("echo", risk={"echo": "financial"}, transform=[{"prefix": "bank_"}]),
        "pictures": python_server("pictures.py"),
        "old": python_server(
            "asking_stdio.py", "--legacy", "--offers", transform=[{"prefix": "old_"}]
        ),
    }
    address = f"127.0.0.1:{free_port()}"
    made = running(tmp_path_factory.mktemp("system"), servers, worker_options=("--mcp", address))
    async with made as (system, sdk), front(system) as url:
        yield Place(system, sdk, url, f"http://{address}/mcp")


@pytest.fixture
async def uncounted(place: Place) -> None:
    """End leases of the counter, such as a failed test leaves behind."""
    for lease in await counters(place.sdk):
        with contextlib.suppress(LeaseLost):
            await place.sdk.revoke_lease(lease.id)
    await eventually(lambda: has_leases(place.sdk, 0))


@PLACES
async def test_the_official_client_lists_and_calls(place: Place, transport: str) -> None:
    for era in ERAS:
        async with Client(place.target(transport), mode=era) as client:
            assert (client.protocol_version == "2026-07-28") == (era == "2026-07-28")
            names = [tool.name for tool in (await client.list_tools()).tools]
            assert names == sorted(names)
            assert {"echo", "next", "old_ask"} <= set(names)
            result = await client.call_tool("echo", {"text": "ü\n"})
            assert (text_of(result), result.is_error) == ("ü\n", False)
            assert (await client.call_tool("fail", {"text": ""})).is_error
            wrong = await client.call_tool("echo", {"text": 7})
            assert wrong.is_error
            assert "$.text" in text_of(wrong)
            with pytest.raises(MCPError, match=r"no tool 'ecko'.*echo") as refused:
                await client.call_tool("ecko", {})
            assert refused.value.code == types.INVALID_PARAMS
            assert refused.value.data == {"reason": "TOOL_NOT_FOUND", "started": "no"}


@pytest.mark.parametrize("era", ERAS)
async def test_a_call_that_needs_approval_asks_the_user(place: Place, era: str) -> None:
    messages: list[str] = []

    async def user(context: Any, params: Any) -> Any:
        messages.append(params.message)
        if "later" in params.message:
            return types.ElicitResult(action="cancel")
        return types.ElicitResult(action="accept", content={"approve": "no" not in params.message})

    async with Client(place.url, mode=era, elicitation_callback=user) as client:
        result = await client.call_tool("bank_echo", {"text": f"yes {era}"})
        assert text_of(result) == f"yes {era}"
        with pytest.raises(MCPError, match="has denied") as denied:
            await client.call_tool("bank_echo", {"text": f"no {era}"})
        assert denied.value.data["reason"] == "PERMISSION_DENIED"
        assert [f"yes {era}" in messages[0], f"no {era}" in messages[1]] == [True, True]
        with pytest.raises(MCPError, match="needs a person's approval") as left:
            await client.call_tool("bank_echo", {"text": f"later {era}"})
        assert left.value.data["confirmationId"]
        assert len(messages) == 3  # its user is not asked again
    async with Client(place.url, mode=era) as client:
        with pytest.raises(MCPError, match="needs a person's approval") as needed:
            await client.call_tool("bank_echo", {"text": f"mute {era}"})
    approval = needed.value.data["confirmationId"]
    assert "leaseway" not in needed.value.message
    assert approval in [
        each_approval.id
        for each_approval in await place.sdk.approvals()
        if each_approval.state == "waiting"
    ]


@pytest.mark.parametrize("era", ERAS)
async def test_progress_arrives_before_the_result(place: Place, era: str) -> None:
    reports: list[tuple[float, float | None]] = []

    async def progress(progress: float, total: float | None, message: str | None) -> None:
        reports.append((progress, total))

    for count, transport in enumerate(("http", "stdio"), 1):
        async with Client(place.target(transport), mode=era) as client:
            await client.call_tool("progress", {"text": ""}, progress_callback=progress)
            await eventually(lambda count=count: reports == [(0, 3), (1, 3), (2, 3)] * count)


@pytest.mark.usefixtures("uncounted")
async def test_each_session_has_a_lease_that_ends_with_the_session(place: Place) -> None:
    system, sdk, url = place.system, place.sdk, place.url
    async with (
        Client(url, mode="legacy") as one,
        Client(url, mode="legacy") as other,
        Client(stdio(system), mode="2026-07-28") as third,
    ):
        for client in (one, one, other, third):
            assert not (await client.call_tool("next", {})).is_error

        async def are_reported() -> bool:
            return len(await counters(sdk)) == 3

        await eventually(are_reported)  # a worker reports at most ten times a second
        leases = await counters(sdk)
        assert len({lease.session for lease in leases}) == 3
    await eventually(lambda: has_leases(sdk, 0))


@pytest.mark.usefixtures("uncounted")
async def test_a_modern_call_without_a_session_releases_its_lease_at_the_end(place: Place) -> None:
    async with (
        front(place.system, "--sessions-from", "handle") as url,
        Client(url, mode="2026-07-28") as client,
    ):
        assert not (await client.call_tool("next", {})).is_error
        await eventually(lambda: has_leases(place.sdk, 0))


async def test_the_address_of_one_server_shows_only_its_tools(place: Place) -> None:
    system, url = place.system, place.url
    for target in (f"{url}/counter", stdio(system, "--server", "counter")):
        async with Client(target, mode="legacy") as client:
            tools = {tool.name for tool in (await client.list_tools()).tools}
            assert "next" in tools
            assert not tools & {"echo", "old_ask"}
            with pytest.raises(MCPError, match="'counter' has no tool 'echo'"):
                await client.call_tool("echo", {"text": "x"})
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{url}/conter", json=INITIALIZE, headers=JSON) as answer,
    ):
        assert answer.status == 404
        assert "'counter'" in (await answer.json())["error"]["message"]


async def test_a_legacy_session_id_is_valid_until_the_session_is_deleted(place: Place) -> None:
    url = place.url
    async with aiohttp.ClientSession(headers=JSON) as http:
        async with http.post(url, json=INITIALIZE) as answer:
            session = {"Mcp-Session-Id": answer.headers["Mcp-Session-Id"]}
            assert (await answer.json())["result"]["protocolVersion"] == "2025-11-25"
        ping = {"jsonrpc": "2.0", "id": "a", "method": "ping"}
        for headers, status in (
            (session, 200),
            ({}, 200),
            ({"Mcp-Session-Id": "invented"}, 404),
            ({**session, "MCP-Protocol-Version": "1999-01-01"}, 400),
        ):
            async with http.post(url, json=ping, headers=headers) as answer:
                assert answer.status == status, headers
        async with http.delete(url, headers=session) as answer:
            assert answer.status == 204
        async with http.post(url, json=ping, headers=session) as answer:
            assert answer.status == 404


@pytest.mark.usefixtures("uncounted")
async def test_a_modern_request_with_a_session_header_keeps_the_lease(place: Place) -> None:
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"name": "next", "arguments": {}, "_meta": meta}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    headers = {
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "tools/call",
        "Mcp-Name": "next",
    }
    async with aiohttp.ClientSession(headers=JSON) as http:
        async with http.post(place.url, json=INITIALIZE) as answer:
            session = answer.headers["Mcp-Session-Id"]
        carrying = {**headers, "Leaseway-Session": session}
        for _ in range(2):
            async with http.post(place.url, json=message, headers=carrying) as answer:
                assert (await response_in(answer))["result"]["resultType"] == "complete"
        await eventually(lambda: has_leases(place.sdk, 1))
        async with http.delete(place.url, headers={"Mcp-Session-Id": session}) as answer:
            assert answer.status == 204
        await eventually(lambda: has_leases(place.sdk, 0))


@PLACES
async def test_a_modern_client_answers_the_requests_of_a_legacy_server(
    place: Place, transport: str
) -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    form = {"message": "Name?", "mode": "form", "requestedSchema": schema}
    questions = [{"method": "elicitation/create", "params": form}, {"method": "roots/list"}]

    async def user(context: Any, params: Any) -> Any:
        return types.ElicitResult(action="accept", content={"name": params.message})

    target = place.target(transport)
    async with Client(
        target, mode="2026-07-28", elicitation_callback=user, list_roots_callback=send_roots
    ) as client:
        result = await client.call_tool("old_ask", {"questions": questions})
        assert json.loads(text_of(result)) == [
            {"action": "accept", "content": {"name": "Name?"}},
            ROOTS,
        ]
    async with Client(target, mode="2026-07-28", elicitation_callback=user) as client:
        result = await client.call_tool("old_ask", {"questions": questions})
        accepted, refused = json.loads(text_of(result))
        assert accepted["action"] == "accept"
        assert refused["code"] < 0


@pytest.mark.parametrize("era", ERAS)
async def test_a_server_gets_an_error_for_what_its_client_has_not_declared(
    place: Place, era: str
) -> None:
    form = {"message": "Name?", "requestedSchema": {"type": "object", "properties": {}}}
    questions = [
        {"method": "elicitation/create", "params": form},
        {"method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 8}},
        {"method": "roots/list"},
    ]
    async with Client(place.url, mode=era) as client, asyncio.timeout(BOUND):
        result = await client.call_tool("old_ask", {"questions": questions})
    assert [reply["code"] for reply in json.loads(text_of(result))] == [-32601] * 3


@pytest.mark.parametrize("mode", ERAS)
async def test_a_legacy_server_sends_requests_during_prompts_and_resources(
    place: Place, mode: str
) -> None:
    async with Client(place.url, mode=mode, list_roots_callback=send_roots) as client:
        named = {prompt.name for prompt in (await client.list_prompts()).prompts}
        (name,) = [each_name for each_name in named if each_name.endswith("interview")]
        prompt = await client.get_prompt(name)
        assert json.loads(prompt.messages[0].content.text) == ROOTS  # type: ignore[union-attr]
        read = await client.read_resource("memo://roots")
        assert json.loads(read.contents[0].text) == ROOTS  # type: ignore[union-attr]


@pytest.mark.parametrize("mode", ERAS)
async def test_meta_of_the_client_reaches_the_server_without_reserved_keys(
    place: Place, mode: str
) -> None:
    sent = {"com.example/note": {"n": [1]}, "baggage": "a=b", "x.mcp/y": 1, "leaseway/other": 1}
    meta: Any = {**sent, "io.modelcontextprotocol/z": 1}
    async with Client(place.url, mode=mode) as client:
        received = json.loads(text_of(await client.call_tool("meta", {}, meta=meta)))
        assert received["com.example/note"] == {"n": [1]}
        assert received["baggage"] == "a=b"
        assert not {"x.mcp/y", "leaseway/other", "io.modelcontextprotocol/z"} & received.keys()
        meta["com.example/long"] = "x" * 20_000
        with pytest.raises(MCPError, match="16384"):
            await client.call_tool("meta", {}, meta=meta)


@pytest.mark.usefixtures("uncounted")
async def test_a_modern_client_acquires_a_lease_by_handle(place: Place) -> None:
    async with Client(place.url, mode="2026-07-28") as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert names == sorted(names)
        assert {"lease_acquire", "lease_release"} <= set(names)
        leased = await client.call_tool("lease_acquire", {"serverId": "counter"})
        assert leased.structured_content is not None
        handle = leased.structured_content["handle"]
        meta: Any = {"leaseway/session": handle}
        for _ in range(3):
            assert not (await client.call_tool("next", {}, meta=meta)).is_error
        await eventually(lambda: has_leases(place.sdk, 1))
        for wrong in ({}, {"handle": 1}, {"serverId": "counter"}):
            with pytest.raises(MCPError):
                await client.call_tool("lease_release", wrong)
        with pytest.raises(MCPError, match="nowhere"):
            await client.call_tool("lease_acquire", {"serverId": "nowhere"})
        released = await client.call_tool("lease_release", {"handle": handle})
        assert released.structured_content == {"released": True}
        await eventually(lambda: has_leases(place.sdk, 0))
        again = await client.call_tool("lease_release", {"handle": handle})
        assert again.structured_content == {"released": False}
        with pytest.raises(MCPError, match="Call lease_acquire for a new one"):
            await client.call_tool("next", {}, meta=meta)
        with pytest.raises(MCPError, match="It accepts serverId"):
            await client.call_tool("lease_acquire", {"server": "counter"})
    async with Client(place.url, mode="legacy") as client:
        assert "lease_acquire" not in [tool.name for tool in (await client.list_tools()).tools]


@pytest.mark.usefixtures("uncounted")
async def test_over_stdio_each_handle_has_its_own_lease(place: Place) -> None:
    searching = stdio(place.system, "--tools", "search")
    async with Client(searching, mode="2026-07-28") as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert {"lease_acquire", "lease_release"} <= names
        assert not (await client.call_tool("next", {})).is_error
        await eventually(lambda: has_leases(place.sdk, 1))
        for count in (2, 3):
            leased = await client.call_tool("mcp_admin:lease_acquire", {"serverId": "counter"})
            await eventually(lambda count=count: has_leases(place.sdk, count))
        assert leased.structured_content is not None
        meta: Any = {"leaseway/session": leased.structured_content["handle"]}
        assert not (await client.call_tool("next", {}, meta=meta)).is_error
        released = await client.call_tool("lease_release", {}, meta=meta)
        assert released.structured_content == {"released": True}
        await eventually(lambda: has_leases(place.sdk, 2))
        with pytest.raises(MCPError, match="Unknown handle"):
            await client.call_tool("next", {}, meta=meta)
        with pytest.raises(MCPError, match="`handle` is missing"):
            await client.call_tool("lease_release", {})
    await eventually(lambda: has_leases(place.sdk, 0))


async def test_hidden_handles_are_neither_listed_nor_served(place: Place) -> None:
    hidden = stdio(place.system, "--no-handles")
    async with Client(hidden, mode="2026-07-28") as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert "next" in names
        assert not {"lease_acquire", "lease_release"} & names
        with pytest.raises(MCPError, match="lease_acquire"):
            await client.call_tool("lease_acquire", {"serverId": "counter"})


@TRANSPORTS
@pytest.mark.parametrize("era", ERAS)
async def test_media_are_links_if_the_request_asks_for_links(
    place: Place, transport: str, era: str
) -> None:
    target = place.target(transport)
    async with Client(target, mode=era) as client:
        meta: Any = {"leaseway/media": "links"}
        if transport == "http" and era != "legacy":
            inline = await client.call_tool("pixel", {"color": [1, 2, 3]}, meta=meta)
            assert inline.content[0].type == "image", "no session could read a link"
            leased = await client.call_tool("lease_acquire", {"serverId": "pictures"})
            assert leased.structured_content is not None
            meta["leaseway/session"] = leased.structured_content["handle"]
        result = await client.call_tool("gallery", {}, meta=meta)
        assert [item.type for item in result.content] == ["text", *["resource_link"] * 3]
        link = result.content[1]
        assert isinstance(link, types.ResourceLink)
        assert (link.mime_type, link.size) == ("image/png", len(png(255, 0, 0)))
        contents = (await client.read_resource(link.uri, meta=meta)).contents[0]
        assert isinstance(contents, types.BlobResourceContents)
        assert base64.b64decode(contents.blob) == png(255, 0, 0)
        prompt = await client.get_prompt("describe", meta=meta)
        assert prompt.messages[0].content.type == "resource_link"
        meta["leaseway/media"] = "inline"
        plain = await client.call_tool("gallery", {}, meta=meta)
        assert [item.type for item in plain.content] == ["text", "image", "audio", "image"]
        meta["leaseway/media"] = "small"
        with pytest.raises(MCPError, match="`inline` or `links`"):
            await client.call_tool("gallery", {}, meta=meta)
    async with Client(place.url, mode=era) as other:
        with pytest.raises(MCPError, match="no artifact") as lost:
            await other.read_resource(link.uri)
        assert lost.value.code == (-32002 if era == "legacy" else types.INVALID_PARAMS)


async def test_a_header_or_an_option_asks_for_links(place: Place) -> None:
    async with (
        httpx2.AsyncClient(headers={"Leaseway-Media": "links"}) as http,
        Client(streamable_http_client(place.url, http_client=http), mode="legacy") as client,
    ):
        for _ in range(2):  # from the second call on, the server is known
            result = await client.call_tool("pixel", {"color": [1, 2, 3]})
            assert result.content[0].type == "resource_link"
    async with Client(stdio(place.system, "--media", "links"), mode="2026-07-28") as client:
        result = await client.call_tool("pixel", {"color": [1, 2, 3]})
        assert result.content[0].type == "resource_link"


async def lists_echo(client: Client) -> bool:
    listed = await client.list_tools(cache_mode="bypass")
    return "echo" in [tool.name for tool in listed.tools]


@TRANSPORTS
async def test_changed_tools_are_notified_in_both_eras(tmp_path: Path, transport: str) -> None:
    notified = asyncio.Event()

    async def on_message(message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            notified.set()

    async with running(tmp_path, COUNTER) as (system, sdk), front(system) as url:
        place = Place(system, sdk, url)
        async with (
            Client(place.target(transport), mode="legacy", message_handler=on_message) as legacy,
            Client(place.target(transport), mode="2026-07-28") as modern,
            listen(modern.session, tools_list_changed=True) as changes,
        ):
            await legacy.list_tools()
            system.write({**COUNTER, "more": echo("echo")})
            async with asyncio.timeout(2 * BOUND):
                assert type(await anext(aiter(changes))).__name__ == "ToolsListChanged"
                await notified.wait()
            for client in (legacy, modern):
                await eventually(lambda client=client: lists_echo(client))


@TRANSPORTS
async def test_what_a_leased_server_says_after_its_calls_reaches_the_official_client(
    tmp_path: Path, transport: str
) -> None:
    logs: asyncio.Queue[types.LoggingMessageNotificationParams] = asyncio.Queue()
    completed: asyncio.Queue[str] = asyncio.Queue()

    async def on_log(params: types.LoggingMessageNotificationParams) -> None:
        logs.put_nowait(params)

    async def on_message(message: Any) -> None:
        if isinstance(message, types.ElicitCompleteNotification):
            completed.put_nowait(message.params.elicitation_id)

    servers = {"teller": python_server("teller.py")}
    async with running(tmp_path, servers) as (system, sdk), front(system) as url:
        target = Place(system, sdk, url).target(transport)
        async with (
            Client(
                target, mode="legacy", logging_callback=on_log, message_handler=on_message
            ) as client,
            asyncio.timeout(2 * BOUND),
        ):
            with warnings.catch_warnings(action="ignore"):  # the package deprecates logging
                await client.set_logging_level("warning")
            assert text_of(await client.call_tool("tell", {})) == "told"
            assert await completed.get() == "e1"
            log = await logs.get()
            assert (log.level, log.logger, log.data) == ("warning", "later", {"said": "loud"})
            assert logs.empty()


async def test_up_serves_mcp(tmp_path: Path) -> None:
    config = write_config(tmp_path, {"echo": echo("echo")})
    addresses = ("--listen", "127.0.0.1:0", "--mcp", "127.0.0.1:0")
    process = await fork_leaseway(("up", "--config", str(config), *addresses), os.environ, None)
    try:
        async with asyncio.timeout(2 * BOUND):
            while not (line := (await process.stdout.readline()).decode()).startswith("mcp "):
                assert line
        async with Client(line.split()[1], mode="2026-07-28") as client:
            assert text_of(await client.call_tool("echo", {"text": "up"})) == "up"
    finally:
        process.terminate()
        assert await process.wait() == 0


async def is_calling(client: AsyncClient) -> bool:
    return any(worker.in_flight for worker in await client.workers(load=True))


async def test_a_stopping_system_finishes_the_calls_of_mcp_clients(tmp_path: Path) -> None:
    slow = python_server("echo_raw.py", tools={"whitelist": ["slow"]})
    config = write_config(tmp_path, {"echo": slow})
    addresses = ("--listen", "127.0.0.1:0", "--mcp", "127.0.0.1:0")
    process = await fork_leaseway(("up", "--config", str(config), *addresses), os.environ, None)
    params = {"name": "slow", "arguments": {"seconds": 4}}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    try:
        async with asyncio.timeout(2 * BOUND):
            address = (await process.stdout.readline()).decode().split()[1]
            while not (line := (await process.stdout.readline()).decode()).startswith("mcp "):
                assert line
            url = line.split()[1]
            async with aiohttp.ClientSession(headers=JSON) as http, AsyncClient(address) as client:
                opened = await http.post(url, json=INITIALIZE)
                session = {"Mcp-Session-Id": opened.headers["Mcp-Session-Id"]}
                running = asyncio.create_task(http.post(url, json=call, headers=session))
                await eventually(lambda: is_calling(client))
                process.terminate()
                answer = await (await running).text()
        assert '"text":"slow"' in answer.replace(" ", "")
    finally:
        if process.returncode is None:
            process.terminate()
        assert await process.wait() == 0


@pytest.mark.parametrize("says", ["conversation", "cookie", "nothing"])
async def test_a_host_that_initializes_before_each_call_has_one_process_per_conversation(
    place: Place, says: str
) -> None:
    async def pids(conversation: str) -> list[str]:
        jar = aiohttp.CookieJar(unsafe=True) if says == "cookie" else aiohttp.DummyCookieJar()
        meta = {"openai/session": conversation} if says == "conversation" else {}
        params = {"name": "pid", "arguments": {}, "_meta": meta}
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        seen: list[str] = []
        async with aiohttp.ClientSession(headers=JSON, cookie_jar=jar) as http:
            for number in range(20):
                session: dict[str, str] = {}
                if says != "cookie" or not number:
                    async with http.post(place.url, json=INITIALIZE) as answer:
                        session = {"Mcp-Session-Id": answer.headers["Mcp-Session-Id"]}
                if says == "cookie":
                    session = {}
                async with http.post(place.url, json=message, headers=session) as answer:
                    seen.append((await response_in(answer))["result"]["content"][0]["text"])
        return seen

    one, other = await pids("one"), await pids("other")
    assert not set(one) & set(other)
    expected = 20 if says == "nothing" else 1
    assert (len(set(one)), len(set(other))) == (expected, expected)
    assert len(await counters(place.sdk)) <= 16
