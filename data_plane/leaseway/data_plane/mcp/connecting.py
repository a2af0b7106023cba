"""How an instance gets its connection: one connector for each transport, by its name.

A name that is not built in is one that another package registers (see `transport`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from leaseway.data_plane.core.reading import Resolved
from leaseway.data_plane.mcp.environment import child_environment
from leaseway.data_plane.mcp.host import Host
from leaseway.data_plane.mcp.http import HttpConnection
from leaseway.data_plane.mcp.launch import prepare
from leaseway.data_plane.mcp.peer import Peer
from leaseway.data_plane.mcp.process import ServerProcess
from leaseway.data_plane.mcp.pulling import Pulled
from leaseway.data_plane.mcp.registered import make_registered
from leaseway.data_plane.mcp.sse_transport import SseTransport
from leaseway.data_plane.mcp.stderr import StderrTail
from leaseway.data_plane.mcp.stdio import StdioTransport
from leaseway.data_plane.mcp.stream_peer import StreamPeer
from leaseway.data_plane.mcp.transport import Transport
from leaseway.data_plane.mcp.websocket import WebSocketTransport
from leaseway.wire.spec import ServerSpec

__all__ = ["Connected", "Wanted", "connect"]


@dataclass(frozen=True)
class Wanted:
    """What a connector gets.

    Attributes:
        spec: The server.
        resolved: What its references stand for.
        host: The worker process.
        stderr: Where the last lines of a process's standard error go.
        on_tools_changed: Called when the server says that its tools changed.
    """

    spec: ServerSpec
    resolved: Resolved
    host: Host
    stderr: StderrTail
    on_tools_changed: Callable[[], None]

    @property
    def server(self) -> str:
        """The server's id, for messages."""
        return self.spec.key.server_id


@dataclass(frozen=True)
class Connected:
    """A connection that is not open yet; whoever has it closes it, also if opening fails.

    Attributes:
        peer: The connection.
        pid: The process behind it, or None where there is none.
        warnings: (reason, sentence) about what does not hold on this worker as configured.
    """

    peer: Peer
    pid: int | None = None
    warnings: tuple[tuple[str, str], ...] = ()


async def connect(wanted: Wanted) -> Connected:
    """Return a server's connection, to be opened with `Peer.open`.

    Raises:
        Fault: SERVER_NOT_READY; its `problem` says why.
    """
    connector = _CONNECTORS.get(wanted.spec.transport, _connect_registered)
    return await connector(wanted)


async def _connect_stdio(wanted: Wanted) -> Connected:
    spec, resolved = wanted.spec, wanted.resolved
    host = wanted.host
    environment = child_environment(host.environment, spec.inherit_env, resolved.env)
    command = (resolved.command, *resolved.args)
    launch = await prepare(spec, command, environment, host.reaper.cgroups)
    process = ServerProcess(wanted.server, launch, wanted.stderr, host.reaper)
    transport = StdioTransport(wanted.server, process, wanted.stderr)
    peer = StreamPeer(wanted.server, transport, wanted.on_tools_changed)
    return Connected(peer, process.pid, launch.warnings)


async def _connect_http(wanted: Wanted) -> Connected:
    resolved = wanted.resolved
    peer = HttpConnection(
        wanted.server,
        resolved.url,
        wanted.host.http,
        headers=resolved.headers,
        session_id=resolved.session_id,
        on_tools_changed=wanted.on_tools_changed,
        renews=wanted.spec.truely_stateless,
    )
    return Connected(peer)


async def _connect_sse(wanted: Wanted) -> Connected:
    resolved = wanted.resolved
    http = wanted.host.http
    return _over(wanted, SseTransport(wanted.server, resolved.url, http, resolved.headers))


async def _connect_websocket(wanted: Wanted) -> Connected:
    resolved = wanted.resolved
    http = wanted.host.http
    socket = WebSocketTransport(wanted.server, resolved.url, http, resolved.headers)
    return _over(wanted, Pulled(wanted.server, socket))


async def _connect_registered(wanted: Wanted) -> Connected:
    return _over(wanted, await make_registered(wanted.spec, wanted.resolved))


def _over(wanted: Wanted, transport: Transport) -> Connected:
    return Connected(StreamPeer(wanted.server, transport, wanted.on_tools_changed))


_CONNECTORS: Final[Mapping[str, Callable[[Wanted], Awaitable[Connected]]]] = {
    "stdio": _connect_stdio,
    "streamable_http": _connect_http,
    "sse": _connect_sse,
    "websocket": _connect_websocket,
}
