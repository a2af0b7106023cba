"""Running a server in a sandbox by bubblewrap (DESIGN §2, `sandbox`).

The server sees this machine's files read-only, has a private /tmp, /dev and /proc, no network
unless allowed, no capabilities and no way to gain any. `strict` also hides the homes, and takes
system calls away that lead out of a sandbox or into another one.
"""

from __future__ import annotations

import platform
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from leaseway.data_plane.mcp.process.exit_status import describe_status
from leaseway.data_plane.mcp.process.launcher import FILTER_DESCRIPTOR
from leaseway.data_plane.mcp.process.sandbox.mounts import NOTHING_MORE, Paths, mounts
from leaseway.data_plane.mcp.process.sandbox.seccomp import ARCHITECTURES, denying_filter
from leaseway.data_plane.mcp.process.sandbox.trial import TRIAL_TIMEOUT, CheckResult, try_command
from leaseway.spec.model import Sandbox
from leaseway.wire.errors import Fault, Reason

_BWRAP: Final = "bwrap"
_LAUNCHER: Final = Path(__file__).parent.with_name("launcher.py")
_ISOLATED: Final = (
    "--die-with-parent",
    "--unshare-pid",
    "--unshare-ipc",
    "--unshare-uts",
    "--unshare-cgroup-try",
    "--cap-drop",
    "ALL",
)
_WORDS: Final = 500


class Look(NamedTuple):
    """What was seen of the machine for a sandbox.

    Attributes:
        prefix: What is written before a command that runs in it.
        harmless: A command that does nothing.
    """

    prefix: tuple[str, ...]
    harmless: str


def look_around(
    server: str,
    sandbox: Sandbox,
    command: Sequence[str],
    cwd: str = "",
    more: Paths = NOTHING_MORE,
) -> Look:
    """See what a sandbox needs of this machine; looks at files, which is not for the loop.

    Args:
        server: For messages.
        sandbox: What may be reached.
        command: The command, its program as a path.
        cwd: The folder that it starts in; empty for the worker's own.
        more: What is shown or hidden besides.

    Raises:
        Fault: SERVER_NOT_READY with `problem` SANDBOX_NOT_AVAILABLE or SANDBOX_PATH_MISSING.
    """
    missing = [path for path in sandbox.writable_paths if not _exists(path)]
    if missing:
        text = (
            f"its 'sandbox.writable' names {missing[0]}, which is not there on this worker. Create"
            " it, or remove it from the list."
        )
        raise _fault(server, "SANDBOX_PATH_MISSING", text)
    program = shutil.which(_BWRAP)
    if program is None:
        text = (
            "it is configured with a sandbox, and bubblewrap (bwrap) is not on this worker's PATH."
            " Install the package bubblewrap there."
        )
        raise _fault(server, "SANDBOX_NOT_AVAILABLE", text)
    files = mounts(sandbox, command, cwd, more)
    before, filtered = _filter(server) if sandbox.strict else ((), ())
    prefix = (*before, program, *_isolation(sandbox), *filtered, *files, "--")
    return Look(prefix, shutil.which("true") or command[0])


async def sandboxed(server: str, look: Look, command: Sequence[str]) -> tuple[str, ...]:
    """Return the command that runs a command in its sandbox, after having tried one.

    Raises:
        Fault: SERVER_NOT_READY with `problem` SANDBOX_NOT_AVAILABLE.
    """
    refusal = await _refusal((*look.prefix, look.harmless))
    if refusal:
        text = f"it is configured with a sandbox, which can't be made on this worker: {refusal}"
        raise _fault(server, "SANDBOX_NOT_AVAILABLE", text)
    return (*look.prefix, *command)


def _exists(path: str) -> bool:
    return Path(path).exists()


def _filter(server: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what opens the filter of system calls for bubblewrap, and bubblewrap's option."""
    machine = platform.machine()
    if machine not in ARCHITECTURES:
        text = (
            f"'sandbox: strict' knows no system calls of this worker's architecture ({machine}),"
            f" only of {', '.join(ARCHITECTURES)}. Use 'sandbox: true', or another worker."
        )
        raise _fault(server, "SANDBOX_NOT_AVAILABLE", text)
    step = f"seccomp={denying_filter(machine).hex()}"
    launcher = (sys.executable, "-I", "-S", str(_LAUNCHER), step, "--")
    return launcher, ("--seccomp", str(FILTER_DESCRIPTOR))


def _isolation(sandbox: Sandbox) -> list[str]:
    user = "--unshare-user" if sandbox.strict else "--unshare-user-try"
    return [user, *_ISOLATED, *(() if sandbox.network else ("--unshare-net",))]


async def _refusal(check: Sequence[str]) -> str:
    """Make the sandbox around a program that does nothing; return why not, or nothing."""
    try:
        tried = await try_command(check)
        if tried.status is not None and tried.status < 0:  # it says nothing about sandboxes
            tried = await try_command(check)
    except OSError as error:
        return f"bwrap can't be started ({error.strerror}). See to it that it can be run there."
    return "" if tried.status == 0 else _what_to_do(tried)


def _what_to_do(tried: CheckResult) -> str:
    if tried.status is None:
        return (
            f"bwrap did not answer within {TRIAL_TIMEOUT:g} s. See whether that machine is"
            " overloaded; the start is tried again."
        )
    if tried.status < 0:
        return (
            f"bwrap {describe_status(tried.status)}, twice. See the kernel's log there for who"
            " killed it; the start is tried again."
        )
    words = tried.words[:_WORDS].rstrip(".") or f"bwrap ended with status {tried.status}"
    return (
        f"{words}. Let the worker create user, mount and process namespaces (a container may need"
        " another security profile), or run the server on a worker that may."
    )


def _fault(server: str, problem: str, text: str) -> Fault:
    return Fault(
        Reason.SERVER_NOT_READY,
        f"The server {server} could not be started: {text}",
        metadata={"server": server, "problem": problem},
    )
