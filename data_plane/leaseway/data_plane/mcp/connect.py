"""How an instance gets its connection: one connector for each transport, by its name.

A name that is not built in is one that another package registers (see `transport`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from leaseway.data_plane.core.resolved_values import ResolvedValues
from leaseway.data_plane.mcp.host import Host
from leaseway.data_plane.mcp.http.connection import HttpConnection
from leaseway.data_plane.mcp.pods.api import Pods
from leaseway.data_plane.mcp.pods.manifest import (
    object_name,
    pod_manifest,
    pod_warnings,
    secret_manifest,
)
from leaseway.data_plane.mcp.pods.transport import PodTransport
from leaseway.data_plane.mcp.process.launch import Launch, prepare
from leaseway.data_plane.mcp.process.process import ServerProcess
from leaseway.data_plane.mcp.process.stderr import StderrTail
from leaseway.data_plane.mcp.protocol.connection import Peer
from leaseway.data_plane.mcp.protocol.stream_connection import StreamPeer
from leaseway.data_plane.mcp.protocol.transport import Transport
from leaseway.data_plane.mcp.transports.plugins import make_registered
from leaseway.data_plane.mcp.transports.pull_adapter import Pulled
from leaseway.data_plane.mcp.transports.sse import SseTransport
from leaseway.data_plane.mcp.transports.stdio import StdioTransport
from leaseway.data_plane.mcp.transports.websocket import WebSocketTransport
from leaseway.data_plane.references.environment import child_environment
from leaseway.spec.model import ServerSpec

_POD_SHARE: Final = 0.9
"""The part of a start's time that a pod has to come up."""


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
    resolved: ResolvedValues
    host: Host
    stderr: StderrTail
    on_tools_changed: Callable[[], None]

    @property
    def server(self) -> str:
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
    command = (resolved.command, *resolved.args)
    if spec.image and host.pods is not None:
        return await _in_pod(wanted, host.pods)
    if spec.image:
        launch = _in_container(wanted)
    else:
        environment = child_environment(host.environment, spec.inherit_env, resolved.env)
        cgroups = host.reaper.cgroups
        launch = await prepare(
            spec, command, environment, cgroups, resolved.cwd, others=host.served()
        )
    process = await ServerProcess.start(wanted.server, launch, wanted.stderr, host.reaper)
    transport = StdioTransport(wanted.server, process, wanted.stderr)
    peer = StreamPeer(wanted.server, transport, wanted.on_tools_changed)
    return Connected(peer, process.pid, launch.warnings)


def _in_container(wanted: Wanted) -> Launch:
    """Return how to start the client of a container engine, which holds a server as an image."""
    spec, reaper = wanted.spec, wanted.host.reaper
    container = reaper.containers.prepare(spec, wanted.resolved)
    reaper.register_engine()
    return Launch(container.command, container.environment, limits=spec.limits, container=container)


async def _in_pod(wanted: Wanted, pods: Pods) -> Connected:
    """Return a connection to a server as an image, in a pod of its own on Kubernetes."""
    spec, resolved, server = wanted.spec, wanted.resolved, wanted.server
    owner = await pods.owner(server)
    name = object_name(server)
    pod = pod_manifest(name, owner, spec, resolved)
    manifests = [("pods", pod)]
    if resolved.env:
        manifests.insert(0, ("secrets", secret_manifest(name, owner, resolved.env)))
    # Less than the whole start may take: so the step that hung is told.
    patience = spec.startup_timeout * _POD_SHARE
    transport = PodTransport(server, pods, name, manifests, wanted.stderr.feed, patience)
    connected = _over(wanted, Pulled(server, transport, resolved.without_secrets))
    return replace(connected, warnings=pod_warnings(spec.limits))


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
    "python": _connect_stdio,
    "builtin": _connect_stdio,
    "streamable_http": _connect_http,
    "sse": _connect_sse,
    "websocket": _connect_websocket,
}
