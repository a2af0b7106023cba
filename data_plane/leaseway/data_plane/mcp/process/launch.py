"""What is really started for a server: its command, in its sandbox, behind its limits."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from leaseway.data_plane.mcp.process.cgroups import Cgroup, Cgroups
from leaseway.data_plane.mcp.process.containers import Container
from leaseway.data_plane.mcp.process.limits import LimitPlan, plan_limits, this_host
from leaseway.data_plane.mcp.process.sandbox.bubblewrap import look_around, sandboxed
from leaseway.data_plane.mcp.process.sandbox.mounts import of_others, permitted
from leaseway.data_plane.mcp.process.sandbox.trial import TRIAL_TIMEOUT, disk
from leaseway.spec.model import Limits, ServerSpec
from leaseway.wire.errors import Fault, Reason

_LAUNCHER: Final = Path(__file__).with_name("launcher.py")
_NO_LIMITS: Final = Limits()


@dataclass(frozen=True)
class Launch:
    """How to start a server's process.

    Attributes:
        command: What is executed. Values of the environment are never in it.
        environment: All that the process gets.
        cwd: The folder that it starts in; empty for the worker's own.
        cgroup: Holds its limits, and is to be removed after its end; or None.
        sandboxed: Whether the first process is the sandbox's keeper, with the server below it.
        limits: What the cgroup or container was made for.
        warnings: (reason, sentence) about limits that do not hold here as configured.
        container: Holds the server, where the process is the client of a container engine; it is
            to be removed after the process's end.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str]
    cgroup: Cgroup | None = None
    sandboxed: bool = False
    limits: Limits = _NO_LIMITS
    warnings: tuple[tuple[str, str], ...] = ()
    container: Container | None = None
    cwd: str = ""


async def prepare(
    spec: ServerSpec,
    command: tuple[str, ...],
    environment: Mapping[str, str],
    cgroups: Cgroups,
    cwd: str = "",
    others: Iterable[ServerSpec] = (),
) -> Launch:
    """Return how to start a server; whoever gets a cgroup with it has to remove it.

    A server with neither limits, sandbox nor folder is started as it stands. In a sandbox the
    folders of the others are masked.

    Raises:
        Fault: SERVER_NOT_READY with `problem` COMMAND_NOT_FOUND, START_FAILED,
            SANDBOX_NOT_AVAILABLE or SANDBOX_PATH_MISSING.
    """
    limits, server = spec.limits, spec.key.server_id
    plain = limits == _NO_LIMITS and not spec.sandbox.enabled
    if plain and not cwd:
        return Launch(command, environment)
    try:
        async with asyncio.timeout(TRIAL_TIMEOUT):
            if cwd:
                await disk.run(_check_folder, server, cwd)
            if plain:
                return Launch(command, environment, cwd=cwd)
            found = await disk.run(_found, server, command[0], environment, cwd)
            if spec.sandbox.enabled:
                whole = (found, *command[1:])
                permissions = spec.policy.permissions
                sandbox = spec.sandbox
                if not permissions.write:
                    sandbox = replace(sandbox, writable_paths=())
                base = cwd or str(Path.cwd())
                more = permitted(permissions, base)
                masked = await disk.run(of_others, spec, whole, base, others)
                more = more._replace(hidden=(*more.hidden, *masked))
                look = await disk.run(look_around, server, sandbox, whole, cwd, more)
    except TimeoutError:
        raise _hanging(server, command[0]) from None
    command = (found, *command[1:])
    if spec.sandbox.enabled:
        command = await sandboxed(server, look, command)
    # Nothing is awaited from here on: nobody would remove the cgroup of a cancelled start.
    cgroup, plan = _confine(limits, cgroups)
    if plan.steps:
        launcher = (sys.executable, "-I", "-S", str(_LAUNCHER))
        command = (*launcher, *plan.steps, "--", *command)
    return Launch(
        command, environment, cgroup, spec.sandbox.enabled, limits, plan.warnings, cwd=cwd
    )


def _confine(limits: Limits, cgroups: Cgroups) -> tuple[Cgroup | None, LimitPlan]:
    if limits == _NO_LIMITS:
        return None, LimitPlan()
    cgroup = cgroups.confine(limits)
    return cgroup, plan_limits(limits, cgroup.entrances, cgroup.missing, this_host())


def _check_folder(server: str, cwd: str) -> None:
    if Path(cwd).is_dir():
        return
    raise Fault(
        Reason.SERVER_NOT_READY,
        f"The server {server} could not be started: its 'cwd' {cwd!r} is no folder on this worker."
        " Create it there, or correct the path.",
        metadata={"server": server, "problem": "START_FAILED"},
    )


def _found(server: str, program: str, environment: Mapping[str, str], cwd: str = "") -> str:
    """Return the path of a program, as starting it with this environment would find it."""
    if os.sep in program and cwd:
        program = str(Path(cwd) / program)
    path = os.pathsep.join(os.get_exec_path(dict(environment)))
    found = shutil.which(program, path=path)
    if found is None:
        there = os.sep in program and Path(program).exists()
        raise command_fault(server, program, PermissionError() if there else FileNotFoundError())
    return str(Path(found).absolute())


def _hanging(server: str, program: str) -> Fault:
    return Fault(
        Reason.SERVER_NOT_READY,
        f"The server {server} could not be started: looking for its command {program!r} and what it"
        f" needs took longer than {TRIAL_TIMEOUT:g} s on this worker. See whether the disks that"
        " they are on answer; the start is tried again.",
        metadata={"server": server, "problem": "START_FAILED"},
    )


def command_fault(server: str, program: str, error: OSError) -> Fault:
    """Return why a program can't be executed: it is not there, or it may not be."""
    why = "may not be executed" if isinstance(error, PermissionError) else "was not found"
    return Fault(
        Reason.SERVER_NOT_READY,
        f"The server {server} could not be started: its command {program!r} {why} on this worker."
        " Install it, or give the full path of one that is there.",
        metadata={"server": server, "problem": "COMMAND_NOT_FOUND"},
    )
