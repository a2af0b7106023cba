"""Starts a container, or on Kubernetes a pod, and connects by its pipes."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from leaseway.data_plane.kinds.container.manifest import (
    object_name,
    pod_manifest,
    pod_warnings,
    secret_manifest,
)
from leaseway.data_plane.kinds.container.pods import Pods
from leaseway.data_plane.kinds.container.transport import PodTransport
from leaseway.data_plane.kinds.process.connect import connected
from leaseway.data_plane.kinds.process.launch import Launch
from leaseway.data_plane.kinds.process.process import ServerProcess
from leaseway.data_plane.kinds.process.reaper import Reaper
from leaseway.data_plane.mcp.context import ServerContext, UnopenedConnection
from leaseway.data_plane.mcp.pull_adapter import PullAdapter
from leaseway.spec.kinds.container import ContainerPart

_POD_START_SHARE: Final = 0.9
"""The part of the startup timeout that a pod has to run."""


async def connect(reaper: Reaper, pods: Pods | None, context: ServerContext) -> UnopenedConnection:
    """Return the connection of a new pod if the worker is one, otherwise of a new container."""
    if pods is not None:
        return await _connect_pod(pods, context)
    spec = context.spec
    container = reaper.containers.prepare(spec, context.resolved)
    reaper.register_engines()
    launch = Launch(
        container.command,
        container.environment,
        limits=spec.part_as(ContainerPart).limits,
        container=container,
    )
    process = await ServerProcess.start(context.server, launch, context.stderr, reaper)
    return connected(context, process, launch)


async def _connect_pod(pods: Pods, context: ServerContext) -> UnopenedConnection:
    spec, resolved, server = context.spec, context.resolved, context.server
    owner = await pods.owner(server)
    name = object_name(server)
    manifests = [("pods", pod_manifest(name, owner, spec, resolved))]
    if resolved.env:
        manifests.insert(0, ("secrets", secret_manifest(name, owner, resolved.env)))
    # Less than the startup timeout, so that the error names the step that hung.
    timeout = spec.startup_timeout * _POD_START_SHARE
    transport = PodTransport(server, pods, name, manifests, context.stderr, timeout)
    connection = context.stream(PullAdapter(server, transport, resolved.without_secrets))
    return replace(connection, warnings=pod_warnings(spec.part_as(ContainerPart).limits))
