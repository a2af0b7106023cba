"""Prepares the start of a server's process: its command, sandbox and limits."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, assert_never

from leaseway.data_plane.kinds.process import launcher
from leaseway.data_plane.kinds.process.cgroups import Cgroup, Cgroups
from leaseway.data_plane.kinds.process.containers import Container
from leaseway.data_plane.kinds.process.limits import LimitPlan, kernel_limits, plan_limits
from leaseway.data_plane.kinds.process.sandbox.bubblewrap import plan_sandbox, sandbox_command
from leaseway.data_plane.kinds.process.sandbox.checks import CHECK_TIMEOUT, disk
from leaseway.data_plane.kinds.process.sandbox.mounts import (
    NO_SURROUNDINGS,
    Surroundings,
    other_servers_folders,
    permitted_paths,
)
from leaseway.data_plane.mcp.failures import command_fault, not_started
from leaseway.spec.kinds.confinement import Limits
from leaseway.spec.kinds.shared import ChildPart
from leaseway.spec.lease_names import PRIVATE, names_in
from leaseway.spec.model import InheritEnv, ServerSpec
from leaseway.wire.errors import Fault
from leaseway.wire.grpc_environment import OF_COMMANDS, OF_EVERY_PROGRAM
from leaseway.wire.secrets.secret_names import looks_secret

_OWN_PREFIX: Final = "LEASEWAY_"
_OWN_GRPC: Final = {**OF_EVERY_PROGRAM, **OF_COMMANDS}
"""Variables that the command line sets for its own gRPC, not for that of servers."""

_MINIMAL: Final = frozenset(
    (
        *("HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR"),
        *("TZ", "USER"),
    )
)


def child_environment(
    parent: Mapping[str, str], inherit: InheritEnv, configured: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of a server's process.

    Args:
        parent: The worker's environment.
        inherit: `safe`: the worker's environment without names that look like secrets; `all`: with
            them; `none`: only what programs need to run (PATH, HOME, the locale …). Leaseway's
            own variables are never inherited.
        configured: The variables of the configuration, resolved; they win.
    """
    theirs = {
        name: value
        for name, value in parent.items()
        if not name.startswith(_OWN_PREFIX) and _OWN_GRPC.get(name) != value
    }
    match inherit:
        case "none":
            inherited = {name: value for name, value in parent.items() if name in _MINIMAL}
        case "safe":
            inherited = {name: value for name, value in theirs.items() if not looks_secret(name)}
        case "all":
            inherited = theirs
        case _:
            assert_never(inherit)
    return {**inherited, **configured}


_NO_LIMITS: Final = Limits()


@dataclass(frozen=True)
class Launch:
    """How to start a server's process.

    Attributes:
        command: Values of the environment are never in it.
        environment: The process's whole environment.
        cgroup: Has its limits; remove it after the process's exit.
        sandboxed: Whether the process is bubblewrap, with the server below it.
        limits: What the cgroup or container was created with.
        warnings: (reason, sentence) about limits that are not enforced as configured.
        container: The server's container, if the process is a container engine's client; remove it
            after the process's exit.
        cwd: The working directory; empty for the worker's own.
        private: The working directory if it is to be removed after the process's exit.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str]
    cgroup: Cgroup | None = None
    sandboxed: bool = False
    limits: Limits = _NO_LIMITS
    warnings: tuple[tuple[str, str], ...] = ()
    container: Container | None = None
    cwd: str = ""
    private: Path | None = None


async def prepare(
    spec: ServerSpec,
    command: tuple[str, ...],
    environment: Mapping[str, str],
    cgroups: Cgroups,
    cwd: str = "",
    surroundings: Surroundings = NO_SURROUNDINGS,
) -> Launch:
    """Return how to start a server; the caller must remove the launch's cgroup.

    A server without limits, sandbox and `cwd` is started as configured. A sandbox hides the folders
    of the other servers and Leaseway's own files; a working directory of its own is writable.

    Raises:
        Fault: SERVER_NOT_READY with `problem` COMMAND_NOT_FOUND, START_FAILED,
            SANDBOX_NOT_AVAILABLE or SANDBOX_PATH_MISSING.
    """
    part, server = spec.part_as(ChildPart), spec.key.server_id
    limits = part.limits
    plain = limits == _NO_LIMITS and not part.sandbox.enabled
    if plain and not cwd:
        return Launch(command, environment)
    try:
        async with asyncio.timeout(CHECK_TIMEOUT):
            if cwd:
                await disk.run(_check_folder, server, cwd)
            if plain:
                return Launch(command, environment, cwd=cwd)
            program = await disk.run(_find_program, server, command[0], environment, cwd)
            if part.sandbox.enabled:
                whole = (program, *command[1:])
                permissions = spec.policy.permissions
                sandbox = part.sandbox
                if not permissions.write:
                    sandbox = replace(sandbox, writable_paths=())
                base = cwd or str(Path.cwd())
                paths = permitted_paths(permissions, base)
                if part.cwd == PRIVATE or names_in([part.cwd]):
                    paths = paths._replace(made=(cwd,))
                hidden = await disk.run(other_servers_folders, spec, whole, base, surroundings)
                paths = paths._replace(
                    hidden=(*paths.hidden, *hidden), own=tuple(map(str, surroundings.own_paths))
                )
                plan = await disk.run(plan_sandbox, server, sandbox, whole, cwd, paths)
    except TimeoutError:
        raise _disk_hangs(server, command[0]) from None
    command = (program, *command[1:])
    if part.sandbox.enabled:
        command = await sandbox_command(server, plan, command)
    # No await from here on: a cancelled start would leak its cgroup.
    cgroup, limit_plan = _confine(limits, cgroups)
    if limit_plan.steps:
        command = (*launcher.COMMAND, *limit_plan.steps, "--", *command)
    return Launch(
        command=command,
        environment=environment,
        cgroup=cgroup,
        sandboxed=part.sandbox.enabled,
        limits=limits,
        warnings=limit_plan.warnings,
        cwd=cwd,
    )


def _confine(limits: Limits, cgroups: Cgroups) -> tuple[Cgroup | None, LimitPlan]:
    if limits == _NO_LIMITS:
        return None, LimitPlan()
    cgroup = cgroups.create(limits)
    return cgroup, plan_limits(limits, cgroup.procs_files, cgroup.missing, kernel_limits())


def _check_folder(server: str, cwd: str) -> None:
    if not Path(cwd).is_dir():
        text = f"its 'cwd' {cwd!r} is no folder on this worker. Create it, or correct the path."
        raise not_started(server, "START_FAILED", text)


def _find_program(server: str, program: str, environment: Mapping[str, str], cwd: str) -> str:
    """Return the path of a program, found by the PATH of this environment."""
    if os.sep in program and cwd:
        program = str(Path(cwd) / program)
    path = os.pathsep.join(os.get_exec_path(dict(environment)))
    found = shutil.which(program, path=path)
    if found is None:
        exists = os.sep in program and Path(program).exists()
        raise command_fault(server, program, PermissionError() if exists else FileNotFoundError())
    return str(Path(found).absolute())


def _disk_hangs(server: str, program: str) -> Fault:
    text = (
        f"finding its command {program!r} and the files it needs took more than"
        f" {CHECK_TIMEOUT:g} s on this worker. Check that the worker's disks respond; the start is"
        " retried."
    )
    return not_started(server, "START_FAILED", text)
