"""A client's roots reach the servers that it has leased, also when they change."""

from __future__ import annotations

import asyncio
import json
import warnings
from pathlib import Path
from typing import Any

import aiohttp
import mcp_types as types
import pytest
from mcp import Client
from mcp.client.session import ClientRequestContext
from tests.conftest import BOUND, ServerCommand
from tests.e2e.forking import SETTLING
from tests.e2e.mcp_front import INITIALIZE, JSON, TRANSPORTS, Place, front, text_of
from tests.e2e.servers import entry
from tests.e2e.system import eventually, python_server, running

pytestmark = pytest.mark.usefixtures("leak_guard")


@pytest.mark.npm
@TRANSPORTS
async def test_a_leased_server_asks_for_roots_that_have_changed(
    tmp_path: Path, transport: str, npm_server: ServerCommand
) -> None:
    roots = ["file:///first"]
    asked: asyncio.Queue[str] = asyncio.Queue()

    async def list_roots(context: ClientRequestContext) -> types.ListRootsResult:
        asked.put_nowait(roots[0])
        return types.ListRootsResult.model_validate({"roots": [{"uri": roots[0]}]})

    servers = {"everything": entry(npm_server("mcp-server-everything"))}
    async with running(tmp_path, servers) as (system, sdk), front(system) as url:
        target = Place(system, sdk, url).target(transport)
        async with (
            Client(target, mode="legacy", list_roots_callback=list_roots) as client,
            asyncio.timeout(2 * BOUND),
        ):
            assert "file:///first" in text_of(await client.call_tool("get-roots-list", {}))
            while not asked.empty():
                asked.get_nowait()
            roots[0] = "file:///second"
            with warnings.catch_warnings(action="ignore"):  # the package deprecates it
                await client.session.send_roots_list_changed()
            assert await asked.get() == "file:///second"
            while "file:///second" not in text_of(await client.call_tool("get-roots-list", {})):
                pass


@pytest.mark.npm
@TRANSPORTS
async def test_the_filesystem_server_serves_the_folders_of_its_client_from_the_first_call(
    tmp_path: Path, transport: str, npm_server: ServerCommand
) -> None:
    note = tmp_path / "files" / "note.txt"
    note.parent.mkdir()
    note.write_text("kept")
    root, path = note.parent.as_uri(), {"path": str(note)}

    async def list_roots(context: ClientRequestContext) -> types.ListRootsResult:
        return types.ListRootsResult.model_validate({"roots": [{"uri": root}]})

    servers = {"files": entry(npm_server("mcp-server-filesystem"))}
    patient = {SETTLING: "1"}
    async with (
        running(tmp_path, servers, environment=patient) as (system, sdk),
        front(system) as url,
    ):
        target = Place(system, sdk, url).target(transport)
        async with Client(target, mode="legacy", list_roots_callback=list_roots) as client:
            assert text_of(await client.call_tool("read_text_file", path)) == "kept"
        read = await sdk.call_tool("files:read_text_file", path, roots=[root])
        assert read.text == "kept"


async def test_a_server_that_asks_a_client_without_a_stream_gets_an_error(tmp_path: Path) -> None:
    answer = tmp_path / "answer.json"
    servers = {"rooted": python_server("rooted.py", str(answer))}
    params: Any = INITIALIZE["params"]
    params = {**params, "capabilities": {"roots": {"listChanged": True}}}
    async with (
        running(tmp_path, servers) as (system, _),
        front(system) as url,
        aiohttp.ClientSession(headers=JSON) as http,
    ):
        async with http.post(url, json={**INITIALIZE, "params": params}) as opened:
            session = {"Mcp-Session-Id": opened.headers["Mcp-Session-Id"]}
        for message in (
            {"id": 1, "method": "tools/call", "params": {"name": "wait", "arguments": {}}},
            {"method": "notifications/roots/list_changed"},
        ):
            whole = {"jsonrpc": "2.0", **message}
            async with http.post(url, json=whole, headers=session) as response:
                assert response.ok
        await eventually(lambda: answer.exists() and answer.read_text())
        assert "has no stream" in json.loads(answer.read_text())["error"]["message"]
