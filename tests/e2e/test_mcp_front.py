"""MCP clients of a whole system: HTTP and stdio, both eras, leases of their sessions."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import signal
import sys
import warnings
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import httpx2
import mcp_types as types
import pytest
import yaml
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import listen
from mcp.shared.message import SessionMessage
from tests.conftest import BOUND, descendants
from tests.e2e.forking import fork_leaseway, run_leaseway
from tests.e2e.system import LEASEWAY, SERVERS, System, eventually, python_server, running
from tests.servers.pictures import png

from leaseway.sdk import AsyncClient, LeaseInfo

ERAS = ("legacy", "2026-07-28")
TRANSPORTS = pytest.mark.parametrize("transport", ["http", "stdio"])
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
ROOTS = {"roots": [{"uri": "file:///srv/data"}]}
COUNTER = {"counter": python_server("counter.py")}


class Stdio:
    """An MCP transport to a fork of `leaseway mcp`: each connection is a new process."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = ("mcp", *arguments)
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Any:
        return await self._stack.enter_async_context(self._connect())

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    @asynccontextmanager
    async def _connect(self) -> AsyncIterator[Any]:
        process = await fork_leaseway(self._arguments, os.environ, None)
        received, incoming = anyio.create_memory_object_stream[SessionMessage](0)
        outgoing, sent = anyio.create_memory_object_stream[SessionMessage](0)

        async def read() -> None:
            async with received:
                async for line in process.stdout:
                    message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
                    await received.send(SessionMessage(message))

        async def write() -> None:
            async with sent:
                async for each in sent:
                    line = each.message.model_dump_json(by_alias=True, exclude_unset=True) + "\n"
                    await asyncio.to_thread(process.stdin.write, line.encode())

        try:
            async with anyio.create_task_group() as group:
                group.start_soon(read)
                group.start_soon(write)
                yield incoming, outgoing
                group.cancel_scope.cancel()
        finally:
            process.stdin.close()
            async with asyncio.timeout(BOUND):
                await process.wait()


@dataclass(frozen=True)
class Place:
    """A system, an SDK client of it, and the URL at which its front serves MCP."""

    system: System
    sdk: AsyncClient
    url: str

    def target(self, transport: str) -> Any:
        """Return what an MCP client connects to over a transport."""
        return self.url if transport == "http" else stdio(self.system)


def echo(*tools: str, **settings: object) -> dict[str, object]:
    """Return the entry of a shared server with some tools of `echo_raw`."""
    return python_server(
        "echo_raw.py", **{"truely-stateless": True}, tools={"whitelist": list(tools)}, **settings
    )


@asynccontextmanager
async def front(system: System, *options: str) -> AsyncIterator[str]:
    """Run a front for a system; yield its URL."""
    part = await system._start(
        "mcp-front", "--control-plane", system.address, "--listen", "127.0.0.1:0", *options
    )
    try:
        yield f"http://{part.address}/mcp"
    finally:
        await part.end()
        print("\n".join(part.log))


def stdio(system: System, *options: str) -> Stdio:
    """Return the transport of a desktop client."""
    return Stdio("--address", system.address, *options)


def write_config(folder: Path, servers: Mapping[str, object]) -> Path:
    """Write a configuration; return its path."""
    config = folder / "mcp.yaml"
    config.write_text(yaml.safe_dump({"version": 1, "servers": servers}))
    return config


def text_of(result: types.CallToolResult) -> str:
    """Return the text of a result, without that which says a session."""
    texts = [item.text for item in result.content if isinstance(item, types.TextContent)]
    return "".join(text for text in texts if not text.startswith("Session: "))


async def counters(sdk: AsyncClient) -> list[LeaseInfo]:
    """Return the leases of the server that counts; other tests may have left some of others."""
    return [lease for lease in await sdk.leases() if lease.server_id == "counter"]


async def has_leases(sdk: AsyncClient, count: int) -> bool:
    """Return whether so many leases of the server that counts are held."""
    return len(await counters(sdk)) == count


async def no_leases(sdk: AsyncClient) -> bool:
    """Return whether no lease is held."""
    return not await sdk.leases()


async def send_roots(context: Any) -> Any:
    """Answer a server's request for roots."""
    return types.ListRootsResult.model_validate(ROOTS)


@pytest.fixture(scope="module")
async def place(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Place]:
    """Run one system with shared and leased servers of both eras, and one front."""
    servers = {
        **COUNTER,
        "echo": echo("echo", "fail", "meta", "progress"),
        "bank": echo("echo", risk={"echo": "financial"}, transform=[{"prefix": "bank_"}]),
        "pictures": python_server("pictures.py"),
        "old": python_server(
            "asking_stdio.py", "--legacy", "--offers", transform=[{"prefix": "old_"}]
        ),
    }
    async with (
        running(tmp_path_factory.mktemp("system"), servers) as (system, sdk),
        front(system) as url,
    ):
        yield Place(system, sdk, url)


