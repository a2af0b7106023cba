"""The first program of a limited server's process: it applies the limits, then runs the server.

Started as a file with `python -I -S`, so it imports the standard library only. The limits apply
from the server's first instruction on, and to all its children. A shell would be smaller, but it
drops environment variables whose names are not shell identifiers.

    launcher.py STEP… -- COMMAND ARGUMENT…

- `join=PATH`: join the cgroup with this `cgroup.procs` file.
- `nofile=N`, `data=N`: limit open files, or bytes of private memory, of each process.
- `seccomp=HEX`: make this seccomp filter readable at `FILTER_DESCRIPTOR`, for bubblewrap.
- `nproc=N`: allow the user N more processes and threads than it currently has.

The environment is the server's. If a step fails, the process exits with status 125 and a line on
its standard error: a server never runs without a limit that could be enforced.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path

COMMAND = (sys.executable, "-I", "-S", str(Path(__file__)))
"""Runs this file."""

FILTER_DESCRIPTOR = 3
"""The file descriptor from which bubblewrap reads the seccomp filter; it closes it."""

_PROC = Path("/proc")
_IGNORED_BY_PYTHON = ("SIGPIPE", "SIGXFZ", "SIGXFSZ")  # as subprocess restores


def main(arguments: list[str]) -> None:
    """Apply the steps and execute the command."""
    end = arguments.index("--")
    for step in arguments[:end]:
        name, _, value = step.partition("=")
        try:
            if name in _LIMITS:
                _set_limit(name, value)
            else:
                _STEPS[name](value)
        except (OSError, ValueError) as error:
            shown = name if name == "seccomp" else step  # its value is a long hex string
            sys.exit(_report(f"could not apply the limit {shown}: {error}", 125))
    for name in _IGNORED_BY_PYTHON:
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    command = arguments[end + 1 :]
    try:
        os.execve(command[0], command, _environment())  # noqa: S606 - its purpose
    except OSError as error:
        sys.exit(_report(f"could not start {command[0]}: {error.strerror}", 127))


def _report(text: str, status: int) -> int:
    sys.stderr.write(f"leaseway: {text}\n")
    sys.stderr.flush()
    return status


def _join(path: str) -> None:
    with Path(path).open("r+") as processes:
        processes.write(str(os.getpid()))


_LIMITS = {
    "nofile": resource.RLIMIT_NOFILE,
    "data": resource.RLIMIT_DATA,
    "nproc": resource.RLIMIT_NPROC,
}


def _set_limit(name: str, value: str) -> None:
    kind, limit = _LIMITS[name], int(value)
    if name == "nproc":
        limit += _count_tasks()  # the kernel counts those of other servers, too
    hard = resource.getrlimit(kind)[1]
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(kind, (limit, limit))


def _open_filter(value: str) -> None:
    descriptor = os.memfd_create("seccomp")
    os.write(descriptor, bytes.fromhex(value))
    os.lseek(descriptor, 0, os.SEEK_SET)
    if descriptor == FILTER_DESCRIPTOR:
        os.set_inheritable(descriptor, True)
    else:
        os.dup2(descriptor, FILTER_DESCRIPTOR)
        os.close(descriptor)


_STEPS: dict[str, Callable[[str], None]] = {
    "join": _join,
    "seccomp": _open_filter,
}


def _count_tasks() -> int:
    """Return how many processes and threads this user has, as the kernel counts them."""
    user, found = os.getuid(), 0
    for entry in _PROC.iterdir():
        if entry.name.isdecimal():
            try:
                text = (entry / "status").read_text()
            except OSError:
                continue  # it has exited
            fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
            if int(fields["Uid"].split()[0]) == user:
                found += int(fields["Threads"])
    return found


def _environment() -> dict[bytes, bytes]:
    """Return this process's original environment; the interpreter may have set LC_CTYPE since."""
    try:
        entries = (_PROC / "self" / "environ").read_bytes().split(b"\0")
    except OSError:
        return dict(os.environb)
    pairs = (entry.partition(b"=") for entry in entries if entry)
    return {name: value for name, _, value in pairs}


if __name__ == "__main__":
    main(sys.argv[1:])
