"""Compatibility with the official package's servers and client.

The same calls over the official transports and over ours have the same results, and the servers
receive the same messages.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mcp_types import CLIENT_CAPABILITIES_META_KEY
from tests.data_plane.mcp.conftest import Bench

from leaseway.data_plane.mcp.protocol.messages.client_meta import CLIENT_INFO
from leaseway.spec.references import Value
from leaseway.wire.messages.mcp import Introduction

SERVERS = Path(__file__).parents[2] / "servers"
PROTOCOLS = pytest.mark.parametrize(
    ("protocol", "version"), [("auto", "2026-07-28"), ("legacy", "2025-11-25")]
)
Script = list[tuple[str, dict[str, Any]]]
SCRIPT: Script = [
    ("echo", {"text": "hé\n\u2028", "n": 1.5, "deep": {"list": [1, None, True]}}),
    ("echo", {}),
    ("fail", {}),
    ("meta", {}),
    ("echo", {"text": "x" * 300_000}),
]
HTTP_SCRIPT: Script = [("echo", arguments) for _, arguments in SCRIPT]
HTTP_SCRIPT += [("echo", {"text": "meta"}), ("region", {"region": "eu"}), ("region", {})]


@PROTOCOLS
async def test_the_official_http_server_may_answer_with_json(
    bench: Bench, protocol: str, version: str
) -> None:
    options = ("json", "legacy") if protocol == "legacy" else ("json",)
    async with bench.serving("official_http", *options) as address:
        instance = await bench.start(bench.http_spec(f"{address}/mcp", protocol=protocol))
        assert instance.protocol_version == version
        assert list(instance.tools) == ["echo", "meta", "fail", "progress"]
        assert await bench.text(instance, "echo", {"text": "hi"}) == "hi"


def comparable(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rename request ids in order of their first use; remove capabilities.

    Our client announces the server requests that it answers, and lists what any caller may call;
    the official one here has none.
    """
    names: dict[Any, str] = {}
    for message in messages:
        if message.get("method") == "initialize":
            message["params"].pop("capabilities")
        if message.get("method") == "tools/list":
            meta = message.get("params", {}).get("_meta", {})
            meta.pop(CLIENT_CAPABILITIES_META_KEY, None)
        if "id" in message:
            message["id"] = names.setdefault(message["id"], f"id {len(names)}")
    return messages


def plain(result: dict[str, Any]) -> dict[str, Any]:
    """Drop what the official models drop: unknown and empty fields."""
    return {
        "content": result["content"],
        "isError": bool(result.get("isError")),
        "structuredContent": result.get("structuredContent"),
    }


def read(log: Path) -> list[dict[str, Any]]:
    # Not splitlines: a message may contain other line separators.
    return [json.loads(line) for line in log.read_text().split("\n") if line]


async def official_results(client: Client, script: Script) -> list[dict[str, Any]]:
    results = []
    async with client:
        await client.list_tools()
        for tool, arguments in script:
            result = await client.call_tool(tool, arguments)
            results.append(plain(result.model_dump(by_alias=True, exclude_none=True)))
    return results


async def our_results(bench: Bench, instance: Any, script: Script) -> list[dict[str, Any]]:
    outcomes = [await bench.call(instance, tool, arguments) for tool, arguments in script]
    await instance.close()
    return [plain(json.loads(outcome.payload)) for outcome in outcomes]


@pytest.mark.parametrize("protocol", ["auto", "legacy"])
async def test_pipes_carry_the_same_as_the_official_transport(
    bench: Bench, tmp_path: Path, protocol: str
) -> None:
    server = str(SERVERS / "echo_raw.py")
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    parameters = StdioServerParameters(command=sys.executable, args=[server, "--log", str(theirs)])
    client = Client(
        stdio_client(parameters),
        mode="auto" if protocol == "auto" else "legacy",
        client_info=CLIENT_INFO,
    )
    expected = await official_results(client, SCRIPT)
    instance = await bench.start(bench.stdio("echo_raw", "--log", str(ours), protocol=protocol))
    assert await our_results(bench, instance, SCRIPT) == expected
    assert comparable(read(ours)) == comparable(read(theirs))


@pytest.mark.parametrize("protocol", ["auto", "legacy"])
@pytest.mark.parametrize("options", [(), ("--sse",)], ids=["json", "sse"])
async def test_http_carries_the_same_as_the_official_transport(
    bench: Bench, tmp_path: Path, protocol: str, options: tuple[str, ...]
) -> None:
    era = ("--legacy",) if protocol == "legacy" else ()
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    async with bench.serving("http_raw", *options, *era, "--log", str(theirs)) as address:
        mode = "auto" if protocol == "auto" else "legacy"
        client = Client(f"{address}/mcp", mode=mode, client_info=CLIENT_INFO)
        expected = await official_results(client, HTTP_SCRIPT)
    async with bench.serving("http_raw", *options, *era, "--log", str(ours)) as address:
        instance = await bench.start(bench.http_spec(f"{address}/mcp", protocol=protocol))
        assert await our_results(bench, instance, HTTP_SCRIPT) == expected
    posts = [[entry["body"] for entry in read(log)] for log in (theirs, ours)]
    assert comparable(posts[1]) == comparable(posts[0])
    headers = [[entry["headers"] for entry in read(log)] for log in (theirs, ours)]
    assert headers[1] == headers[0]


async def test_event_streams_carry_the_same_as_the_official_transport(bench: Bench) -> None:
    script: Script = [("say", {"text": text}) for text in ("hé\n\u2028", "", "x" * 300_000)]
    raw = importlib.import_module("tests.servers.stream_raw").RawServer()
    await raw.start()
    try:
        url = f"http://{raw.base}/sse/good"
        client = Client(sse_client(url), mode="legacy", client_info=CLIENT_INFO)
        expected = await official_results(client, script)
        theirs, raw.posts = raw.posts, []
        instance = await bench.start(bench.at("sse", url, protocol="legacy"))
        assert await our_results(bench, instance, script) == expected
        assert comparable(raw.posts) == comparable(theirs)
    finally:
        await raw.stop()


@PROTOCOLS
async def test_the_instructions_of_a_server_are_kept_without_its_secrets(
    bench: Bench, protocol: str, version: str
) -> None:
    env = {
        "INSTRUCTIONS": Value("literal", "Use echo; not s3cr3t-t0k3n-9."),
        "TOKEN": Value("env", "HOST_TOKEN"),
    }
    spec = bench.forked("official_stdio", env=env, protocol=protocol)
    environment = {**os.environ, "HOST_TOKEN": "s3cr3t-t0k3n-9"}
    instance = await bench.start(spec, environment)
    assert instance.protocol_version == version
    assert instance.introduction == Introduction("Use echo; not [hidden].")
