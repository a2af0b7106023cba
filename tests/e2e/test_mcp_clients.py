"""MCP clients of other projects list and call tools, over HTTP and over stdio."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.e2e.clients import CLIENTS, node, output_of
from tests.e2e.mcp_front import TRANSPORTS, Place, front, no_leases
from tests.e2e.system import LEASEWAY, eventually, python_server, running


@pytest.fixture(scope="module")
async def place(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Place]:
    """Run one system with one front, a leased server, and one whose lists break every rule."""
    odd = {**python_server("odd_lists.py"), "transform": [{"prefix": "odd_"}]}
    servers = {"echo": python_server("echo_raw.py"), "odd": odd | {"truely-stateless": True}}
    async with (
        running(tmp_path_factory.mktemp("system"), servers) as (system, sdk),
        front(system) as url,
    ):
        yield Place(system, sdk, url)


def target(place: Place, transport: str) -> list[str]:
    """Return the front's URL, or the command that starts it as a desktop client does."""
    if transport == "http":
        return [place.url]
    return [*LEASEWAY, "mcp", "--address", place.system.address]


@TRANSPORTS
@pytest.mark.parametrize(
    "client", ["mcp1.py", "fastmcp_client.py", "typescript.mjs", "typescript2.mjs"]
)
async def test_the_client_of_another_project_lists_and_calls(
    place: Place, conformance_folder: Path, client: str, transport: str
) -> None:
    if client.endswith(".py"):
        command = [str(conformance_folder / "env" / "bin" / "python"), str(CLIENTS / client)]
    else:
        command = [node(conformance_folder), str(CLIENTS / client), str(conformance_folder)]
    output = await output_of(*command, *target(place, transport))
    names, text = output.splitlines()[-2:]
    assert {"echo", "slow", "progress"} <= set(names.split())
    assert {f"odd_t{number}" for number in range(19)} <= set(names.split())
    assert text == "hello"
    await eventually(lambda: no_leases(place.sdk))


@TRANSPORTS
async def test_the_command_of_the_inspector_lists_and_calls(
    place: Place, conformance_folder: Path, transport: str
) -> None:
    program = conformance_folder / "node_modules" / ".bin" / "mcp-inspector"
    options = ["--transport", "http"] if transport == "http" else []
    base = [node(conformance_folder), str(program), "--cli", *target(place, transport), *options]
    listed = json.loads(await output_of(*base, "--method", "tools/list"))
    assert {"echo", "slow"} <= {tool["name"] for tool in listed["tools"]}
    call = ["--method", "tools/call", "--tool-name", "echo", "--tool-arg", "text=hello"]
    result = json.loads(await output_of(*base, *call))
    assert result["content"][0]["text"] == "hello"


async def test_what_a_server_lists_and_answers_is_passed_on_as_far_as_it_can_be_read(
    place: Place,
) -> None:
    tools = {tool.name: tool for tool in await place.sdk.list_tools(["odd"])}
    assert tools.keys() == {f"odd_t{number}" for number in range(19)}
    assert tools["odd_t16"].description == "cut \ufffd"
    assert tools["odd_t17"].description == "caf\ufffd"
    result = await place.sdk.call_tool("odd_t0", {})
    assert (result.text, result.structured) == ("half \ufffd, caf\ufffd", [None, 2**70])
    assert [prompt.name for prompt in await place.sdk.list_prompts()] == ["odd_p0", "odd_p1"]
    assert [resource.uri for resource in await place.sdk.list_resources()] == ["a:b"]
    texts = {problem.reason: problem.message for problem in await place.sdk.problems()}
    for name in ("'long'", "'deep300'", "'deep995'", "'deep20000'", "circular", "'notes.txt'"):
        assert name in texts["DEFINITIONS_LEFT_OUT"]
    for name in ("'t1'", "'t17'", "'p0'", "'a:b'", "'a:{b}'"):
        assert name in texts["DEFINITIONS_CORRECTED"]
