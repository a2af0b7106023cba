"""Runs a server in a sandbox made by bubblewrap (design.md#configuration, `sandbox`).

The server sees this machine's files read-only, has a private /tmp, /dev and /proc, no network
unless allowed, no capabilities and no way to gain any. `strict` also hides the home directories,
and denies system calls that lead out of a sandbox or into another one.
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from leaseway.data_plane.kinds.process import launcher
from leaseway.data_plane.kinds.process.sandbox.checks import CHECK_TIMEOUT, CheckResult, run_check
from leaseway.data_plane.kinds.process.sandbox.mounts import NO_PATHS, Paths, mounts
from leaseway.data_plane.kinds.process.sandbox.seccomp import ARCHITECTURES, denying_filter
from leaseway.data_plane.mcp.failures import describe_status, not_started
from leaseway.spec.kinds.confinement import Sandbox

_BWRAP: Final = "bwrap"
_ISOLATED: Final = (
    "--die-with-parent",
    "--unshare-pid",
    "--unshare-ipc",
    "--unshare-uts",
    "--unshare-cgroup-try",
    "--cap-drop",
    "ALL",
)
_MAX_STDERR: Final = 500


class SandboxPlan(NamedTuple):
    """The words before a command in a sandbox, and a harmless command to check the sandbox with."""

    prefix: tuple[str, ...]
    harmless: str


def plan_sandbox(
    server: str,
    sandbox: Sandbox,
    command: Sequence[str],
    cwd: str = "",
    paths: Paths = NO_PATHS,
) -> SandboxPlan:
    """Plan a sandbox for a command, whose program is a path. Reads files: not on the loop.

    An empty `cwd` is the worker's own. `paths` are shown or hidden in addition.

    Raises:
        Fault: SERVER_NOT_READY with `problem` SANDBOX_NOT_AVAILABLE or SANDBOX_PATH_MISSING.
    """
    missing = [path for path in sandbox.writable_paths if not Path(path).exists()]
    if missing:
        text = (
            f"its 'sandbox.writable' names {missing[0]}, which does not exist on this worker."
            " Create it, or remove it from the list."
        )
        raise not_started(server, "SANDBOX_PATH_MISSING", text)
    program = shutil.which(_BWRAP)
    if program is None:
        text = (
            "it is configured with a sandbox, and bubblewrap (bwrap) is not on this worker's PATH."
            " Install the package bubblewrap there."
        )
        raise not_started(server, "SANDBOX_NOT_AVAILABLE", text)
    files = mounts(sandbox, command, cwd, paths)
    before, option = _seccomp(server) if sandbox.strict else ((), ())
    prefix = (*before, program, *_isolation(sandbox), *option, *files, "--")
    return SandboxPlan(prefix, shutil.which("true") or command[0])


async def sandbox_command(
    server: str, plan: SandboxPlan, command: Sequence[str]
) -> tuple[str, ...]:
    """Return the command that runs a command in its sandbox, after checking the sandbox.

    Raises:
        Fault: SERVER_NOT_READY with `problem` SANDBOX_NOT_AVAILABLE.
    """
    error = await _try_sandbox((*plan.prefix, plan.harmless))
    if error:
        text = f"it is configured with a sandbox, which can't be made on this worker: {error}"
        raise not_started(server, "SANDBOX_NOT_AVAILABLE", text)
    return (*plan.prefix, *command)


def _seccomp(server: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the command that opens the seccomp filter for bubblewrap, and bubblewrap's option."""
    machine = platform.machine()
    if machine not in ARCHITECTURES:
        text = (
            f"'sandbox: strict' does not support this worker's architecture ({machine}), only"
            f" {', '.join(ARCHITECTURES)}. Use 'sandbox: true', or another worker."
        )
        raise not_started(server, "SANDBOX_NOT_AVAILABLE", text)
    step = f"seccomp={denying_filter(machine).hex()}"
    return (*launcher.COMMAND, step, "--"), ("--seccomp", str(launcher.FILTER_DESCRIPTOR))


def _isolation(sandbox: Sandbox) -> list[str]:
    user = "--unshare-user" if sandbox.strict else "--unshare-user-try"
    return [user, *_ISOLATED, *(() if sandbox.network else ("--unshare-net",))]


async def _try_sandbox(command: Sequence[str]) -> str:
    """Run a harmless command in the sandbox; return why that failed, or ""."""
    try:
        result = await run_check(command)
        if result.status is not None and result.status < 0:  # killed: not the sandbox's fault
            result = await run_check(command)
    except OSError as error:
        return f"bwrap can't be started ({error.strerror}). Make sure that it is executable there."
    return "" if result.status == 0 else _advice(result)


def _advice(result: CheckResult) -> str:
    if result.status is None:
        return (
            f"bwrap did not answer within {CHECK_TIMEOUT:g} s. Check whether that machine is"
            " overloaded; the start is retried."
        )
    if result.status < 0:
        return (
            f"bwrap {describe_status(result.status)}, twice. See that machine's kernel log for the"
            " cause; the start is retried."
        )
    error = result.stderr[:_MAX_STDERR].rstrip(".") or f"bwrap exited with status {result.status}"
    return (
        f"{error}. Allow the worker to create user, mount and process namespaces (a container may"
        " need another security profile), or run the server on a worker that may."
    )
