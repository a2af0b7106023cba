"""`leaseway mcp --config`, as desktop clients start it: planes of its own, and a file's faults."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from tests.conftest import BOUND, descendants
from tests.e2e.forking import fork_leaseway, run_leaseway
from tests.e2e.mcp_front import (
    COUNTER,
    INITIALIZE,
    Stdio,
    echo,
    front,
    text_of,
    write_config,
)
from tests.e2e.system import LEASEWAY, SERVERS, eventually, running
from tests.ports import free_port

from leaseway.identity.keys import add_key, make_key
from leaseway.identity.principal import Role
from leaseway.sdk import AsyncClient, Unauthenticated


async def listed(client: Client) -> list[str]:
    tools = await client.list_tools(cache_mode="bypass")
    return [tool.name for tool in tools.tools]


async def test_a_desktop_client_runs_the_servers_of_a_file(tmp_path: Path) -> None:
    config = write_config(tmp_path, {**COUNTER, "echo": echo("echo")})
    command, *arguments = LEASEWAY
    words = [*arguments, "mcp", "--config", str(config)]
    before = set(descendants(os.getpid()))
    async with Client(StdioServerParameters(command=command, args=words), mode="legacy") as client:

        async def both_are_listed() -> bool:  # a first list does not wait for every server
            return {"echo", "next"} <= set(await listed(client))

        await eventually(both_are_listed)
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
            said = client.instructions or ""
            # A busy machine has not even read the configuration when the front must answer.
            assert "hanging" in said or "is still starting its servers" in said
            # Tools are announced as they come up, `echo` perhaps only now.
            while (names := await listed(client)) != ["echo"]:
                assert names == []
                await changed.wait()
                changed.clear()
            changed.clear()
            gate.touch()
            while "next" not in await listed(client):
                await changed.wait()
                changed.clear()
        stderr.seek(0)
        assert "Server failing: " in stderr.read()


async def test_the_control_plane_that_is_there_is_found_among_several_addresses(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, {"echo": echo("echo")}) as (system, _):
        addresses = f"127.0.0.1:{free_port()},{system.address}"
        async with (
            asyncio.timeout(BOUND),
            Client(Stdio("--address", addresses), mode="legacy") as client,
        ):
            assert await listed(client) == ["echo"]


async def test_the_front_of_a_leaseway_is_no_server_of_itself(tmp_path: Path) -> None:
    async with running(tmp_path, COUNTER) as (system, sdk), front(system) as url:
        own = {"transport": "streamable_http", "url": url, "transform": [{"prefix": "own_"}]}
        for protocol in ("legacy", "2026-07-28"):
            name = f"own-{protocol}"
            system.write({**COUNTER, name: own | {"protocol": protocol}})

            async def is_refused(name: str = name) -> bool:
                problems = await sdk.problems()
                return any(
                    problem.server_id == name and "of this Leaseway itself" in problem.message
                    for problem in problems
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

        async def is_listed() -> bool:
            return await listed(client) == ["echo"]

        await eventually(is_listed)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
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


async def test_its_planes_and_those_of_the_environment_have_nothing_in_common(
    tmp_path: Path,
) -> None:
    config, keys = write_config(tmp_path, {"echo": echo("echo")}), tmp_path / "keys.json"
    others = {"LEASEWAY_KEYS": str(keys), "LEASEWAY_DATA": str(tmp_path / "data")}
    key, record = make_key(roles=[Role.CALLER], tenant="default", agent=None, now=0.0)
    add_key(keys, record)
    process = await fork_leaseway(("mcp", "--config", str(config)), os.environ | others, None)
    params = {"name": "echo", "arguments": {"text": "here"}}
    called = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    try:
        async with asyncio.timeout(2 * BOUND):
            process.stdin.write(f"{json.dumps(INITIALIZE)}\n{json.dumps(called)}\n".encode())
            while b" has joined " not in (line := await process.stderr.readline()):
                assert line, "the worker has not joined"
            address = line.split(b" has joined ")[1].split()[0].rstrip(b".").decode()
            for given in (None, key):
                async with AsyncClient(address, key=given) as stranger:
                    with pytest.raises(Unauthenticated):
                        await stranger.list_tools()
            while (answer := json.loads(await process.stdout.readline())).get("id") != 1:
                pass
        assert answer["result"]["content"][0]["text"] == "here"
        assert not (tmp_path / "data").exists()
    finally:
        process.stdin.close()
        await process.wait()
