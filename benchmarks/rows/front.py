"""MCP over HTTP: Leaseway's MCP front, and bare HTTP handlers as lower bounds."""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import AsyncIterator

from benchmarks.http_load import open_mcp
from benchmarks.load import Driver
from benchmarks.processes import SERVERS, echo_server, leaseway, run_process
from benchmarks.rows.row import TEXT, Row

__all__ = ["ROWS"]

_ANY_PORT = "127.0.0.1:0"


@contextlib.asynccontextmanager
async def _front() -> AsyncIterator[Driver]:
    """One MCP session over HTTP to a shared stdio server; CPU of the front only."""
    async with contextlib.AsyncExitStack() as stack:
        servers = {"echo": echo_server(**{"truely-stateless": True})}
        system = await stack.enter_async_context(leaseway(servers))
        command = [sys.executable, "-m", "leaseway.cli.main", "mcp-front"]
        command += ["--control-plane", system.address, "--listen", _ANY_PORT]
        process, line = await stack.enter_async_context(run_process(command, ready_text="ready "))
        yield await open_mcp(f"http://{line.split()[-1]}/mcp", "echo", TEXT, [process.pid])


@contextlib.asynccontextmanager
async def _worker() -> AsyncIterator[Driver]:
    """The same with the front in the worker's process; CPU of both."""
    async with contextlib.AsyncExitStack() as stack:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        servers = {"echo": echo_server(**{"truely-stateless": True})}
        system = await stack.enter_async_context(leaseway(servers, options=["--mcp", address]))
        yield await open_mcp(f"http://{address}/mcp", "echo", TEXT, [system.workers[0]])


@contextlib.asynccontextmanager
async def _bare() -> AsyncIterator[Driver]:
    """An aiohttp handler that returns a result of the same size."""
    async with contextlib.AsyncExitStack() as stack:
        command = [sys.executable, str(SERVERS / "bare_http.py")]
        process, line = await stack.enter_async_context(run_process(command, ready_text="http://"))
        yield await open_mcp(f"{line.split()[-1]}/mcp", "echo", TEXT, [process.pid])


@contextlib.asynccontextmanager
async def _bare_grpc() -> AsyncIterator[Driver]:
    """The same with a gRPC call for each result: the cost of two hops."""
    async with contextlib.AsyncExitStack() as stack:
        echo = [sys.executable, str(SERVERS / "grpc_echo.py")]
        _, address = await stack.enter_async_context(run_process(echo, ready_text=":"))
        command = [sys.executable, str(SERVERS / "bare_http_grpc.py"), address]
        process, line = await stack.enter_async_context(run_process(command, ready_text="http://"))
        yield await open_mcp(f"{line.split()[-1]}/mcp", "echo", TEXT, [process.pid])


ROWS = (
    Row("mcp_front", "Leaseway, MCP front over HTTP", _front, (1, 32, 128)),
    Row("mcp_worker", "Leaseway, MCP front in its worker", _worker, (1, 32, 128)),
    Row("bare_http", "Bare aiohttp handler", _bare, (1, 32, 128)),
    Row("bare_http_grpc", "Bare aiohttp handler, a gRPC call each", _bare_grpc, (1, 32, 128)),
)
