"""The front as a process: what it consists of, from its first request to its last."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from leaseway.front.admission import Admission
from leaseway.front.catalog import Catalog
from leaseway.front.http import HttpFront
from leaseway.front.methods import Methods
from leaseway.front.sealing import Sealer
from leaseway.front.sessions import IDLE, MAX_SESSIONS, SessionTable
from leaseway.front.stdio import StdioFront
from leaseway.sdk import AsyncClient
from leaseway.telemetry.http_listener import HttpListener
from leaseway.wire.endpoint import Endpoint
from leaseway.wire.names import DEFAULT_TENANT


class McpListener(HttpListener):
    """Where MCP clients reach a front."""

    noun = "mcp"
    option = "--mcp"
    path = "/mcp"


@dataclass(frozen=True)
class FrontOptions:
    """What a front is started with.

    Attributes:
        control_plane: Which Leaseway it serves.
        tenant: Whose tools its clients see.
        key: The shared key, or None.
        origins: Origins of web pages that may ask, beside this machine's.
        hosts: Names by which clients reach it, beside this machine's.
        idle: Seconds after which a session that nobody uses is forgotten.
        sessions: The most sessions.
        search: Whether clients are listed tools to search with instead of all tools.
        agent: What calls show in leases and traces.
    """

    control_plane: Endpoint
    tenant: str = DEFAULT_TENANT
    key: str | None = None
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    idle: float = IDLE
    sessions: int = MAX_SESSIONS
    search: bool = False
    agent: str = field(default="mcp")


async def run_http(
    options: FrontOptions, listener: McpListener, ready: Callable[[str], None]
) -> int:
    """Serve MCP over HTTP until SIGINT or SIGTERM.

    Leases of sessions are not given back: another front may go on with them, else they end by
    themselves within a minute.
    """
    stopped = _stop_signal()
    async with _client(options) as client:
        catalog = Catalog(client)
        sealer = Sealer(options.key, "mcp session")
        sessions = SessionTable(
            client, sealer, options.tenant, idle=options.idle, limit=options.sessions
        )
        admission = Admission(listener.endpoint, options.key, options.origins, options.hosts)
        front = HttpFront(
            client, catalog, Methods(client, catalog, search=options.search), sessions, admission
        )
        reaping = asyncio.create_task(sessions.reap(), name="front reaper")
        try:
            async with front.serving(listener.socket, listener.tls):
                ready(str(listener.endpoint))
                await stopped.wait()
        finally:
            reaping.cancel()
            await asyncio.gather(reaping, return_exceptions=True)
            await sessions.leave()
            await catalog.close()
    return 0


async def run_stdio(options: FrontOptions, scope: str, output: int) -> int:
    """Serve one MCP client over stdin and stdout until it hangs up, or SIGINT or SIGTERM.

    Args:
        options: Which Leaseway it sees.
        scope: The server that it sees; empty means all.
        output: The descriptor that carries the protocol.

    """
    stopped = _stop_signal()
    async with _client(options) as client:
        catalog = Catalog(client)
        methods = Methods(client, catalog, search=options.search)
        front = StdioFront(
            client, catalog, methods, options.tenant, scope=scope, descriptors=(0, output)
        )
        serving = asyncio.create_task(front.serve(), name="front stdio")
        waiting = asyncio.create_task(stopped.wait(), name="front signals")
        try:
            await asyncio.wait((serving, waiting), return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()
        finally:
            for task in (serving, waiting):
                task.cancel()
            await asyncio.gather(serving, waiting, return_exceptions=True)
            await catalog.close()
    return 0


@contextlib.asynccontextmanager
async def _client(options: FrontOptions) -> AsyncIterator[AsyncClient]:
    client = AsyncClient(
        str(options.control_plane), agent=options.agent, tenant=options.tenant, key=options.key
    )
    async with client:
        yield client


def _stop_signal() -> asyncio.Event:
    """Return an event that SIGINT and SIGTERM set."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    return stopped
