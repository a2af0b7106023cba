"""Editing the configuration of a running system."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.conftest import BOUND
from tests.e2e.system import System, eventually, python_server, running

from leaseway.sdk import AsyncClient, LeasewayError, ToolNotFound

SHARED = {"truely-stateless": True}


async def call_until(client: AsyncClient, stop: asyncio.Event, name: str) -> int:
    """Call a tool repeatedly; return how often. A failed call fails the test."""
    calls = 0
    while not stop.is_set():
        result = await client.call_tool(name, {"text": "x"}, timeout=60)
        assert not result.is_error
        calls += 1
    return calls


async def names(client: AsyncClient) -> set[str]:
    return {tool.name for tool in await client.list_tools()}


@pytest.mark.usefixtures("leak_guard")
async def test_added_and_changed_servers_fail_no_call_in_flight(
    tmp_path: Path,
) -> None:
    first = python_server("echo_raw.py", transform=[{"prefix": "one_"}], **SHARED)
    second = python_server("echo_raw.py", transform=[{"prefix": "two_"}], **SHARED)
    async with running(tmp_path, {"one": first}, workers=2) as (system, client):
        stop = asyncio.Event()
        callers = [asyncio.create_task(call_until(client, stop, "one_echo")) for _ in range(8)]
        system.write({"one": first, "two": second})
        result = await eventually_called(client, "two_echo")
        assert "x" in result
        system.write({"one": first | {"description": "edited"}, "two": second})
        changed = python_server("echo_raw.py", "--name", "new", transform=[{"prefix": "one_"}])
        system.write({"one": changed | SHARED, "two": second})
        await eventually(lambda: is_relaunched(client, "one"))
        stop.set()
        assert min(await asyncio.gather(*callers)) > 0


async def eventually_called(client: AsyncClient, name: str) -> str:
    async with asyncio.timeout(BOUND):
        while True:
            try:
                return (await client.call_tool(name, {"text": "x"})).text
            except ToolNotFound:
                await asyncio.sleep(0.02)


async def is_relaunched(client: AsyncClient, server_id: str) -> bool:
    servers = {server.id: server for server in await client.servers()}
    return any(
        instance.launch_hash == servers[server_id].launch_hash and instance.state == "ready"
        for instance in servers[server_id].instances
    ) and not any(
        instance.launch_hash != servers[server_id].launch_hash
        for instance in servers[server_id].instances
    )


@pytest.mark.usefixtures("leak_guard")
async def test_a_new_exposure_starts_no_process(tmp_path: Path) -> None:
    entry = python_server("echo_raw.py", **SHARED)
    async with running(tmp_path, {"one": entry}) as (system, client):

        async def reported() -> bool:
            instances = system_instances(await client.servers())
            return [instance.state for instance in instances] == ["ready"]  # type: ignore[attr-defined]

        await eventually(reported)
        before = [server.instances for server in await client.servers()]
        system.write({"one": entry | {"transform": [{"prefix": "new_"}]}})

        async def renamed() -> bool:
            return "new_echo" in await names(client)

        await eventually(renamed)
        assert [server.instances for server in await client.servers()] == before


@pytest.mark.usefixtures("leak_guard")
async def test_an_invalid_edit_changes_nothing_and_is_a_problem(tmp_path: Path) -> None:
    entry = python_server("echo_raw.py", **SHARED)
    async with running(tmp_path, {"one": entry}) as (system, client):
        seen = await names(client)
        system.write_text("version: 1\nservers: [\n")

        async def is_reported() -> bool:
            return any(problem.scope == "workspace" for problem in await client.problems())

        await eventually(is_reported)
        assert await names(client) == seen
        assert (await client.call_tool("echo", {"text": "still"})).text
        system.write({"one": entry})

        async def cleared() -> bool:
            return not await client.problems()

        await eventually(cleared)


@pytest.mark.usefixtures("leak_guard")
async def test_a_removed_server_is_unlisted_and_its_processes_are_stopped(tmp_path: Path) -> None:
    one, two = (
        python_server("echo_raw.py", transform=[{"prefix": f"{name}_"}], **SHARED)
        for name in ("one", "two")
    )
    async with running(tmp_path, {"one": one, "two": two}) as (system, client):
        system.write({"two": two})

        async def is_removed() -> bool:
            return "one_echo" not in await names(client)

        await eventually(is_removed)
        with pytest.raises(LeasewayError) as caught:
            await client.call_tool("one_echo", {"text": "x"})
        assert isinstance(caught.value, ToolNotFound)

        async def one_process() -> bool:
            return len(system_instances(await client.servers())) == 1

        await eventually(one_process)
        assert (await client.call_tool("two_echo", {"text": "x"})).text


def system_instances(servers: object) -> list[object]:
    return [instance for server in servers for instance in server.instances]  # type: ignore[attr-defined]


@pytest.mark.usefixtures("leak_guard")
async def test_deleting_the_file_keeps_every_server_and_one_without_servers_removes_them(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, {"one": python_server("echo_raw.py", **SHARED)}) as (
        system,
        client,
    ):
        assert isinstance(system, System)
        system.config.unlink()

        async def is_reported() -> bool:
            return any(problem.reason == "CONFIG_GONE" for problem in await client.problems())

        await eventually(is_reported)
        assert (await client.call_tool("echo", {"text": "x"})).text
        system.write({})

        async def empty() -> bool:
            return not await client.list_tools()

        await eventually(empty)
