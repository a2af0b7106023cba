"""The reaper's own program: it outlives the worker and kills what the worker left behind.

Started with `python -I -S` on this very file, so it imports the standard library only. It reads
lines from its standard input, a pipe that the worker holds:

- `mark TEXT`: every process that the worker starts has TEXT in its environment.
- `+PGID`: a process group was started.
- `-PGID TEXT`: it has ended; processes with TEXT in their environment have left it and are to go.

When the pipe closes, whatever the reason, every group is killed, then every process with the
mark. The mark finds what left its group and session (a browser started detached, say). On
systems without /proc and for processes of other users only the groups are known.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path

_PROC = Path("/proc")


def main(lines: Iterable[bytes]) -> None:
    """Follow the worker until it is gone, then clean up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    mark = b""
    groups: set[int] = set()
    for line in lines:
        verb, _, rest = line.rstrip(b"\n").partition(b" ")
        if verb == b"mark":
            mark = rest
        elif verb.startswith(b"+"):
            groups.add(int(verb[1:]))
        elif verb.startswith(b"-"):
            groups.discard(int(verb[1:]))
            kill_marked(rest)
    for group in groups:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)
    kill_marked(mark)


def kill_marked(mark: bytes) -> None:
    """Kill every process that has the mark in its environment, and what those start meanwhile."""
    # A process may fork between being seen and being killed: look again until none is left.
    for _ in range(5):
        found = [pid for pid in _processes() if mark and pid != os.getpid() and _has(pid, mark)]
        if not found:
            return
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def _processes() -> list[int]:
    try:
        return [int(name) for name in os.listdir(_PROC) if name.isdecimal()]  # noqa: PTH208
    except OSError:
        return []


def _has(pid: int, mark: bytes) -> bool:
    try:
        return mark in (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return False


if __name__ == "__main__":
    main(sys.stdin.buffer)
