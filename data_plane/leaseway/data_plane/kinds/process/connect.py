"""Starts a process of the worker, and connects by its pipes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from leaseway.data_plane.kinds.process.launch import Launch, child_environment, prepare
from leaseway.data_plane.kinds.process.private_folders import make_folder
from leaseway.data_plane.kinds.process.process import ServerProcess
from leaseway.data_plane.kinds.process.reaper import Reaper
from leaseway.data_plane.kinds.process.sandbox.checks import disk
from leaseway.data_plane.kinds.process.sandbox.mounts import Surroundings
from leaseway.data_plane.kinds.process.stdio import StdioTransport
from leaseway.data_plane.mcp.context import ServerContext, UnopenedConnection
from leaseway.data_plane.mcp.failures import not_started
from leaseway.data_plane.mcp.host import Host
from leaseway.spec.kinds.shared import ChildPart
from leaseway.spec.lease_names import PRIVATE, depth_of_names, names_in


async def connect(reaper: Reaper, host: Host, context: ServerContext) -> UnopenedConnection:
    """Return the connection of a new process."""
    spec, resolved = context.spec, context.resolved
    private = await _private_folder(reaper, context)
    inherits = spec.part_as(ChildPart).inherit_env
    environment = child_environment(host.environment, inherits, resolved.env)
    command = (resolved.command, *resolved.args)
    try:
        container = reaper.containers.adopt(command, environment)
        reaper.register_engines()
        launch = await prepare(
            spec,
            command if container is None else container.command,
            environment,
            reaper.cgroups,
            str(private or resolved.cwd),
            Surroundings(host.environment, tuple(host.server_folders()), tuple(host.own_paths())),
        )
        launch = replace(launch, private=private, container=container)
        process = await ServerProcess.start(context.server, launch, context.stderr, reaper)
    except BaseException:
        if private is not None:
            reaper.folders.remove_later(private)
        raise
    return connected(context, process, launch)


def connected(context: ServerContext, process: ServerProcess, launch: Launch) -> UnopenedConnection:
    """Return the connection to a process by its pipes."""
    transport = StdioTransport(context.server, process, context.stderr)
    return replace(context.stream(transport), pid=process.pid, warnings=launch.warnings)


async def _private_folder(reaper: Reaper, context: ServerContext) -> Path | None:
    """Create the working directory if it belongs to this instance, or to a lease's names.

    Returns:
        The folder, if it is to be removed with the instance.

    Raises:
        Fault: SERVER_NOT_READY with `problem` START_FAILED.
    """
    written, cwd = context.spec.part.cwd, context.resolved.cwd
    try:
        if written == PRIVATE:
            return await reaper.folders.create()
        if names_in([written]):
            await disk.run(make_folder, cwd, depth_of_names(written))
    except OSError as error:
        text = f"its folder can't be created on this worker: {error.strerror or error}."
        raise not_started(context.server, "START_FAILED", text) from None
    return None
