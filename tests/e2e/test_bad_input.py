"""What goes wrong gives the error that DESIGN §7 names, in its time, and harms nothing else."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.conftest import descendants
from tests.e2e.system import System, eventually, kit, python_server, running

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
    """Run one good server among servers that each fail in a way of their own."""
    folder = tmp_path_factory.mktemp("bad-input")
    servers = {
        "kit": kit(folder, **SHARED, transform=[{"prefix": "kit_"}]),
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


async def test_each_failing_server_says_what_to_do_and_the_rest_works(
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
    assert (await client.call_tool("kit_current_time", {"timezone": "UTC"})).structured
    assert not (await client.call_tool("garbage_call", {})).is_error


async def test_an_unknown_tool_names_the_nearest(system: tuple[System, AsyncClient]) -> None:
    _, client = system
    with pytest.raises(ToolNotFound, match="kit_current_time"):
        await client.call_tool("kit_curent_time", {})
    with pytest.raises(ToolNotFound, match="kit:read_file"):
        await client.call_tool("kit:read_fil", {})


async def test_wrong_arguments_are_refused_before_the_server_sees_them(
    system: tuple[System, AsyncClient],
) -> None:
    _, client = system
    with pytest.raises(InvalidArguments) as caught:
        await client.call_tool("kit_read_file", {"path": 7, "surplus": "secret-value"})
    assert caught.value.violations
    assert caught.value.started == "no"
    assert "secret-value" not in str(caught.value)


async def test_a_tools_own_error_is_a_result(system: tuple[System, AsyncClient]) -> None:
    _, client = system
    result = await client.call_tool("kit_read_file", {"path": "../outside"})
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


async def test_a_deadline_is_met_though_the_server_never_answers(
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
        await client.session("s").acquire("kit")


async def test_without_a_control_plane_the_first_list_fails_soon() -> None:
    began = time.monotonic()
    async with AsyncClient("127.0.0.1:9") as client:
        with pytest.raises(ControlPlaneUnavailable, match=r"127\.0\.0\.1:9"):
            await client.list_tools()
    assert time.monotonic() - began < 40


@pytest.mark.usefixtures("leak_guard")
async def test_a_server_that_dies_in_a_call_is_lost_by_name_and_comes_back(
    tmp_path: Path,
) -> None:
    servers = {"dies": python_server("faulty.py", "dies", **SHARED)}
    async with running(tmp_path, servers) as (_, client):
        with pytest.raises(ServerLost) as caught:
            await client.call_tool("call", {}, timeout=60)
        assert caught.value.exit_status is not None
        assert caught.value.started == "yes"

        async def up_again() -> bool:
            return any(
                instance.state == "ready"
                for server in await client.servers()
                for instance in server.instances
            )

        await eventually(up_again)


@pytest.mark.usefixtures("leak_guard")
async def test_a_call_waits_for_a_first_start(tmp_path: Path) -> None:
    system = System(tmp_path, {"slow": python_server("echo_raw.py", **SHARED)})
    await system.start_control_plane()
    try:
        async with AsyncClient(system.address) as client:
            call = asyncio.create_task(client.call_tool("echo", {"text": "x"}, timeout=60))
            await system.start_worker("worker-1")
            assert "x" in (await call).text
    finally:
        await system.stop()
