"""Faults give the errors of docs/design.md#errors in time, and affect no other call."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.conftest import descendants
from tests.e2e.system import System, eventually, python_server, running

from leaseway.sdk import (
    AsyncClient,
    ControlPlaneUnavailable,
    DeadlineExceeded,
    InvalidArguments,
    NotLeasable,
    ServerError,
    ServerLost,
    ServerNotReady,
    ToolNotFound,
)

SHARED = {"truely-stateless": True}


@pytest.fixture(scope="module")
async def system(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[tuple[System, AsyncClient]]:
    """Run one working server and servers that each fail differently."""
    folder = tmp_path_factory.mktemp("bad-input")
    servers = {
        "raw": python_server("echo_raw.py", **SHARED, transform=[{"prefix": "raw_"}]),
        "exits": python_server("faulty.py", "exits", **SHARED),
        "garbage": python_server(
            "faulty.py", "garbage", **SHARED, transform=[{"prefix": "garbage_"}]
        ),
        "mute": python_server("faulty.py", "mute", **SHARED, startup_timeout=3, protocol="legacy"),
        "absent": {"transport": "stdio", "command": "no-such-command-anywhere", **SHARED},
        "unset": {
            "transport": "stdio",
            "command": "true",
            "env": {"TOKEN": {"env": "SURELY_NOT_SET_ANYWHERE"}},
            **SHARED,
        },
        "refused": {"transport": "streamable_http", "url": "http://127.0.0.1:9/mcp", **SHARED},
    }
    before = descendants(os.getpid()).keys()
    async with running(folder, servers) as both:
        yield both
    await eventually(lambda: descendants(os.getpid()).keys() <= before)


async def test_each_failing_server_has_a_problem_and_the_others_work(
    system: tuple[System, AsyncClient],
) -> None:
    _, client = system
    found = {problem.server_id: problem.message for problem in await client.problems()}
    for server_id, part in {
        "exits": "exit",
        "mute": "3",
        "absent": "no-such-command-anywhere",
        "unset": "SURELY_NOT_SET_ANYWHERE",
        "refused": "127.0.0.1:9",
    }.items():
        assert part in found[server_id], found
        with pytest.raises(ServerNotReady) as caught:
            await client.call_tool(f"{server_id}:call", {})
        assert part in str(caught.value)
        assert caught.value.started == "no"
    assert (await client.call_tool("raw_echo", {"text": "x"})).text == "x"
    assert not (await client.call_tool("garbage_call", {})).is_error


async def test_the_error_of_an_unknown_tool_suggests_the_nearest_name(
    system: tuple[System, AsyncClient],
) -> None:
    _, client = system
    with pytest.raises(ToolNotFound, match="raw_progress"):
        await client.call_tool("raw_progres", {})
    with pytest.raises(ToolNotFound, match="raw:progress"):
        await client.call_tool("raw:progres", {})


async def test_invalid_arguments_are_rejected_before_the_server_gets_them(
    system: tuple[System, AsyncClient],
) -> None:
    _, client = system
    with pytest.raises(InvalidArguments) as caught:
        await client.call_tool("raw_echo", {"text": 7, "surplus": "secret-value"})
    assert caught.value.violations
    assert caught.value.started == "no"
    assert "secret-value" not in str(caught.value)


async def test_an_error_of_a_tool_is_a_result(system: tuple[System, AsyncClient]) -> None:
    _, client = system
    result = await client.call_tool("raw_fail", {})
    assert result.is_error
    assert result.text


async def test_a_json_rpc_error_keeps_its_code_and_data(
    system: tuple[System, AsyncClient],
) -> None:
    _, client = system
    with pytest.raises(ServerError) as caught:
        await client.call_tool("raw_error", {})
    assert caught.value.code is not None
    assert caught.value.code < 0
    assert caught.value.started == "yes"


async def test_a_call_ends_at_its_deadline_if_the_server_never_answers(
    system: tuple[System, AsyncClient],
) -> None:
    _, client = system
    began = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        await client.call_tool("raw_never", {}, timeout=0.5)
    assert time.monotonic() - began < 30
    assert (await client.call_tool("raw_echo", {"text": "after"})).text


async def test_a_shared_server_is_not_leasable(system: tuple[System, AsyncClient]) -> None:
    _, client = system
    with pytest.raises(NotLeasable):
        await client.session("s").acquire("raw")


async def test_without_a_control_plane_the_first_list_fails_within_its_timeout() -> None:
    began = time.monotonic()
    async with AsyncClient("127.0.0.1:9") as client:
        with pytest.raises(ControlPlaneUnavailable, match=r"127\.0\.0\.1:9"):
            await client.list_tools()
    assert time.monotonic() - began < 40


@pytest.mark.usefixtures("leak_guard")
async def test_a_server_that_dies_during_a_call_is_reported_and_restarted(
    tmp_path: Path,
) -> None:
    servers = {"dies": python_server("faulty.py", "dies", **SHARED)}
    async with running(tmp_path, servers) as (_, client):
        with pytest.raises(ServerLost) as caught:
            await client.call_tool("call", {}, timeout=60)
        assert caught.value.exit_status is not None
        assert caught.value.started == "yes"

        async def is_restarted() -> bool:
            return any(
                instance.state == "ready"
                for server in await client.servers()
                for instance in server.instances
            )

        await eventually(is_restarted)


@pytest.mark.usefixtures("leak_guard")
async def test_a_call_waits_for_the_first_start_of_its_server(tmp_path: Path) -> None:
    system = System(tmp_path, {"slow": python_server("echo_raw.py", **SHARED)})
    await system.start_control_plane()
    try:
        async with AsyncClient(system.address) as client:
            call = asyncio.create_task(client.call_tool("echo", {"text": "x"}, timeout=60))
            await system.start_worker("worker-1")
            assert "x" in (await call).text
    finally:
        await system.stop()
