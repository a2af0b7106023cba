"""Starts a container, or on Kubernetes a pod, and connects by its pipes."""

from __future__ import annotations

from leaseway.data_plane.kinds.pod.api import Pods
from leaseway.data_plane.kinds.pod.connect import connect_pod
from leaseway.data_plane.kinds.process.connect import connected
from leaseway.data_plane.kinds.process.host import ProcessHost
from leaseway.data_plane.kinds.process.launch import Launch
from leaseway.data_plane.kinds.process.process import ServerProcess
from leaseway.data_plane.mcp.context import ServerContext, UnopenedConnection
from leaseway.spec.kinds.container import ContainerPart


async def connect(
    processes: ProcessHost, pods: Pods | None, context: ServerContext
) -> UnopenedConnection:
    """Return the connection of a new pod if the worker is one, otherwise of a new container."""
    if pods is not None:
        return await connect_pod(pods, context)
    spec, reaper = context.spec, processes.reaper
    container = reaper.containers.prepare(spec, context.resolved)
    reaper.register_engine()
    launch = Launch(
        container.command,
        container.environment,
        limits=spec.part_as(ContainerPart).limits,
        container=container,
    )
    process = await ServerProcess.start(context.server, launch, context.stderr, reaper)
    return connected(context, process, launch)
