"""MCP over HTTP: Leaseway's MCP front, and bare HTTP handlers as lower bounds."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence

from benchmarks.http_load import open_mcp
from benchmarks.load import Driver
from benchmarks.processes import SERVERS, echo_server, free_port, leaseway, run_process
from benchmarks.rows.own import POLICY
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
        yield await open_mcp([f"http://{line.split()[-1]}/mcp"], "echo", TEXT, [process.pid])


@contextlib.asynccontextmanager
async def _worker(
    policy: Mapping[str, object] | None = None, options: Sequence[str] = ()
) -> AsyncIterator[Driver]:
    """The same with the front in the worker's process; CPU of both."""
    address = f"127.0.0.1:{free_port()}"
    servers = {"echo": echo_server(**{"truely-stateless": True}, **(policy or {}))}
    async with leaseway(servers, options=["--mcp", address, *options]) as system:
        yield await open_mcp([f"http://{address}/mcp"], "echo", TEXT, [system.workers[0]])


@contextlib.asynccontextmanager
async def _worker_audited() -> AsyncIterator[Driver]:
    """The same with policy and audit."""
    with tempfile.TemporaryDirectory() as folder:
        async with _worker(POLICY, ["--audit", folder]) as driver:
            yield driver


@contextlib.asynccontextmanager
async def _bare() -> AsyncIterator[Driver]:
    """An aiohttp handler that returns a result of the same size."""
    async with contextlib.AsyncExitStack() as stack:
        command = [sys.executable, str(SERVERS / "bare_http.py")]
        process, line = await stack.enter_async_context(run_process(command, ready_text="http://"))
        yield await open_mcp([f"{line.split()[-1]}/mcp"], "echo", TEXT, [process.pid])


@contextlib.asynccontextmanager
async def _bare_grpc() -> AsyncIterator[Driver]:
    """The same with a gRPC call for each result: the cost of two hops."""
    async with contextlib.AsyncExitStack() as stack:
        echo = [sys.executable, str(SERVERS / "grpc_echo.py")]
        _, address = await stack.enter_async_context(run_process(echo, ready_text=":"))
        command = [sys.executable, str(SERVERS / "bare_http_grpc.py"), address]
        process, line = await stack.enter_async_context(run_process(command, ready_text="http://"))
        yield await open_mcp([f"{line.split()[-1]}/mcp"], "echo", TEXT, [process.pid])


ROWS = (
    Row("mcp_front", "Leaseway, MCP front over HTTP", _front, (1, 32, 128)),
    Row("mcp_worker", "Leaseway, MCP front in its worker", _worker, (1, 32, 128)),
    Row(
        "mcp_worker_audited",
        "Leaseway, the same, policy and audit on",
        _worker_audited,
        (1, 32, 128),
    ),
    Row("bare_http", "Bare aiohttp handler", _bare, (1, 32, 128)),
    Row("bare_http_grpc", "Bare aiohttp handler, a gRPC call each", _bare_grpc, (1, 32, 128)),
)