@TRANSPORTS
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
        return types.ElicitResult(action="accept", content={"approve": "no" not in params.message})

    async with Client(place.url, mode=era, elicitation_callback=user) as client:
        result = await client.call_tool("bank_echo", {"text": f"yes {era}"})
        assert text_of(result) == f"yes {era}"
        with pytest.raises(MCPError, match="has denied") as denied:
            await client.call_tool("bank_echo", {"text": f"no {era}"})
        assert denied.value.data["reason"] == "PERMISSION_DENIED"
        assert [f"yes {era}" in messages[0], f"no {era}" in messages[1]] == [True, True]
    async with Client(place.url, mode=era) as client:
        with pytest.raises(MCPError, match="leaseway approvals approve") as needed:
            await client.call_tool("bank_echo", {"text": f"mute {era}"})
    approval = needed.value.data["confirmationId"]
    assert approval in [one.id for one in await place.sdk.approvals() if one.state == "waiting"]


@pytest.mark.parametrize("era", ERAS)
async def test_progress_arrives_before_the_result(place: Place, era: str) -> None:
    reports: list[tuple[float, float | None]] = []

    async def progress(progress: float, total: float | None, message: str | None) -> None:
        reports.append((progress, total))

    for count, transport in enumerate(("http", "stdio"), 1):
        async with Client(place.target(transport), mode=era) as client:
            await client.call_tool("progress", {"text": ""}, progress_callback=progress)
            await eventually(lambda count=count: reports == [(0, 3), (1, 3), (2, 3)] * count)


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


async def test_a_desktop_client_runs_the_servers_of_a_file(tmp_path: Path) -> None:
    config = write_config(tmp_path, {**COUNTER, "echo": echo("echo")})
    command, *arguments = LEASEWAY
    words = [*arguments, "mcp", "--config", str(config)]
    before = set(descendants(os.getpid()))
    async with Client(StdioServerParameters(command=command, args=words), mode="legacy") as client:
        assert {"echo", "next"} <= {tool.name for tool in (await client.list_tools()).tools}
        assert text_of(await client.call_tool("echo", {"text": "here"})) == "here"
        assert text_of(await client.call_tool("next", {})) == "1"
    await eventually(lambda: not set(descendants(os.getpid())) - before)


async def test_a_server_that_hangs_holds_back_no_tools_and_failed_ones_are_named(
    tmp_path: Path,
) -> None:
    gate = tmp_path / "gate"
    script = (
        f"until [ -e {gate} ]; do sleep 0.05; done; exec {sys.executable} {SERVERS / 'counter.py'}"
    )
    servers = {
        "echo": echo("echo"),
        "hanging": {"transport": "stdio", "command": "sh", "args": ["-c", script]},
        "failing": {"transport": "stdio", "command": "no-such-program"},
    }
    config = write_config(tmp_path, servers)
    command, *arguments = LEASEWAY
    words = [*arguments, "mcp", "--config", str(config)]
    changed = asyncio.Event()

    async def on_message(message: Any) -> None:
        if getattr(message, "method", "") == "notifications/tools/list_changed":
            changed.set()

    with (tmp_path / "stderr").open("w+") as stderr:
        parameters = StdioServerParameters(command=command, args=words)
        target = stdio_client(parameters, errlog=stderr)
        async with (
            asyncio.timeout(2 * BOUND),
            Client(target, mode="legacy", message_handler=on_message) as client,
        ):
            assert "hanging" in (client.instructions or "")
            assert [tool.name for tool in (await client.list_tools()).tools] == ["echo"]
            gate.touch()
            await changed.wait()
            assert "next" in {tool.name for tool in (await client.list_tools()).tools}
        stderr.seek(0)
        assert "Server failing: " in stderr.read()


async def test_the_front_of_a_leaseway_is_no_server_of_itself(tmp_path: Path) -> None:
    async with running(tmp_path, COUNTER) as (system, sdk), front(system) as url:
        own = {"transport": "streamable_http", "url": url, "transform": [{"prefix": "own_"}]}
        for protocol in ("legacy", "2026-07-28"):
            name = f"own-{protocol}"
            system.write({**COUNTER, name: own | {"protocol": protocol}})

            async def is_refused(name: str = name) -> bool:
                problems = await sdk.problems()
                return any(
                    each.server_id == name and "of this Leaseway itself" in each.message
                    for each in problems
                )

            await eventually(is_refused)
        assert not [tool for tool in await sdk.list_tools() if tool.name.startswith("own_")]


