"""Creates the connection of an instance: a connector for each transport, by its name.

Other packages can register more transports (see `protocol.transport`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
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
from leaseway.data_plane.mcp.process.failures import not_started
from leaseway.data_plane.mcp.process.launch import Launch, prepare
from leaseway.data_plane.mcp.process.private_folders import make_folder
from leaseway.data_plane.mcp.process.process import ServerProcess
from leaseway.data_plane.mcp.process.sandbox.checks import disk
from leaseway.data_plane.mcp.process.sandbox.mounts import Surroundings
from leaseway.data_plane.mcp.process.stderr import StderrTail
from leaseway.data_plane.mcp.protocol.connection import Peer
from leaseway.data_plane.mcp.protocol.stream_connection import StreamPeer
from leaseway.data_plane.mcp.protocol.transport import Transport
from leaseway.data_plane.mcp.transports.plugins import create_registered
from leaseway.data_plane.mcp.transports.pull_adapter import PullAdapter
from leaseway.data_plane.mcp.transports.sse import SseTransport
from leaseway.data_plane.mcp.transports.stdio import StdioTransport
from leaseway.data_plane.mcp.transports.websocket import WebSocketTransport
from leaseway.data_plane.outgoing import Outgoing
from leaseway.data_plane.references.environment import child_environment
from leaseway.spec.kinds.container import ContainerPart
from leaseway.spec.kinds.shared import ChildPart
from leaseway.spec.lease_names import PRIVATE, depth_of_names, names_in
from leaseway.spec.model import ServerSpec

_POD_START_SHARE: Final = 0.9
"""The part of the startup timeout that a pod has to run."""


@dataclass(frozen=True)
class ServerContext:
    """What a connector needs.

    Attributes:
        stderr: Receives the standard error of a process.
        outgoing: The proxy and the cookies of the instance; all its connections share them.
    """

    spec: ServerSpec
    resolved: ResolvedValues
    host: Host
    stderr: StderrTail
    on_tools_changed: Callable[[], None]
    outgoing: Outgoing

    @property
    def server(self) -> str:
        return self.spec.key.server_id

    def hide_in_definitions(self, text: str) -> str:
        """Return a definition without the secrets of the server and its token."""
        text = self.resolved.without_secrets_in_definitions(text)
        authorization = self.outgoing.authorization
        return text if authorization is None else authorization.without_token(text)


@dataclass(frozen=True)
class UnopenedConnection:
    """A connection to open with `Peer.open`; the caller closes it, also if opening fails.

    `warnings` are (reason, sentence) about configuration that is not enforced on this worker.
    """

    peer: Peer
    pid: int | None = None
    warnings: tuple[tuple[str, str], ...] = ()


async def connect(context: ServerContext) -> UnopenedConnection:
    """Return a server's connection.

    Raises:
        Fault: SERVER_NOT_READY, with its `problem`.
    """
    connector = _CONNECTORS.get(context.spec.transport, _connect_registered)
    return await connector(context)


async def _connect_stdio(context: ServerContext) -> UnopenedConnection:
    spec, resolved, host = context.spec, context.resolved, context.host
    part = spec.part_as(ChildPart)
    if isinstance(part, ContainerPart):
        if host.pods is not None:
            return await _connect_pod(context, host.pods)
        container = host.reaper.containers.prepare(spec, resolved)
        host.reaper.register_engine()
        launch = Launch(
            container.command, container.environment, limits=part.limits, container=container
        )
    else:
        return await _connect_process(context)
    process = await ServerProcess.start(context.server, launch, context.stderr, host.reaper)
    return _connected(context, process, launch)


async def _connect_process(context: ServerContext) -> UnopenedConnection:
    spec, resolved, host = context.spec, context.resolved, context.host
    private = await _private_folder(context)
    try:
        launch = await prepare(
            spec,
            (resolved.command, *resolved.args),
            child_environment(host.environment, spec.part_as(ChildPart).inherit_env, resolved.env),
            host.reaper.cgroups,
            str(private or resolved.cwd),
            Surroundings(host.environment, tuple(host.server_folders()), tuple(host.own_paths())),
        )
        launch = replace(launch, private=private)
        process = await ServerProcess.start(context.server, launch, context.stderr, host.reaper)
    except BaseException:
        if private is not None:
            host.reaper.folders.remove_later(private)
        raise
    return _connected(context, process, launch)


def _connected(
    context: ServerContext, process: ServerProcess, launch: Launch
) -> UnopenedConnection:
    transport = StdioTransport(context.server, process, context.stderr)
    return replace(_stream(context, transport), pid=process.pid, warnings=launch.warnings)


async def _private_folder(context: ServerContext) -> Path | None:
    """Create the working directory if it belongs to this instance, or to a lease's names.

    Returns:
        The folder, if it is to be removed with the instance.

    Raises:
        Fault: SERVER_NOT_READY with `problem` START_FAILED.
    """
    written, cwd = context.spec.part.cwd, context.resolved.cwd
    try:
        if written == PRIVATE:
            return await context.host.reaper.folders.create()
        if names_in([written]):
            await disk.run(make_folder, cwd, depth_of_names(written))
    except OSError as error:
        text = f"its folder can't be created on this worker: {error.strerror or error}."
        raise not_started(context.server, "START_FAILED", text) from None
    return None


async def _connect_pod(context: ServerContext, pods: Pods) -> UnopenedConnection:
    spec, resolved, server = context.spec, context.resolved, context.server
    owner = await pods.owner(server)
    name = object_name(server)
    manifests = [("pods", pod_manifest(name, owner, spec, resolved))]
    if resolved.env:
        manifests.insert(0, ("secrets", secret_manifest(name, owner, resolved.env)))
    # Less than the startup timeout, so that the error names the step that hung.
    timeout = spec.startup_timeout * _POD_START_SHARE
    transport = PodTransport(server, pods, name, manifests, context.stderr.feed, timeout)
    connection = _stream(context, PullAdapter(server, transport, resolved.without_secrets))
    return replace(connection, warnings=pod_warnings(spec.part_as(ContainerPart).limits))


async def _connect_http(context: ServerContext) -> UnopenedConnection:
    resolved = context.resolved
    peer = HttpConnection(
        context.server,
        resolved.url,
        context.host.http,
        headers=resolved.headers,
        session_id=resolved.session_id,
        outgoing=context.outgoing,
        on_tools_changed=context.on_tools_changed,
        renews_sessions=context.spec.truely_stateless,
    )
    return UnopenedConnection(peer)


async def _connect_sse(context: ServerContext) -> UnopenedConnection:
    resolved, http = context.resolved, context.host.http
    server, headers = context.server, resolved.headers
    return _stream(context, SseTransport(server, resolved.url, http, headers, context.outgoing))


async def _connect_websocket(context: ServerContext) -> UnopenedConnection:
    resolved, http = context.resolved, context.host.http
    server, headers = context.server, resolved.headers
    transport = WebSocketTransport(server, resolved.url, http, headers, context.outgoing)
    return _stream(context, PullAdapter(context.server, transport))


async def _connect_registered(context: ServerContext) -> UnopenedConnection:
    return _stream(context, await create_registered(context.spec, context.resolved))


def _stream(context: ServerContext, transport: Transport) -> UnopenedConnection:
    return UnopenedConnection(StreamPeer(context.server, transport, context.on_tools_changed))


_CONNECTORS: Final[Mapping[str, Callable[[ServerContext], Awaitable[UnopenedConnection]]]] = {
    "stdio": _connect_stdio,
    "python": _connect_stdio,
    "builtin": _connect_stdio,
    "streamable_http": _connect_http,
    "sse": _connect_sse,
    "websocket": _connect_websocket,
}
