"""MCP clients before a whole system: HTTP and stdio, both eras, leases behind their sessions."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import httpx2
import mcp_types as types
import pytest
import yaml
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import listen
from tests.conftest import BOUND, descendants
from tests.e2e.system import LEASEWAY, System, eventually, kit, python_server, running
from tests.servers.pictures import png

from leaseway.sdk import AsyncClient

ERAS = ("legacy", "2026-07-28")
JSON = {"Accept": "application/json, text/event-stream"}
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "0"},
    },
}


@dataclass(frozen=True)
class Place:
    """A system with a front.

    Attributes:
        system: Its processes.
        sdk: A client of it.
        url: Where its front serves MCP.
    """

    system: System
    sdk: AsyncClient
    url: str


def servers(root: Path) -> dict[str, object]:
    """Return shared and leased servers, of both eras."""
    return {
        "official": python_server("official_stdio.py", **{"truely-stateless": True}),
        "files": kit(root),
        "bank": python_server(
            "official_stdio.py",
            **{"truely-stateless": True, "risk": {"echo": "financial"}},
            transform=[{"prefix": "bank_"}],
        ),
        "raw": python_server(
            "echo_raw.py",
            **{"truely-stateless": True},
            tools={"whitelist": ["meta"]},
            transform=[{"prefix": "raw_"}],
        ),
        "pictures": python_server("pictures.py"),
        "old": python_server(
            "asking_stdio.py", "--legacy", "--offers", transform=[{"prefix": "old_"}]
        ),
    }


@asynccontextmanager
async def front(system: System, *options: str) -> AsyncIterator[str]:
    """Run a front before a system; gives its URL."""
    part = await system._start(
        "mcp-front", "--control-plane", system.address, "--listen", "127.0.0.1:0", *options
    )
    try:
        yield f"http://{part.address}/mcp"
    finally:
        await part.end()
        print("\n".join(part.log))


def stdio(system: System, *options: str) -> StdioServerParameters:
    """Return how a desktop client starts the front."""
    command, *arguments = LEASEWAY
    words = [*arguments, "mcp", "--address", system.address, *options]
    return StdioServerParameters(command=command, args=words)


@pytest.fixture(scope="module")
async def place(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Place]:
    """Run one system with one front for all tests here."""
    folder = tmp_path_factory.mktemp("system")
    async with running(folder, servers(folder)) as (system, sdk), front(system) as url:
        yield Place(system, sdk, url)


@pytest.mark.parametrize("over", ["http", "stdio"])
async def test_the_official_client_lists_and_calls_in_both_eras(place: Place, over: str) -> None:
    system, url = place.system, place.url
    for era in ERAS:
        async with Client(url if over == "http" else stdio(system), mode=era) as client:
            assert (client.protocol_version == "2026-07-28") == (era == "2026-07-28")
            names = [tool.name for tool in (await client.list_tools()).tools]
            assert names == sorted(names)
            assert {"echo", "list_files", "old_ask"} <= set(names)
            said = await client.call_tool("echo", {"text": "ü\n"})
            assert (text_of(said), said.is_error) == ("ü\n", False)
            assert (await client.call_tool("fail", {"text": ""})).is_error
            wrong = await client.call_tool("echo", {"text": 7})
            assert wrong.is_error
            assert "$.text" in text_of(wrong)
            with pytest.raises(MCPError, match=r"no tool 'ecko'.*echo") as refused:
                await client.call_tool("ecko", {})
            assert refused.value.code == types.INVALID_PARAMS
            assert refused.value.data == {"reason": "TOOL_NOT_FOUND", "started": "no"}


@pytest.mark.parametrize("era", ERAS)
async def test_a_call_that_needs_a_person_asks_the_clients_user(place: Place, era: str) -> None:
    asked: list[str] = []

    async def user(context: Any, params: Any) -> Any:
        asked.append(params.message)
        return types.ElicitResult(action="accept", content={"approve": "no" not in params.message})

    async with Client(place.url, mode=era, elicitation_callback=user) as client:
        said = await client.call_tool("bank_echo", {"text": f"yes {era}"})
        assert text_of(said) == f"yes {era}"
        with pytest.raises(MCPError, match="has denied") as denied:
            await client.call_tool("bank_echo", {"text": f"no {era}"})
        assert denied.value.data["reason"] == "PERMISSION_DENIED"
        assert [f"yes {era}" in asked[0], f"no {era}" in asked[1]] == [True, True]
    async with Client(place.url, mode=era) as client:
        with pytest.raises(MCPError, match="leaseway approvals approve") as needed:
            await client.call_tool("bank_echo", {"text": f"mute {era}"})
    approval = needed.value.data["confirmationId"]
    assert approval in [one.id for one in await place.sdk.approvals() if one.state == "waiting"]


@pytest.mark.parametrize("era", ERAS)
async def test_progress_comes_before_the_result(place: Place, era: str) -> None:
    told: list[tuple[float, float | None]] = []

    async def progress(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, total))

    targets: tuple[str | StdioServerParameters, ...] = (place.url, stdio(place.system))
    for count, target in enumerate(targets, 1):
        async with Client(target, mode=era) as client:
            await client.call_tool("progress", {"text": ""}, progress_callback=progress)
            await eventually(lambda count=count: told == [(0, 3), (1, 3), (2, 3)] * count)


async def test_a_session_is_a_lease_that_ends_with_it(place: Place) -> None:
    system, sdk, url = place.system, place.sdk, place.url
    async with (
        Client(url, mode="legacy") as one,
        Client(url, mode="legacy") as other,
        Client(stdio(system), mode="2026-07-28") as third,
    ):
        for client in (one, one, other, third):
            assert not (await client.call_tool("list_files", {})).is_error
        leases = await sdk.leases()
        assert [lease.server_id for lease in leases] == ["files"] * 3
        assert len({lease.session for lease in leases}) == 3
    await eventually(lambda: no_leases(sdk))


async def test_a_modern_client_without_a_session_leases_for_one_call(place: Place) -> None:
    sdk, url = place.sdk, place.url
    async with Client(url, mode="2026-07-28") as client:
        assert not (await client.call_tool("list_files", {})).is_error
        await eventually(lambda: no_leases(sdk))


async def test_one_servers_address_shows_that_server_alone(place: Place) -> None:
    system, url = place.system, place.url
    for target in (f"{url}/files", stdio(system, "--server", "files")):
        async with Client(target, mode="legacy") as client:
            tools = {tool.name for tool in (await client.list_tools()).tools}
            assert "list_files" in tools
            assert not tools & {"echo", "old_ask"}
            with pytest.raises(MCPError, match="'files' has no tool 'echo'"):
                await client.call_tool("echo", {"text": "x"})
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{url}/fils", json=INITIALIZE, headers=JSON) as answer,
    ):
        assert answer.status == 404
        assert "'files'" in (await answer.json())["error"]["message"]


async def test_a_legacy_session_is_known_by_its_id_until_it_is_deleted(place: Place) -> None:
    url = place.url
    async with aiohttp.ClientSession(headers=JSON) as http:
        async with http.post(url, json=INITIALIZE) as answer:
            session = {"Mcp-Session-Id": answer.headers["Mcp-Session-Id"]}
            assert (await answer.json())["result"]["protocolVersion"] == "2025-11-25"
        ping = {"jsonrpc": "2.0", "id": "a", "method": "ping"}
        for headers, status in (
            (session, 200),
            ({}, 400),
            ({"Mcp-Session-Id": "invented"}, 404),
            ({**session, "MCP-Protocol-Version": "1999-01-01"}, 400),
        ):
            async with http.post(url, json=ping, headers=headers) as answer:
                assert answer.status == status, headers
        async with http.delete(url, headers=session) as answer:
            assert answer.status == 204
        async with http.post(url, json=ping, headers=session) as answer:
            assert answer.status == 404


def text_of(result: types.CallToolResult) -> str:
    """Return the text of a result."""
    return "".join(item.text for item in result.content if isinstance(item, types.TextContent))


async def has_leases(sdk: AsyncClient, count: int) -> bool:
    """Say whether so many leases are held."""
    return len(await sdk.leases()) == count


async def no_leases(sdk: AsyncClient) -> bool:
    """Say whether nothing is leased."""
    return not await sdk.leases()


async def test_over_stdio_it_runs_the_servers_of_a_file_itself(tmp_path: Path) -> None:
    config = tmp_path / "mcp.yaml"
    config.write_text(yaml.safe_dump({"version": 1, "servers": servers(tmp_path)}))
    command, *arguments = LEASEWAY
    words = [*arguments, "mcp", "--config", str(config)]
    server = StdioServerParameters(command=command, args=words)
    before = set(descendants(os.getpid()))
    async with Client(server, mode="legacy") as client:
        assert {"echo", "list_files"} <= {tool.name for tool in (await client.list_tools()).tools}
        assert text_of(await client.call_tool("echo", {"text": "here"})) == "here"
        assert not (await client.call_tool("list_files", {})).is_error
    await eventually(lambda: not set(descendants(os.getpid())) - before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_over_stdio_a_signal_ends_it_and_its_servers(
    tmp_path: Path, number: signal.Signals
) -> None:
    config = tmp_path / "mcp.yaml"
    config.write_text(yaml.safe_dump({"version": 1, "servers": {"files": kit(tmp_path)}}))
    before = set(descendants(os.getpid()))
    process = await asyncio.create_subprocess_exec(
        *LEASEWAY,
        *("mcp", "--config", str(config)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "list_files"}}
    async with asyncio.timeout(2 * BOUND):
        for message in (INITIALIZE, call):
            process.stdin.write(json.dumps(message).encode() + b"\n")
            answer = json.loads(await process.stdout.readline())
            assert "result" in answer, answer
        assert len(set(descendants(os.getpid())) - before) > 2, "a server runs behind the planes"
        process.send_signal(number)
        assert await process.stdout.read() == b""
        assert await process.wait() == 0
    await eventually(lambda: not set(descendants(os.getpid())) - before)


async def test_a_signal_before_it_serves_ends_it_and_its_planes(tmp_path: Path) -> None:
    config = tmp_path / "mcp.yaml"
    config.write_text(yaml.safe_dump({"version": 1, "servers": {"files": kit(tmp_path)}}))
    before = set(descendants(os.getpid()))
    process = await asyncio.create_subprocess_exec(
        *LEASEWAY,
        *("mcp", "--config", str(config)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    async with asyncio.timeout(2 * BOUND):
        await eventually(lambda: len(set(descendants(os.getpid())) - before) > 1)
        process.terminate()
        assert await process.stdout.read() == b""
        assert await process.wait() == 0
    await eventually(lambda: not set(descendants(os.getpid())) - before)


async def test_a_broken_file_is_told_to_the_client_until_it_is_mended(tmp_path: Path) -> None:
    config = tmp_path / "mcp.yaml"
    config.write_text("version: 1\nservers:\n  files: {transport: stdio\n")
    command, *arguments = LEASEWAY
    words = [*arguments, "mcp", "--config", str(config)]
    server = StdioServerParameters(command=command, args=words)
    async with Client(server, mode="legacy") as client:
        with pytest.raises(MCPError, match=r"mcp.yaml:4:1: This is not valid YAML") as broken:
            await client.list_tools()
        assert broken.value.data["reason"] == "BAD_YAML"
        config.write_text(yaml.safe_dump({"version": 1, "servers": {"files": kit(tmp_path)}}))

        async def is_listed() -> bool:
            try:
                return bool((await client.list_tools()).tools)
            except MCPError:
                return False

        await eventually(is_listed)


async def test_a_file_that_is_not_there_is_told_and_nothing_is_served(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *LEASEWAY,
        *("mcp", "--config", str(tmp_path / "none.yaml")),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    said, told = await process.communicate()
    assert (process.returncode, said) == (2, b"")
    assert b"none.yaml" in told


async def test_a_modern_client_that_carries_a_session_keeps_its_lease(place: Place) -> None:
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"name": "list_files", "arguments": {}, "_meta": meta}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    headers = {
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "tools/call",
        "Mcp-Name": "list_files",
    }
    async with aiohttp.ClientSession(headers=JSON) as http:
        async with http.post(place.url, json=INITIALIZE) as answer:
            session = answer.headers["Mcp-Session-Id"]
        carrying = {**headers, "Leaseway-Session": session}
        for _ in range(2):
            async with http.post(place.url, json=message, headers=carrying) as answer:
                assert (await answer.json())["result"]["resultType"] == "complete"
        assert len(await place.sdk.leases()) == 1
        async with http.delete(place.url, headers={"Mcp-Session-Id": session}) as answer:
            assert answer.status == 204
        await eventually(lambda: no_leases(place.sdk))


@pytest.mark.parametrize("over", ["http", "stdio"])
async def test_a_modern_client_answers_what_a_legacy_server_asks(place: Place, over: str) -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    form = {"message": "Name?", "mode": "form", "requestedSchema": schema}
    questions = [{"method": "elicitation/create", "params": form}, {"method": "roots/list"}]

    async def person(context: Any, params: Any) -> Any:
        return types.ElicitResult(action="accept", content={"name": params.message})

    async def roots(context: Any) -> Any:
        return types.ListRootsResult.model_validate({"roots": [{"uri": "file:///srv/data"}]})

    target = place.url if over == "http" else stdio(place.system)
    async with Client(
        target, mode="2026-07-28", elicitation_callback=person, list_roots_callback=roots
    ) as client:
        said = await client.call_tool("old_ask", {"questions": questions})
        assert json.loads(text_of(said)) == [
            {"action": "accept", "content": {"name": "Name?"}},
            {"roots": [{"uri": "file:///srv/data"}]},
        ]
    async with Client(target, mode="2026-07-28", elicitation_callback=person) as client:
        said = await client.call_tool("old_ask", {"questions": questions})
        accepted, refused = json.loads(text_of(said))
        assert accepted["action"] == "accept"
        assert refused["code"] < 0


@pytest.mark.parametrize("mode", ERAS)
async def test_a_legacy_server_asks_during_its_prompts_and_resources(
    place: Place, mode: str
) -> None:
    async def roots(context: Any) -> Any:
        return types.ListRootsResult.model_validate({"roots": [{"uri": "file:///srv/data"}]})

    answered = {"roots": [{"uri": "file:///srv/data"}]}
    async with Client(place.url, mode=mode, list_roots_callback=roots) as client:
        named = {prompt.name for prompt in (await client.list_prompts()).prompts}
        (name,) = [each for each in named if each.endswith("interview")]
        prompt = await client.get_prompt(name)
        assert json.loads(prompt.messages[0].content.text) == answered  # type: ignore[union-attr]
        read = await client.read_resource("memo://roots")
        assert json.loads(read.contents[0].text) == answered  # type: ignore[union-attr]


@pytest.mark.parametrize("mode", ERAS)
async def test_a_clients_own_meta_reaches_the_server_and_no_key_of_its_connection(
    place: Place, mode: str
) -> None:
    sent = {"com.example/note": {"n": [1]}, "baggage": "a=b", "x.mcp/y": 1, "leaseway/other": 1}
    meta: Any = {**sent, "io.modelcontextprotocol/z": 1}
    async with Client(place.url, mode=mode) as client:
        said = json.loads(text_of(await client.call_tool("raw_meta", {}, meta=meta)))
        assert said["com.example/note"] == {"n": [1]}
        assert said["baggage"] == "a=b"
        assert not {"x.mcp/y", "leaseway/other", "io.modelcontextprotocol/z"} & said.keys()
        meta["com.example/long"] = "x" * 20_000
        with pytest.raises(MCPError, match="16384"):
            await client.call_tool("raw_meta", {}, meta=meta)


async def test_a_modern_client_leases_by_a_handle_that_it_carries(place: Place) -> None:
    async with Client(place.url, mode="2026-07-28") as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert names == sorted(names)
        assert {"lease_acquire", "lease_release"} <= set(names)
        leased = await client.call_tool("lease_acquire", {"serverId": "files"})
        assert leased.structured_content is not None
        handle = leased.structured_content["handle"]
        meta: Any = {"leaseway/session": handle}
        for _ in range(3):
            assert not (await client.call_tool("list_files", {}, meta=meta)).is_error
        await eventually(lambda: has_leases(place.sdk, 1))
        for wrong in ({}, {"handle": 1}, {"serverId": "files"}):
            with pytest.raises(MCPError):
                await client.call_tool("lease_release", wrong)
        with pytest.raises(MCPError, match="nowhere"):
            await client.call_tool("lease_acquire", {"serverId": "nowhere"})
        released = await client.call_tool("lease_release", {"handle": handle})
        assert released.structured_content == {"released": True}
        await eventually(lambda: no_leases(place.sdk))
        again = await client.call_tool("lease_release", {"handle": handle})
        assert again.structured_content == {"released": False}
        with pytest.raises(MCPError, match="Call lease_acquire for a new one"):
            await client.call_tool("list_files", {}, meta=meta)
        with pytest.raises(MCPError, match="It accepts serverId"):
            await client.call_tool("lease_acquire", {"server": "files"})
    async with Client(place.url, mode="legacy") as client:
        assert "lease_acquire" not in [tool.name for tool in (await client.list_tools()).tools]


async def test_over_stdio_handles_lease_beside_the_connections_own_session(place: Place) -> None:
    searching = stdio(place.system, "--tools", "search")
    async with Client(searching, mode="2026-07-28") as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert {"lease_acquire", "lease_release"} <= names
        assert not (await client.call_tool("list_files", {})).is_error
        await eventually(lambda: has_leases(place.sdk, 1))
        for count in (2, 3):
            leased = await client.call_tool("mcp_admin:lease_acquire", {"serverId": "files"})
            await eventually(lambda count=count: has_leases(place.sdk, count))
        assert leased.structured_content is not None
        meta: Any = {"leaseway/session": leased.structured_content["handle"]}
        assert not (await client.call_tool("list_files", {}, meta=meta)).is_error
        released = await client.call_tool("lease_release", {}, meta=meta)
        assert released.structured_content == {"released": True}
        await eventually(lambda: has_leases(place.sdk, 2))
        with pytest.raises(MCPError, match="Unknown handle"):
            await client.call_tool("list_files", {}, meta=meta)
        with pytest.raises(MCPError, match="`handle` is missing"):
            await client.call_tool("lease_release", {})
    await eventually(lambda: no_leases(place.sdk))


async def test_handles_are_neither_listed_nor_served_where_they_are_hidden(place: Place) -> None:
    hidden = stdio(place.system, "--no-handles")
    async with Client(hidden, mode="2026-07-28") as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert "list_files" in names
        assert not {"lease_acquire", "lease_release"} & names
        with pytest.raises(MCPError, match="lease_acquire"):
            await client.call_tool("lease_acquire", {"serverId": "files"})


@pytest.mark.parametrize("over", ["http", "stdio"])
@pytest.mark.parametrize("era", ERAS)
async def test_pictures_come_as_links_to_a_client_that_asks_for_them(
    place: Place, over: str, era: str
) -> None:
    target = place.url if over == "http" else stdio(place.system)
    async with Client(target, mode=era) as client:
        meta: Any = {"leaseway/media": "links"}
        if over == "http" and era != "legacy":
            alone = await client.call_tool("pixel", {"color": [1, 2, 3]}, meta=meta)
            assert alone.content[0].type == "image", "it could not be read: its session has ended"
            leased = await client.call_tool("lease_acquire", {"serverId": "pictures"})
            assert leased.structured_content is not None
            meta["leaseway/session"] = leased.structured_content["handle"]
        said = await client.call_tool("gallery", {}, meta=meta)
        assert [item.type for item in said.content] == ["text", *["resource_link"] * 3]
        link = said.content[1]
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
    async with Client(place.url, mode=era) as stranger:
        with pytest.raises(MCPError, match="no artifact") as lost:
            await stranger.read_resource(link.uri)
        assert lost.value.code == (-32002 if era == "legacy" else types.INVALID_PARAMS)


async def test_links_are_asked_for_by_a_header_or_an_option_too(place: Place) -> None:
    async with (
        httpx2.AsyncClient(headers={"Leaseway-Media": "links"}) as http,
        Client(streamable_http_client(place.url, http_client=http), mode="legacy") as client,
    ):
        for _ in range(2):  # the second one's head is known by then
            said = await client.call_tool("pixel", {"color": [1, 2, 3]})
            assert said.content[0].type == "resource_link"
    async with Client(stdio(place.system, "--media", "links"), mode="2026-07-28") as client:
        said = await client.call_tool("pixel", {"color": [1, 2, 3]})
        assert said.content[0].type == "resource_link"


@pytest.mark.parametrize("over", ["http", "stdio"])
async def test_a_change_of_the_configuration_is_told_in_both_eras(
    tmp_path: Path, over: str
) -> None:
    told: list[str] = []

    async def take(message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            told.append("legacy")

    async with running(tmp_path, {"files": kit(tmp_path)}) as (system, _), front(system) as url:
        target = url if over == "http" else stdio(system)
        async with (
            Client(target, mode="legacy", message_handler=take) as legacy,
            Client(target, mode="2026-07-28") as modern,
            listen(modern.session, tools_list_changed=True) as changes,
        ):
            await legacy.list_tools()
            both = {"files": kit(tmp_path), "more": kit(tmp_path, transform=[{"prefix": "my_"}])}
            system.write(both)
            async with asyncio.timeout(2 * BOUND):
                assert type(await anext(aiter(changes))).__name__ == "ToolsListChanged"
            await eventually(lambda: "legacy" in told)
            for client in (legacy, modern):
                listed = await client.list_tools()
                assert "my_list_files" in [tool.name for tool in listed.tools]


async def test_up_serves_mcp_beside_its_planes(tmp_path: Path) -> None:
    config = tmp_path / "mcp.yaml"
    config.write_text(yaml.safe_dump({"version": 1, "servers": servers(tmp_path)}))
    process = await asyncio.create_subprocess_exec(
        *LEASEWAY,
        *("up", "--config", str(config), "--listen", "127.0.0.1:0", "--mcp", "127.0.0.1:0"),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(2 * BOUND):
            while not (line := (await process.stdout.readline()).decode()).startswith("mcp "):
                assert line
        async with Client(line.split()[1], mode="2026-07-28") as client:
            assert text_of(await client.call_tool("echo", {"text": "up"})) == "up"
    finally:
        process.terminate()
        assert await process.wait() == 0
