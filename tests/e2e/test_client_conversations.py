"""Clients of other projects keep the state of a real server, with one process a conversation."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from tests.conftest import ServerCommand
from tests.e2e.clients import CLIENTS, node, output_of
from tests.e2e.mcp_front import Place, front
from tests.e2e.system import running


@pytest.fixture(scope="module")
async def place(
    tmp_path_factory: pytest.TempPathFactory, npm_server: ServerCommand
) -> AsyncIterator[Place]:
    """Run the official memory and everything servers; each process has a file of its own."""
    (memory,) = npm_server("mcp-server-memory")
    (everything,) = npm_server("mcp-server-everything")
    script = f'MEMORY_FILE_PATH="$PWD/memory.json" exec "{memory}"'
    servers: dict[str, Any] = {
        "memory": {
            "transport": "stdio",
            "command": "sh",
            "args": ["-c", script],
            "cwd": "private",
        },
        "notes": {
            "transport": "stdio",
            "command": "sh",
            "args": ["-c", script],
            "cwd": "private",
            "sessions_from": ["principal"],
            "transform": [{"prefix": "my_"}],
        },
        "everything": {
            "transport": "stdio",
            "command": everything,
            "transform": [{"prefix": "all_"}],
        },
    }
    async with (
        running(tmp_path_factory.mktemp("system"), servers) as (system, sdk),
        front(system) as url,
    ):
        yield Place(system, sdk, url)


@pytest.mark.parametrize("era", ["legacy", "2026-07-28"])
async def test_the_official_client_has_one_process_a_conversation(place: Place, era: str) -> None:
    async with Client(place.url, mode=era) as one, Client(place.url, mode=era) as other:
        for name, client in (("a", one), ("b", other)):
            entity = {"name": name, "entityType": "letter", "observations": []}
            await client.call_tool("create_entities", {"entities": [entity]})
            echoed = await client.call_tool("all_echo", {"message": name})
            assert echoed.content[0].text == f"Echo: {name}"  # type: ignore[union-attr]
        for name, client in (("a", one), ("b", other)):
            graph: Any = (await client.call_tool("read_graph", {})).structured_content
            assert [entity["name"] for entity in graph["entities"]] == [name]


@pytest.mark.parametrize("client", ["fastmcp", "legacy", "2026-07-28"])
async def test_clients_of_other_languages_have_one_process_a_conversation(
    place: Place, conformance_folder: Path, client: str
) -> None:
    if client == "fastmcp":
        python = str(conformance_folder / "env" / "bin" / "python")
        command = [python, str(CLIENTS / "conversations.py"), place.url]
    else:
        script = str(CLIENTS / "conversations.mjs")
        command = [node(conformance_folder), script, str(conformance_folder), place.url, client]
    output = await output_of(*command)
    assert json.loads(output.splitlines()[-1]) == [["a"], ["b"]]


async def test_commands_of_the_inspector_share_the_state_of_their_principal(
    place: Place, conformance_folder: Path
) -> None:
    program = conformance_folder / "node_modules" / ".bin" / "mcp-inspector"
    base = [node(conformance_folder), str(program), "--cli", place.url, "--transport", "http"]
    call = [*base, "--method", "tools/call", "--tool-name"]
    for name in ("a", "b"):  # each command is a connection of its own
        entity: dict[str, Any] = {"name": name, "entityType": "letter", "observations": []}
        given = f"entities={json.dumps([entity])}"
        await output_of(*call, "my_create_entities", "--tool-arg", given)
    found = json.loads(await output_of(*call, "my_read_graph"))
    graph = found["structuredContent"]
    assert [entity["name"] for entity in graph["entities"]] == ["a", "b"]
