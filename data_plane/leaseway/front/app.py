"""The front as a process: what it consists of, from its first request to its last."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from leaseway.front.calling.media import MediaWish
from leaseway.front.calling.sealing import Sealer
from leaseway.front.calling.sessions import IDLE, MAX_SESSIONS, EndedSessions, SessionTable
from leaseway.front.catalog import Catalog
from leaseway.front.greeting import Greeter
from leaseway.front.http.admission import Admission
from leaseway.front.http.callers import Callers
from leaseway.front.http.door import Door
from leaseway.front.http.streamable import HttpFront
from leaseway.front.methods import Methods
from leaseway.front.stdio import StdioFront
from leaseway.identity.authenticator import Authenticator
from leaseway.sdk import AsyncClient
from leaseway.telemetry.http_listener import HttpListener
from leaseway.wire.channels.endpoint import Endpoint
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
        media: How clients that do not say want images and sounds.
        handles: Whether clients of 2026-07-28 are listed the tools for handles of leases.
        tells_problems: Whether its client runs this Leaseway itself, and is told of its errors.
        agent: What calls show in leases and traces.
        public_url: By which clients reach it, where a proxy is between; else empty.
        authenticator: Who callers are, each by its own credential; None means that all are one,
            who sends the shared key where there is one.
    """

    control_plane: Endpoint
    tenant: str = DEFAULT_TENANT
    key: str | None = None
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    idle: float = IDLE
    sessions: int = MAX_SESSIONS
    search: bool = False
    media: MediaWish = "inline"
    handles: bool = True
    tells_problems: bool = False
    agent: str = field(default="mcp")
    public_url: str = ""
    authenticator: Authenticator | None = None


async def run_http(
    options: FrontOptions, listener: McpListener, ready: Callable[[str], None]
) -> int:
    """Serve MCP over HTTP until SIGINT or SIGTERM.

    Leases of sessions are not given back: another front may go on with them, else they end by
    themselves within a minute.
    """
    stopped = _stop_signal()
    sealer = Sealer(options.key, "mcp session")
    ended = EndedSessions()
    authenticator = options.authenticator

    def make(tenant: str, agent: str, key: str | None) -> HttpFront:
        client = AsyncClient(str(options.control_plane), agent=agent, tenant=tenant, key=key)
        catalog = Catalog(client)
        sessions = SessionTable(
            client,
            sealer,
            tenant,
            idle=options.idle,
            limit=options.sessions,
            count=lambda: callers.sessions,
            ended=ended,
        )
        methods = Methods(
            client,
            catalog,
            search=options.search,
            media=options.media,
            handles=options.handles,
        )
        return HttpFront(client, catalog, methods, sessions)

    callers = Callers(make, options.tenant, options.agent, options.key, authenticator)
    # With an authenticator, that one checks what callers send.
    key = options.key if authenticator is None else None
    admission = Admission(listener.endpoint, key, options.origins, options.hosts)
    door = Door(admission, callers, options.public_url)
    async with callers.running(), door.serving(listener.socket, listener.tls):
        ready(str(listener.endpoint))
        await stopped.wait()
    return 0


async def run_stdio(options: FrontOptions, scope: str, greeter: Greeter) -> int:
    """Serve one MCP client over stdin and stdout until it hangs up, or SIGINT or SIGTERM.

    Args:
        options: Which Leaseway it sees.
        scope: The server that it sees; empty means all.
        greeter: Has its first lines, and where it is answered.
    """
    stopped = _stop_signal()
    async with _client(options) as client:
        catalog = Catalog(client)
        methods = Methods(
            client,
            catalog,
            search=options.search,
            media=options.media,
            handles=options.handles,
            tells_problems=options.tells_problems,
        )
        front = StdioFront(client, catalog, methods, options.tenant, scope=scope, greeter=greeter)
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
