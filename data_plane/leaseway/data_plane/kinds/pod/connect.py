"""Creates a pod, and attaches to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from leaseway.data_plane.kinds.pod.api import Pods
from leaseway.data_plane.kinds.pod.manifest import (
    object_name,
    pod_manifest,
    pod_warnings,
    secret_manifest,
)
from leaseway.data_plane.kinds.pod.transport import PodTransport
from leaseway.data_plane.mcp.context import ServerContext, UnopenedConnection
from leaseway.data_plane.mcp.pull_adapter import PullAdapter
from leaseway.spec.kinds.container import ContainerPart

_POD_START_SHARE: Final = 0.9
"""The part of the startup timeout that a pod has to run."""


async def connect_pod(pods: Pods, context: ServerContext) -> UnopenedConnection:
    """Return the connection of a new pod."""
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
