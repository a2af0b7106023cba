"""Running a server in a sandbox by bubblewrap (DESIGN §2, `sandbox`): never without, if asked.

The server sees this machine's files read-only, has a private /tmp, /dev and /proc, no network
unless allowed, no capabilities and no way to gain any. /run is private too: through the sockets
there (a container engine's, say) it could leave. What its command line names below a private
place stays visible there, read-only.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from leaseway.data_plane.mcp.exits import describe_status
from leaseway.data_plane.mcp.trial import TRIAL_TIMEOUT, Tried, try_command
from leaseway.wire.fault import Fault
from leaseway.wire.reasons import Reason
from leaseway.wire.spec import Sandbox

__all__ = ["sandboxed"]

_BWRAP: Final = "bwrap"
_ISOLATED: Final = (
    "--die-with-parent",
    "--unshare-user-try",
    "--unshare-pid",
    "--unshare-ipc",
    "--unshare-uts",
    "--unshare-cgroup-try",
    "--cap-drop",
    "ALL",
)
_PRIVATE: Final = tuple(Path(place) for place in ("/tmp", "/var/tmp", "/run"))  # noqa: S108
_NAME_SERVERS: Final = Path("/etc/resolv.conf")
_BINARIES: Final = ("bin", ".bin", "sbin")
_WORDS: Final = 500


async def sandboxed(server: str, sandbox: Sandbox, command: Sequence[str]) -> tuple[str, ...]:
    """Return the command that runs a command in its sandbox, after having tried one.

    Args:
        server: For messages.
        sandbox: What may be reached.
        command: The command, its program as a path.

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
    prefix = (program, *_arguments(sandbox, command), "--")
    refusal = await _refusal((*prefix, shutil.which("true") or command[0]))
    if refusal:
        text = f"it is configured with a sandbox, which can't be made on this worker: {refusal}"
        raise _fault(server, "SANDBOX_NOT_AVAILABLE", text)
    return (*prefix, *command)


def _exists(path: str) -> bool:
    return Path(path).exists()


def _arguments(sandbox: Sandbox, command: Sequence[str]) -> list[str]:
    arguments = [*_ISOLATED, *(() if sandbox.network else ("--unshare-net",))]
    arguments += ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    for place in _PRIVATE:
        if place.is_dir() and not place.is_symlink():
            arguments += ["--tmpfs", str(place)]
    for path in dict.fromkeys(_visible(command)):
        arguments += ["--ro-bind-try", str(path), str(path)]
    for name in sandbox.writable_paths:
        arguments += ["--bind", name, name]
    return arguments


def _visible(command: Sequence[str]) -> Iterable[Path]:
    """Yield what the command needs of the private places: it was named by the operator."""
    program = Path(command[0])
    named = [_NAME_SERVERS.resolve(), _surroundings(program), _surroundings(program.resolve())]
    with contextlib.suppress(OSError):  # it was removed
        named.append(Path.cwd())
    for argument in command[1:]:
        path = Path(argument)
        with contextlib.suppress(OSError, ValueError):  # too long for a path, for instance
            if path.is_absolute() and path.exists():
                named.append(path if path.is_dir() else _surroundings(path))
    for path in named:
        if any(place in path.parents for place in _PRIVATE):
            yield path


def _surroundings(program: Path) -> Path:
    """Return the folder that a program or script needs to run: its own, or its installation."""
    folder = program.parent
    folder = folder.parent if folder.name in _BINARIES else folder
    return program if folder in _PRIVATE else folder


async def _refusal(trial: Sequence[str]) -> str:
    """Make the sandbox around a program that does nothing; return why not, or nothing."""
    try:
        tried = await try_command(trial)
        if tried.status is not None and tried.status < 0:  # it says nothing about sandboxes
            tried = await try_command(trial)
    except OSError as error:
        return f"bwrap can't be started ({error.strerror}). See to it that it can be run there."
    return "" if tried.status == 0 else _what_to_do(tried)


def _what_to_do(tried: Tried) -> str:
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
