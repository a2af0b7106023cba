"""Running a server in a sandbox by bubblewrap (DESIGN §2, `sandbox`): never without, if asked.

The server sees this machine's files read-only, has a private /tmp, /dev and /proc, no network
unless allowed, no capabilities and no way to gain any. /run is private too: through the sockets
there (a container engine's, say) it could leave. Leaseway's own folder and key files are masked.
What its command line names below a private
place stays visible there, read-only.

Running a short command to its end, to see whether it can be run at all.

Started by `subprocess`, whose child does nothing before it becomes the command. uvloop's child
would first run what libraries registered for a fork, and gRPC's part of that crashes there now
and then.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from leaseway.data_plane.background import DiskThreads, shielded
from leaseway.data_plane.mcp.process.exit_status import describe_status
from leaseway.spec.model import Sandbox
from leaseway.wire.errors import Fault, Reason

TRIAL_TIMEOUT: Final = 10.0
"""Seconds that a check may take."""

disk: Final = DiskThreads(64)
"""Looks at files for starts, and runs trials."""


class CheckResult(NamedTuple):
    """How a check went.

    Attributes:
        status: Its exit status, minus the signal that ended it; None if it did not end in time.
        words: What it wrote to its standard error, stripped.
    """

    status: int | None
    words: str


async def try_command(command: Sequence[str]) -> CheckResult:
    """Run a command without input, environment or the worker's terminal; say how it went.

    It has ended when this returns or raises, also if the caller is cancelled.

    Raises:
        OSError: It can't be started.
    """
    check = _Check(command)
    end = disk.start(check.run)
    try:
        return await asyncio.shield(end)
    except asyncio.CancelledError:
        check.give_up()
        await shielded(asyncio.ensure_future(_over(end)))
        raise


class _Check:
    """One run of a command, in a thread; executing it may hang, too."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._given_up = False

    def run(self) -> CheckResult:
        self._process = _start(self._command)
        if self._given_up:
            self._process.kill()
        return _end(self._process)

    def give_up(self) -> None:
        self._given_up = True
        if self._process is not None:
            self._process.kill()


def _start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - made by the caller, from the configuration
        list(command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={"PATH": os.defpath},
        start_new_session=True,
    )


async def _over(end: asyncio.Future[CheckResult]) -> None:
    await asyncio.wait([end], timeout=TRIAL_TIMEOUT)


def _end(process: subprocess.Popen[bytes]) -> CheckResult:
    assert process.stderr is not None
    try:
        words = process.communicate(timeout=TRIAL_TIMEOUT)[1]
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # it hangs in the kernel
            process.wait(TRIAL_TIMEOUT)
        return CheckResult(None, "")
    finally:
        process.stderr.close()
    return CheckResult(process.returncode, words.decode(errors="replace").strip())


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
_OWN_FILES: Final = ("KEY", "VAULT")
"""In the names of variables that say where Leaseway's own secrets are."""


class Look(NamedTuple):
    """What was seen of the machine for a sandbox.

    Attributes:
        prefix: What is written before a command that runs in it.
        harmless: A command that does nothing.
    """

    prefix: tuple[str, ...]
    harmless: str


def look_around(server: str, sandbox: Sandbox, command: Sequence[str], cwd: str = "") -> Look:
    """See what a sandbox needs of this machine; looks at files, which is not for the loop.

    Args:
        server: For messages.
        sandbox: What may be reached.
        command: The command, its program as a path.
        cwd: The folder that it starts in; empty for the worker's own.

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
    prefix = (program, *_arguments(sandbox, command, cwd), "--")
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


def _arguments(sandbox: Sandbox, command: Sequence[str], cwd: str) -> list[str]:
    arguments = [*_ISOLATED, *(() if sandbox.network else ("--unshare-net",))]
    arguments += ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    for place in _PRIVATE:
        if place.is_dir() and not place.is_symlink():
            arguments += ["--tmpfs", str(place)]
    for path in dict.fromkeys(_visible(command, cwd)):
        arguments += ["--ro-bind-try", str(path), str(path)]
    for name in sandbox.writable_paths:
        arguments += ["--bind", name, name]
    arguments += _masks(os.environ)
    # The check of the sandbox begins elsewhere.
    return [*arguments, *(("--chdir", cwd) if cwd else ())]


def _masks(environment: Mapping[str, str]) -> Iterable[str]:
    """Yield what hides Leaseway's own folder and key files, wherever a server may write."""
    own = (Path.home() / ".leaseway").resolve()
    if own.is_dir():
        yield from ("--tmpfs", str(own))
    for name, value in environment.items():
        if name.startswith("LEASEWAY_") and any(word in name for word in _OWN_FILES):
            path = Path(value)
            with contextlib.suppress(OSError, ValueError):  # a key itself, not the path of one
                if path.is_absolute() and path.is_file():
                    yield from ("--ro-bind", os.devnull, str(path.resolve()))


def _visible(command: Sequence[str], cwd: str) -> Iterable[Path]:
    """Yield what the command needs of the private places: it was named by the operator."""
    program = Path(command[0])
    named = [_NAME_SERVERS.resolve(), _surroundings(program), _surroundings(program.resolve())]
    with contextlib.suppress(OSError):  # it was removed
        named.append(Path(cwd) if cwd else Path.cwd())
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
