"""Fronts and clients of MCP for tests of whole systems."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
import yaml
from mcp.shared.message import SessionMessage
from tests.conftest import BOUND
from tests.e2e.forking import fork_leaseway
from tests.e2e.system import Part, System, python_server

from leaseway.sdk import AsyncClient, LeaseInfo

ERAS = ("legacy", "2026-07-28")
PLACES = pytest.mark.parametrize("transport", ["http", "worker", "stdio"])
"""Where fronts are: in processes of their own, in a worker's, at a desktop client."""
TRANSPORTS = pytest.mark.parametrize("transport", ["http", "stdio"])
JSON = {"Accept": "application/json, text/event-stream"}
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "0"},
    },
}
ROOTS = {"roots": [{"uri": "file:///srv/data"}]}
COUNTER = {"counter": python_server("counter.py")}
KEY = "a-key-that-all-know"
BEARER = {**JSON, "Authorization": f"Bearer {KEY}"}


class Stdio:
    """An MCP transport to a fork of `leaseway mcp`: each connection is a new process."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = ("mcp", *arguments)
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Any:
        return await self._stack.enter_async_context(self._connect())

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    @asynccontextmanager
    async def _connect(self) -> AsyncIterator[Any]:
        process = await fork_leaseway(self._arguments, os.environ, None)
        received, incoming = anyio.create_memory_object_stream[SessionMessage](0)
        outgoing, sent = anyio.create_memory_object_stream[SessionMessage](0)

        async def read() -> None:
            async with received:
                async for line in process.stdout:
                    message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
                    await received.send(SessionMessage(message))

        async def write() -> None:
            async with sent:
                async for message in sent:
                    line = message.message.model_dump_json(by_alias=True, exclude_unset=True) + "\n"
                    await asyncio.to_thread(process.stdin.write, line.encode())

        try:
            async with anyio.create_task_group() as group:
                group.start_soon(read)
                group.start_soon(write)
                yield incoming, outgoing
                group.cancel_scope.cancel()
        finally:
            process.stdin.close()
            async with asyncio.timeout(BOUND):
                await process.wait()


@dataclass(frozen=True)
class Place:
    """A system, an SDK client of it, and the URLs at which its front and its worker serve MCP."""

    system: System
    sdk: AsyncClient
    url: str
    worker_url: str = ""

    def target(self, transport: str) -> Any:
        """Return what an MCP client connects to over a transport."""
        if transport == "stdio":
            return stdio(self.system)
        return self.url if transport == "http" else self.worker_url


def echo(*tools: str, **settings: object) -> dict[str, object]:
    """Return the entry of a shared server with some tools of `echo_raw`."""
    return python_server(
        "echo_raw.py", **{"truely-stateless": True}, tools={"whitelist": list(tools)}, **settings
    )


@asynccontextmanager
async def front(system: System, *options: str) -> AsyncIterator[str]:
    """Run a front for a system; yield its URL."""
    part = await system._start(
        "mcp-front", "--control-plane", system.address, "--listen", "127.0.0.1:0", *options
    )
    try:
        yield f"http://{part.address}/mcp"
    finally:
        await part.end()
        print("\n".join(part.log))


def stdio(system: System, *options: str) -> Stdio:
    """Return the transport of a desktop client."""
    return Stdio("--address", system.address, *options)


def write_config(folder: Path, servers: Mapping[str, object]) -> Path:
    """Write a configuration; return its path."""
    config = folder / "mcp.yaml"
    config.write_text(yaml.safe_dump({"version": 1, "servers": servers}))
    return config


def text_of(result: types.CallToolResult) -> str:
    """Return the text of a result, without that which says a session."""
    texts = [item.text for item in result.content if isinstance(item, types.TextContent)]
    return "".join(text for text in texts if not text.startswith("\nSession: "))


async def counters(sdk: AsyncClient) -> list[LeaseInfo]:
    """Return the leases of the server that counts; other tests may have left some of others."""
    return [lease for lease in await sdk.leases() if lease.server_id == "counter"]


async def has_leases(sdk: AsyncClient, count: int) -> bool:
    """Return whether so many leases of the server that counts are held."""
    return len(await counters(sdk)) == count


async def no_leases(sdk: AsyncClient) -> bool:
    """Return whether no lease is held."""
    return not await sdk.leases()


@asynccontextmanager
async def part(system: System, *options: str) -> AsyncIterator[Part]:
    """Run a front that the test may kill."""
    started = await system._start(
        "mcp-front", "--control-plane", system.address, "--listen", "127.0.0.1:0", *options
    )
    try:
        yield started
    finally:
        if started.process.returncode is None:
            await started.end()
        print("\n".join(started.log))
