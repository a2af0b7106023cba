"""The client command of the official suite: tests the worker's MCP client with a server at a URL.

It runs a whole Leaseway with that server, and uses its tools, prompts and resources through the
SDK. The suite checks the requests of the worker. The URL is the last argument.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import yaml

from leaseway.sdk import AsyncClient, LeasewayError

BOUND = 60.0
SCENARIO = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
VERSION = os.environ.get("MCP_CONFORMANCE_PROTOCOL_VERSION", "")
CONTEXT = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
ARGUMENTS = {"add_numbers": {"a": 5, "b": 3}, "valid_tool": {"region": "us-west1"}}


@contextlib.asynccontextmanager
async def leaseway(url: str) -> AsyncIterator[str]:
    """Run a Leaseway with one server; yields its address."""
    server = {"transport": "streamable_http", "url": url, "truely-stateless": VERSION >= "2026"}
    if VERSION < "2026":
        server["protocol"] = "legacy"
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "mcp.yaml"
        config.write_text(yaml.safe_dump({"version": 1, "servers": {"suite": server}}))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "leaseway.cli.main", "up"),
            *("--config", str(config), "--listen", "127.0.0.1:0", "--artifacts", folder),
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(BOUND):
                line = (await process.stdout.readline()).decode()
            yield line.removeprefix("ready ").strip()
        finally:
            process.terminate()
            await process.wait()


def accept(params: dict[str, Any]) -> dict[str, Any]:
    """Accept an elicitation with all defaults."""
    properties = params.get("requestedSchema", {}).get("properties", {})
    content = {name: item["default"] for name, item in properties.items() if "default" in item}
    return {"action": "accept", "content": content or {"confirmed": True}}


async def use(client: AsyncClient) -> None:
    """Call all tools, get all prompts and read all resources."""
    tools = {tool.name for tool in await client.list_tools()}
    calls = CONTEXT.get("toolCalls") or [
        {"name": name, "arguments": ARGUMENTS.get(name, {})} for name in tools
    ]
    async with asyncio.TaskGroup() as group:
        for call in calls:
            if call["name"] in tools:
                group.create_task(call_tool(client, call["name"], call["arguments"]))
    for prompt in await client.list_prompts():
        with contextlib.suppress(LeasewayError):
            await client.get_prompt(prompt.name)
    for resource in await client.list_resources():
        with contextlib.suppress(LeasewayError):
            await client.read_resource(resource.uri)


async def call_tool(client: AsyncClient, name: str, arguments: dict[str, Any]) -> None:
    """Call a tool and print an error, because the suite judges the requests."""
    try:
        await client.call_tool(name, arguments, on_elicitation=accept, timeout=BOUND)
    except LeasewayError as error:
        print(f"{name}: {error}", file=sys.stderr)


async def main() -> None:
    """Run one scenario."""
    async with leaseway(sys.argv[-1]) as address, AsyncClient(address) as client:
        await use(client)


asyncio.run(main())
