"""What a limited server's process runs first: it takes its limits on, then becomes the server.

Before a strict sandbox it opens the filter of system calls, from which bubblewrap reads it.

Started with `python -I -S` on this very file, so it imports the standard library only. Limits
hold so from the server's first instruction, and for everything that it starts. A shell would be
smaller, but drops variables from the environment whose names it does not like.

    launcher.py STEP… -- COMMAND ARGUMENT…

- `join=PATH`: be in the cgroup that has this file of processes.
- `nofile=N`, `data=N`: have no more open files, bytes of private memory a process.
- `seccomp=HEX`: have these bytes to read at `FILTER_DESCRIPTOR`.
- `nproc=N`: let the user have at most N processes and threads more than it has now.

The environment is that of the server. What fails here ends the process with status 125 and a
line on its standard error: a server never runs without a limit that could be enforced.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from pathlib import Path

FILTER_DESCRIPTOR = 3
"""Where bubblewrap finds the filter of system calls; it closes it."""

_PROC = Path("/proc")
_IGNORED_BY_PYTHON = ("SIGPIPE", "SIGXFZ", "SIGXFSZ")  # as subprocess restores


def main(arguments: list[str]) -> None:
    """Take the steps and become the command."""
    end = arguments.index("--")
    for step in arguments[:end]:
        name, _, value = step.partition("=")
        try:
            _STEPS[name](value)
        except (OSError, ValueError) as error:
            shown = name if name == "seccomp" else step  # its value is long and says nothing
            sys.exit(_say(f"could not take on the limit {shown}: {error}", 125))
    for name in _IGNORED_BY_PYTHON:
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    command = arguments[end + 1 :]
    try:
        os.execve(command[0], command, _environment())  # noqa: S606 - its purpose
    except OSError as error:
        sys.exit(_say(f"could not start {command[0]}: {error.strerror}", 127))


def _say(what: str, status: int) -> int:
    sys.stderr.write(f"leaseway: {what}\n")
    sys.stderr.flush()
    return status


def _join(path: str) -> None:
    with Path(path).open("r+") as processes:
        processes.write(str(os.getpid()))


def _bound(kind: int, most: int) -> None:
    hard = resource.getrlimit(kind)[1]
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(kind, (most, most))


def _open_files(value: str) -> None:
    _bound(resource.RLIMIT_NOFILE, int(value))


def _data(value: str) -> None:
    _bound(resource.RLIMIT_DATA, int(value))


def _processes(value: str) -> None:
    _bound(resource.RLIMIT_NPROC, _tasks_of_user() + int(value))


def _filter(value: str) -> None:
    descriptor = os.memfd_create("seccomp")
    os.write(descriptor, bytes.fromhex(value))
    os.lseek(descriptor, 0, os.SEEK_SET)
    if descriptor == FILTER_DESCRIPTOR:
        os.set_inheritable(descriptor, True)
    else:
        os.dup2(descriptor, FILTER_DESCRIPTOR)
        os.close(descriptor)


_STEPS = {
    "join": _join,
    "nofile": _open_files,
    "data": _data,
    "nproc": _processes,
    "seccomp": _filter,
}


def _tasks_of_user() -> int:
    """Return how many processes and threads the kernel counts for this user."""
    user, found = os.getuid(), 0
    for entry in _PROC.iterdir():
        if entry.name.isdecimal():
            try:
                text = (entry / "status").read_text()
            except OSError:
                continue  # it has ended
            fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
            if int(fields["Uid"].split()[0]) == user:
                found += int(fields["Threads"])
    return found


def _environment() -> dict[bytes, bytes]:
    """Return what this process was started with; the interpreter may have set LC_CTYPE since."""
    try:
        entries = (_PROC / "self" / "environ").read_bytes().split(b"\0")
    except OSError:
        return dict(os.environb)
    pairs = (entry.partition(b"=") for entry in entries if entry)
    return {name: value for name, _, value in pairs}


if __name__ == "__main__":
    main(sys.argv[1:])
