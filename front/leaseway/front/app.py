"""The front as a process: builds its parts, and serves HTTP or stdio."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field

from leaseway.front.calling.conversations import SessionOptions
from leaseway.front.calling.media import MediaMode
from leaseway.front.draining import Drain
from leaseway.front.http.callers import Callers
from leaseway.front.http.request_checks import AccessCheck
from leaseway.front.http.resumption import ResumableStreams, kept_events
from leaseway.front.http.server import HttpServer
from leaseway.front.http.streamable import HttpFront
from leaseway.front.methods import Methods
from leaseway.front.sessions.ended import EndedSessions, SharedEnds
from leaseway.front.sessions.limits import SessionLimits
from leaseway.front.sessions.sealing import Owner, Sealer
from leaseway.front.sessions.table import IDLE, MAX_SESSIONS, SessionTable
from leaseway.front.starts import report_starts
from leaseway.front.stdio import StdioFront
from leaseway.front.stdio_handshake import HandshakeResponder
from leaseway.identity.authenticator import Authenticator
from leaseway.sdk import AsyncClient
from leaseway.sdk.relay import RelayClient
from leaseway.telemetry.http_listener import HttpListener
from leaseway.wire.bounds import SESSIONS_PER_CLIENT, SHUTDOWN_TIMEOUT
from leaseway.wire.channels import ancestors
from leaseway.wire.channels.endpoint import Endpoints
from leaseway.wire.channels.local import LocalWorker
from leaseway.wire.names import DEFAULT_TENANT
from leaseway.wire.sharing.fair_shares import Holder


class McpListener(HttpListener):
    """The HTTP listener for MCP clients."""

    noun = "mcp"
    option = "--mcp"
    path = "/mcp"


@dataclass(frozen=True)
class FrontOptions:
    """The options of a front.

    Attributes:
        control_planes: The addresses of the control planes, of which one leads.
        tenant: The tenant whose tools clients see.
        key: The shared key, or None.
        origins: Allowed origins of web pages, in addition to this machine's.
        hosts: Allowed host names of the front, in addition to this machine's.
        idle: Seconds after which an unused session is forgotten.
        sessions: The limit of sessions.
        search: Whether to list three search tools instead of all tools.
        media: How clients get images and audio by default.
        handles: Whether to offer handles, arguments for sessions and cookies to clients whose
            protocol has no sessions.
        found_by: How the session of a call is found.
        per_client: The limit of sessions with leases of one client program of one principal.
        shows_problems: Whether the client runs this Leaseway, so that it is shown configuration
            errors if there are no tools.
        agent: The agent name of calls in leases and traces.
        public_url: The URL of the front behind a proxy, or empty.
        authenticator: Authenticates callers by their own credentials; None means that all
            clients are one caller with the shared key, if any.
        drain_timeout: Seconds that requests in flight get when the front ends.
    """

    control_planes: Endpoints
    tenant: str = DEFAULT_TENANT
    key: str | None = None
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    idle: float = IDLE
    sessions: int = MAX_SESSIONS
    search: bool = False
    media: MediaMode = "inline"
    handles: bool = True
    found_by: SessionOptions = field(default_factory=SessionOptions)
    per_client: int = SESSIONS_PER_CLIENT
    shows_problems: bool = False
    agent: str = "mcp"
    public_url: str = ""
    authenticator: Authenticator | None = None
    drain_timeout: float = SHUTDOWN_TIMEOUT


async def run_http(
    options: FrontOptions, listener: McpListener, ready: Callable[[str], None]
) -> int:
    """Serve MCP over HTTP until SIGINT or SIGTERM, then finish the requests in flight."""
    drain = Drain(options.drain_timeout)
    drain.handle_signals()
    async with serving_http(options, listener, drain) as server:
        ready(str(listener.endpoint))
        await drain.started.wait()
        await server.drain()
    return 0


@contextlib.asynccontextmanager
async def serving_http(
    options: FrontOptions,
    listener: McpListener,
    drain: Drain,
    local: LocalWorker | None = None,
) -> AsyncIterator[HttpServer]:
    """Serve MCP over HTTP while the block runs.

    Leases of sessions are not released at its end: another front may continue them. They are kept
    for as long as a session may be idle.

    Args:
        options: The options.
        listener: Where it listens.
        drain: How it ends.
        local: The worker of this process, whose servers are called without a connection; or None.
    """
    sealer = Sealer(options.key, "mcp session")
    ended = EndedSessions()
    limits = SessionLimits(options.per_client)
    kept = kept_events()
    authenticator = options.authenticator

    def build_front(
        tenant: str, agent: str, key: str | None, principal: str, user: str
    ) -> HttpFront:
        client = RelayClient(
            str(options.control_planes),
            agent=agent,
            tenant=tenant,
            key=key,
            user=user,
            local=local,
        )
        sessions = SessionTable(
            client,
            sealer,
            Owner(tenant, f"{principal}\n{user}" if user else principal),
            idle=options.idle,
            limit=options.sessions,
            count=lambda: callers.sessions,
            ended=ended,
            ends=SharedEnds(client, ended),
            limits=limits,
            make_room=lambda: callers.make_room_for_session(front),
        )
        own = _digest_of_control_plane(options)
        methods = _methods(options, client, drain)
        front = HttpFront(
            methods,
            sessions,
            drain,
            control_plane=own,
            rules=options.found_by.rules,
            resumable=ResumableStreams(Holder(tenant, principal), kept),
        )
        return front

    callers = Callers(
        build_front,
        options.tenant,
        options.agent,
        options.key,
        authenticator,
        is_watched=local is not None,  # the worker's credentials are the same
    )
    key = options.key if authenticator is None else None
    access = AccessCheck(listener.endpoint, key, options.origins, options.hosts)
    server = HttpServer(access, callers, options.public_url, drain)
    async with callers.running(), server.serving(listener.socket, listener.tls):
        yield server


class WorkerFront:
    """A front that runs in the process of a worker, and ends before it.

    Args:
        options: The options.
        listener: Where it listens.
    """

    def __init__(self, options: FrontOptions, listener: McpListener) -> None:
        self._options = options
        self._listener = listener

    @contextlib.asynccontextmanager
    async def serving(
        self, worker: LocalWorker
    ) -> AsyncIterator[Callable[[asyncio.Event], Coroutine[object, object, None]]]:
        """Serve MCP clients while the block runs.

        Args:
            worker: The worker.

        Yields:
            A function that finishes the requests in flight and refuses others, for at most
            `drain_timeout` seconds, or until its event is set.
        """
        drain = Drain(self._options.drain_timeout)
        async with serving_http(self._options, self._listener, drain, worker) as server:

            async def finish(hurry: asyncio.Event) -> None:
                drain.request()
                skipping = asyncio.create_task(_request_after(hurry, drain))
                try:
                    await server.drain()
                finally:
                    skipping.cancel()
                    await asyncio.gather(skipping, return_exceptions=True)

            yield finish


async def _request_after(hurry: asyncio.Event, drain: Drain) -> None:
    """Let a front that drains wait no longer once there is no time."""
    await hurry.wait()
    drain.request()


async def run_stdio(options: FrontOptions, scope: str, handshake: HandshakeResponder) -> int:
    """Serve one MCP client over stdin and stdout until it disconnects, or SIGINT or SIGTERM.

    After a signal, requests in flight are finished.

    Args:
        options: The options.
        scope: The server that the client sees; empty means all.
        handshake: Reads the client's lines and answers the first ones.
    """
    drain = Drain(options.drain_timeout)
    drain.handle_signals()
    client = AsyncClient(
        str(options.control_planes), agent=options.agent, tenant=options.tenant, key=options.key
    )
    async with client:
        methods = _methods(options, client, drain)
        front = StdioFront(methods, options.tenant, scope, handshake, drain)

        async def instruct(own: str, is_settled: bool) -> None:
            methods.instructions.own = own
            handshake.instruct(own, is_settled=False)
            if is_settled:  # until then, what is shown about the starts must not wait
                handshake.instruct(
                    await methods.instructions.text(scope),
                    is_settled=True,
                    declared=await methods.declaring.declared(scope),
                )

        if options.shows_problems:
            report: Coroutine[object, object, None] = report_starts(client, instruct)
        else:
            report = instruct("", True)
        reporting = asyncio.create_task(report, name="front starts")
        try:
            await front.serve()
        finally:
            reporting.cancel()
            await asyncio.gather(reporting, return_exceptions=True)
            await methods.catalog.close()
    return 0


def _methods(
    options: FrontOptions,
    client: AsyncClient,
    drain: Drain,
) -> Methods:
    return Methods(
        client,
        search=options.search,
        media=options.media,
        handles=options.handles,
        sessions=options.found_by,
        shows_problems=options.shows_problems,
        control_plane=_digest_of_control_plane(options),
        ending=drain.started,
    )


def _digest_of_control_plane(options: FrontOptions) -> str:
    return ancestors.digest(ancestors.of_address(options.control_planes.first))
