"""Servers over event streams, websockets and transports of other packages in a whole system."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from pathlib import Path

import pytest
from tests.conftest import ServerCommand
from tests.data_plane.mcp.conftest import install_carriers
from tests.e2e.servers import PREFIX, http_server
from tests.e2e.system import SERVERS, eventually, running
from tests.ports import free_port

from leaseway.sdk import AsyncClient, LeaseLost, LeasewayError, ServerLost

SCRIPT = str(SERVERS / "script_server.py")
URLS = {"sse": "http://127.0.0.1:{}/sse", "websocket": "ws://127.0.0.1:{}/ws"}


def at(transport: str, port: int, **settings: object) -> dict[str, object]:
    return {"transport": transport, "url": URLS[transport].format(port), **settings}


async def echoes(client: AsyncClient, server: str) -> bool:
    try:
        result = await client.call_tool(f"{server}:echo", {"text": "again"}, timeout=60)
    except LeasewayError:
        return False
    return result.text == "again"


@pytest.mark.parametrize("transport", ["sse", "websocket"])
@pytest.mark.usefixtures("leak_guard")
async def test_a_restarted_server_is_reconnected(tmp_path: Path, transport: str) -> None:
    port = free_port()
    shared = at(transport, port, transform=PREFIX, restart={"initial": "50ms", "max": "500ms"})
    servers = {
        "shared": shared | {"truely-stateless": True},
        "leased": at(transport, port, transform=PREFIX),
    }
    command = [sys.executable, SCRIPT, transport, str(port)]
    async with contextlib.AsyncExitStack() as first:
        await first.enter_async_context(http_server(*command, port=port))
        async with running(tmp_path, servers) as (_, client), client.session("s") as session:
            assert await echoes(client, "shared")
            assert (await session.call_tool("leased:echo", {"text": "mine"})).text == "mine"
            await first.aclose()
            with pytest.raises((ServerLost, LeaseLost)):
                await session.call_tool("leased:echo", {"text": "gone"})
            async with http_server(*command, port=port), client.session("other") as other:
                await eventually(lambda: echoes(client, "shared"))
                assert (await other.call_tool("leased:echo", {"text": "new"})).text == "new"


@pytest.mark.usefixtures("leak_guard")
async def test_a_transport_of_another_package_works_and_a_broken_one_is_a_problem(
    tmp_path: Path,
) -> None:
    install_carriers(tmp_path / "installed")
    paths = [str(tmp_path / "installed"), str(SERVERS), os.environ.get("PYTHONPATH", "")]
    servers = {
        "shared": {"transport": "memory", "truely-stateless": True, "transform": PREFIX},
        "leased": {"transport": "queues", "url": "queues://fine", "transform": PREFIX},
        "broken": {"transport": "absent", "transform": PREFIX},
        "misspelt": {"transport": "memori"},
    }
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    async with running(tmp_path, servers, environment=environment) as (_, client):
        assert await echoes(client, "shared")
        async with client.session("s") as session:
            result = await session.call_tool("leased:echo", {"text": "in queues"})
            assert result.text == "in queues"
        problems = {problem.server_id: problem for problem in await client.problems()}
        assert problems.keys() == {"broken", "misspelt"}
        assert problems["broken"].reason == "START_FAILED"
        assert "the entry point absent = no_such_module:factory" in problems["broken"].message
        assert problems["misspelt"].reason == "UNSUPPORTED_TRANSPORT"
        assert "did you mean 'memory'?" in problems["misspelt"].message


@pytest.mark.parametrize("output", ["ws", "sse"])
@pytest.mark.npm
@pytest.mark.usefixtures("leak_guard")
async def test_a_gateway_from_npm_carries_another_server(
    tmp_path: Path, npm_server: ServerCommand, output: str
) -> None:
    port = free_port()
    inner = shlex.join([*npm_server("mcp-server-everything"), "stdio"])
    gateway = [*npm_server("supergateway"), "--stdio", inner, "--outputTransport", output]
    path, transport = {"ws": ("message", "websocket"), "sse": ("sse", "sse")}[output]
    scheme = "ws" if output == "ws" else "http"
    remote = {"transport": transport, "url": f"{scheme}://127.0.0.1:{port}/{path}"}
    servers = {"all": remote | {"protocol": "legacy"}}
    async with (
        http_server(*gateway, "--port", str(port), port=port),
        running(tmp_path, servers) as (_, client),
        client.session("s") as session,
    ):
        assert (await session.call_tool("all:echo", {"message": "hi"})).text == "Echo: hi"
        assert "5" in (await session.call_tool("all:get-sum", {"a": 2, "b": 3})).text
        reports: list[object] = []
        running_long = {"duration": 0.2, "steps": 2}
        await session.call_tool(
            "all:trigger-long-running-operation",
            running_long,
            on_progress=lambda *report: reports.append(report),
        )
        assert len(reports) == 2
