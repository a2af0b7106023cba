"""The configurations in `deploy/examples`: each is started and called unchanged."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
from tests.conftest import ROOT, ServerCommand
from tests.e2e.servers import http_server
from tests.e2e.system import SERVERS, System
from tests.servers import rest_api

from leaseway.sdk import AsyncClient

pytestmark = pytest.mark.usefixtures("leak_guard")


@contextlib.asynccontextmanager
async def example(
    name: str,
    folder: Path,
    *path: Path,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[AsyncClient]:
    """Run a system with an example, with folders in front of its PATH."""
    search = os.pathsep.join([*map(str, path), os.environ["PATH"]])
    system = System(folder, {}, environment={"PATH": search, **(environment or {})})
    system.cwd = cwd
    system.write_text((ROOT / "deploy" / "examples" / name).read_text())
    async with system, AsyncClient(system.address) as client:
        yield client


async def test_quickstart_stdio(tmp_path: Path) -> None:
    async with example("quickstart-stdio.yaml", tmp_path, Path(sys.executable).parent) as client:
        result = await client.call_tool("kit_current_time")
        assert result.structured


@pytest.mark.legacy_servers
async def test_quickstart_time(tmp_path: Path, legacy_server: ServerCommand) -> None:
    folder = Path(legacy_server("mcp-server-time")[0]).parent
    async with example("quickstart-time.yaml", tmp_path, folder) as client:
        result = await client.call_tool("time_get_current_time", {"timezone": "UTC"})
        assert "UTC" in result.text


async def test_rest_tools(tmp_path: Path) -> None:
    async with rest_api.serve() as api:
        environment = {"SHOP_URL": api.url, "SHOP_AUTH_HEADER": "Bearer example"}
        async with example("rest-tools.yaml", tmp_path, environment=environment) as client:
            user = await client.call_tool("shop_get_user", {"userId": "7"})
            assert user.text == "Name: Ann\n0. A\n1. B"
            assert api.last.headers["Authorization"] == "Bearer example"
            order = {"article": "pen", "address": {"city": "Bern"}}
            created = await client.call_tool("shop_create_order", order)
            assert json.loads(created.text) == {
                "article": "pen",
                "count": 1,
                "address": {"city": "Bern"},
            }


async def test_quickstart_http_sends_its_credential(tmp_path: Path) -> None:
    async with http_server(sys.executable, str(SERVERS / "official_http.py")) as port:
        environment = {
            "MCP_URL": f"http://127.0.0.1:{port}/mcp",
            "MCP_AUTH_HEADER": "Bearer example",
        }
        async with example("quickstart-http.yaml", tmp_path, environment=environment) as client:
            assert (await client.call_tool("remote_echo", {"text": "hi"})).text == "hi"


async def test_the_kits_tools(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("a lease ends")
    async with example("kit.yaml", tmp_path, environment={"NOTES": str(tmp_path)}) as client:
        found = await client.call_tool("notes_search_files", {"text": "lease", "pattern": "*.md"})
        assert found.text == "a.md:1: a lease ends"
        ran = await client.call_tool("notes_execute_command", {"command": "date", "args": ["+%s"]})
        assert ran.text.isdecimal()
        assert (await client.call_tool("notes_execute_command", {"command": "id"})).is_error


async def test_a_python_class(tmp_path: Path) -> None:
    async with example(
        "python-server.yaml", tmp_path, cwd=ROOT, environment={"GREETING": "Ahoy"}
    ) as client:
        async with client.session("one") as session:
            await session.call_tool("hello_greet", {"who": "Ada"})
            again = await session.call_tool("hello_greet", {"who": "Ada"})
        assert again.structured == {"text": "Ahoy, Ada!", "greeted": 2}


@pytest.mark.npm
async def test_imported_mcpservers(tmp_path: Path, npm_server: ServerCommand) -> None:
    # npx finds the package in its working folder and must not download another.
    folder = Path(npm_server("mcp-server-filesystem")[0]).parents[2]
    environment = {"npm_config_offline": "true"}
    note = Path("/tmp") / f"leaseway-example-{os.getpid()}"  # the example offers /tmp
    note.write_text("kept")
    try:
        async with example(
            "from-mcpservers.yaml", tmp_path, cwd=folder, environment=environment
        ) as client:
            listed = {tool.name for tool in await client.list_tools()}
            assert "fs_read_text_file" in listed
            assert "fs_write_file" not in listed
            result = await client.call_tool("fs_read_text_file", {"path": str(note)})
            assert result.text == "kept"
    finally:
        await asyncio.to_thread(note.unlink)
