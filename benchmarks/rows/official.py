"""The official `mcp` client calling the same servers directly."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator
from typing import Any

from mcp import StdioServerParameters
from mcp.client import Client

from benchmarks.load import AsyncDriver, Driver
from benchmarks.processes import SERVERS, run_process
from benchmarks.rows.row import TEXT, Row, check

__all__ = ["ROWS"]


def _driver(client: Any) -> Driver:
    async def call(_caller: int) -> None:
        result = await client.call_tool("echo", {"text": TEXT})
        check(result.content[0].text, TEXT)

    return AsyncDriver(call)


@contextlib.asynccontextmanager
async def _stdio() -> AsyncIterator[Driver]:
    server = StdioServerParameters(command=sys.executable, args=[str(SERVERS / "echo.py")])
    async with Client(server, mode="legacy") as client:
        await client.list_tools()
        yield _driver(client)


@contextlib.asynccontextmanager
async def _http() -> AsyncIterator[Driver]:
    command = [sys.executable, str(SERVERS / "echo_http.py")]
    async with (
        run_process(command, ready_text="http://") as (_, url),
        Client(url, mode="legacy") as client,
    ):
        await client.list_tools()
        yield _driver(client)


ROWS = (
    Row("official_stdio", "official client, stdio, direct", _stdio, (1, 32, 128)),
    Row("official_http", "official client, HTTP, direct", _http, (1, 32, 128)),
)