async def test_a_file_that_names_its_own_front_does_not_start_it_again(tmp_path: Path) -> None:
    config, wrapper, said = tmp_path / "mcp.yaml", tmp_path / "wrapper", tmp_path / "said"
    front = f"{' '.join(LEASEWAY)} mcp --config {config}"
    wrapper.write_text(f"#!/bin/sh\n{front} 2>{said}.new; mv {said}.new {said}\n")
    wrapper.chmod(0o755)
    own = {"transport": "stdio", "command": str(wrapper), "inherit_env": "none"}
    write_config(tmp_path, {"echo": echo("echo"), "own": own})
    async with (
        asyncio.timeout(2 * BOUND),
        Client(Stdio("--config", str(config)), mode="legacy") as client,
    ):
        await eventually(said.exists)
        assert "would start itself for ever" in said.read_text()
        assert [tool.name for tool in (await client.list_tools()).tools] == ["echo"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_stops_the_stdio_front_and_its_servers(
    tmp_path: Path, number: signal.Signals
) -> None:
    config = write_config(tmp_path, COUNTER)
    before = set(descendants(os.getpid()))
    process = await fork_leaseway(("mcp", "--config", str(config)), os.environ, None)
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "next"}}
    async with asyncio.timeout(2 * BOUND):
        for message in (INITIALIZE, call):
            process.stdin.write(json.dumps(message).encode() + b"\n")
            answer = json.loads(await process.stdout.readline())
            assert "result" in answer, answer
        assert len(set(descendants(os.getpid())) - before) > 2, "a server runs below the planes"
        process.send_signal(number)
        assert await process.stdout.read() == b""
        assert await process.wait() == 0
    await eventually(lambda: not set(descendants(os.getpid())) - before)


async def test_a_signal_during_the_start_stops_the_stdio_front_and_its_planes(
    tmp_path: Path,
) -> None:
    config = write_config(tmp_path, COUNTER)
    before = set(descendants(os.getpid()))
    process = await fork_leaseway(("mcp", "--config", str(config)), os.environ, None)
    async with asyncio.timeout(2 * BOUND):
        await eventually(lambda: len(set(descendants(os.getpid())) - before) > 1)
        process.terminate()
        assert await process.stdout.read() == b""
        assert await process.wait() == 0
    await eventually(lambda: not set(descendants(os.getpid())) - before)


async def test_an_invalid_file_is_reported_to_the_client_until_it_is_fixed(tmp_path: Path) -> None:
    config = tmp_path / "mcp.yaml"
    config.write_text("version: 1\nservers:\n  files: {transport: stdio\n")
    async with Client(Stdio("--config", str(config)), mode="legacy") as client:
        with pytest.raises(MCPError, match=r"mcp.yaml:4:1: This is not valid YAML") as invalid:
            await client.list_tools()
        assert invalid.value.data["reason"] == "BAD_YAML"
        write_config(tmp_path, COUNTER)

        async def is_listed() -> bool:
            try:
                return bool((await client.list_tools()).tools)
            except MCPError:
                return False

        await eventually(is_listed)


async def test_a_missing_file_is_an_error_of_the_command(tmp_path: Path) -> None:
    done = await run_leaseway("mcp", "--config", str(tmp_path / "none.yaml"))
    assert (done.status, done.stdout) == (2, "")
    assert "none.yaml" in done.stderr


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
                assert (await answer.json())["result"]["resultType"] == "complete"
        assert len(await counters(place.sdk)) == 1
        async with http.delete(place.url, headers={"Mcp-Session-Id": session}) as answer:
            assert answer.status == 204
        await eventually(lambda: has_leases(place.sdk, 0))


@TRANSPORTS
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


@pytest.mark.parametrize("mode", ERAS)
async def test_a_legacy_server_sends_requests_during_prompts_and_resources(
    place: Place, mode: str
) -> None:
    async with Client(place.url, mode=mode, list_roots_callback=send_roots) as client:
        named = {prompt.name for prompt in (await client.list_prompts()).prompts}
        (name,) = [each for each in named if each.endswith("interview")]
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
                assert "echo" in [tool.name for tool in (await client.list_tools()).tools]


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
                await eventually(client.leases)
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
                    seen.append((await answer.json())["result"]["content"][0]["text"])
        return seen

    one, other = await pids("one"), await pids("other")
    assert not set(one) & set(other)
    expected = 20 if says == "nothing" else 1
    assert (len(set(one)), len(set(other))) == (expected, expected)
    assert len(await counters(place.sdk)) <= 16

    async def are_few() -> bool:
        return len(await counters(place.sdk)) <= 3  # one, other, and the newest of this client

    if says == "nothing":
        await eventually(are_few, within=2 * BOUND)
