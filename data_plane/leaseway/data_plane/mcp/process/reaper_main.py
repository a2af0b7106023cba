"""The reaper's own program: it outlives the worker and kills what the worker left behind.

Started with `python -I -S` on this very file, so it imports the standard library only. It reads
lines from its standard input, a pipe that the worker holds:

- `mark TEXT`: every process that the worker starts has TEXT in its environment.
- `cgroup PATH`: the worker's own cgroup, with one in it for each limited instance.
- `engine JSON`: the worker runs containers; how they are listed and removed.
- `+PGID`: a process group was started.
- `end`: the worker ends in order: nothing is on its way any more.
- `-PGID TEXT`: it has ended; processes with TEXT in their environment have left it and are to go.
  With 0 as its group it is an earlier run, whose worker and reaper were killed together.

When the pipe closes, whatever the reason, every group is killed, then every process with the
mark and every one in the cgroups, which are removed. The mark finds what left its group and
session (a browser started detached, say); `tags` of it are found where the environment was dropped,
too. On systems without /proc and for processes of other
users only the groups are known.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

_PROC = Path("/proc")
_REMOVAL = 3.0
_CONTAINERS_REMOVAL = 20.0
_BETWEEN_LOOKS = 0.2
_LOOKS = 5
_TAGGED = 1 << 62
_LIMIT = b"Max realtime timeout"


def main(batches: Iterable[Iterable[bytes]]) -> None:
    """Follow the worker until it is gone, then clean up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    mark = b""
    groups: set[int] = set()
    cgroups: set[Path] = set()
    engines: list[bytes] = []
    looks = _LOOKS
    for batch in batches:
        left: set[bytes] = set()
        for line in batch:
            verb, _, rest = line.partition(b" ")
            if verb == b"mark":
                mark = rest
            elif verb == b"cgroup":
                cgroups.add(Path(os.fsdecode(rest)))
            elif verb == b"engine":
                engines.append(rest)
            elif verb == b"end":
                looks = 1
            elif verb.startswith(b"+"):
                groups.add(int(verb[1:]))
            elif verb.startswith(b"-"):
                groups.discard(int(verb[1:]))
                left.add(rest)
        kill_marked(left)
    for group in groups:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)
    kill_marked({mark})
    for engine in engines:
        remove_containers(json.loads(engine), looks)
    _remove_all(cgroups)


def batches(descriptor: int) -> Iterator[list[bytes]]:
    """Yield the lines that have come, all at once: one look at the machine serves them all."""
    rest = b""
    while data := os.read(descriptor, 1 << 16):
        *lines, rest = (rest + data).split(b"\n")
        yield lines


def kill_marked(marks: Collection[bytes]) -> None:
    """Kill every process with one of the marks in its environment, and what it starts meanwhile."""
    wanted = [mark for mark in marks if mark]
    tagged = [tags(mark) for mark in wanted]
    # A process may fork between being seen and being killed: look again until none is left.
    for _ in range(_LOOKS if wanted else 0):
        spared = (os.getpid(), os.getppid())  # a worker has a server's tag while it starts it
        found = [pid for pid in _processes() if pid not in spared and _has(pid, wanted, tagged)]
        if not found:
            return
        _kill(found)


def remove_containers(engine: dict[str, Any], looks: int) -> None:
    """Remove all of a worker's containers, those too that its engine was just about to make.

    Args:
        engine: How they are listed and removed.
        looks: How often in a row there must be none.
    """
    deadline, empty = time.monotonic() + _CONTAINERS_REMOVAL, 0
    while empty < looks and time.monotonic() < deadline:
        try:
            found = _ask(engine["list"], engine["environment"]).split()
            if found:
                _ask([*engine["remove"], *found], engine["environment"])
        except (OSError, subprocess.SubprocessError):
            found = []  # the engine is busy or gone; it may come back
        empty = 0 if found else empty + 1
        if empty < looks:
            time.sleep(_BETWEEN_LOOKS)


def _ask(command: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(  # noqa: S603 - the engine's own client
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=_CONTAINERS_REMOVAL,
        text=True,
        check=False,
    )
    return done.stdout


def kill_in_cgroup(folder: Path) -> None:
    """Kill every process in a cgroup and in those below it."""
    with contextlib.suppress(OSError), (folder / "cgroup.kill").open("r+") as kill:
        kill.write("1")
        return  # version 2 does it at once
    for _ in range(_LOOKS):
        found = [pid for each in _tree(folder) for pid in _inside(each) if pid != os.getpid()]
        if not found:
            return
        _kill(found)


def remove_cgroup(folder: Path) -> bool:
    """Kill what is in a cgroup and remove it with those below it; say whether it is gone."""
    kill_in_cgroup(folder)
    _remove_empty(folder)
    return not folder.exists()


def _remove_all(folders: Collection[Path]) -> None:
    """Remove workers' cgroups, within 3 s."""
    deadline = time.monotonic() + _REMOVAL
    while any(_instances_left(folder) for folder in folders):
        if time.monotonic() > deadline:
            return
        time.sleep(0.01)
    for folder in folders:
        _remove_empty(folder)  # unless the worker or this very process is in a leaf of it


def _instances_left(folder: Path) -> list[Path]:
    instances = [child for child in _children(folder) if child.name.isdecimal()]
    return [child for child in instances if not remove_cgroup(child)]


def _remove_empty(folder: Path) -> None:
    for each in _tree(folder):
        with contextlib.suppress(OSError):
            each.rmdir()


def _tree(folder: Path) -> list[Path]:
    """Return a cgroup and all below it, the lowest first."""
    found = [folder]
    for each in found:
        found.extend(_children(each))
    return found[::-1]


def _children(folder: Path) -> list[Path]:
    try:
        return [child for child in folder.iterdir() if child.is_dir()]
    except OSError:
        return []


def _inside(folder: Path) -> list[int]:
    try:
        return [int(line) for line in (folder / "cgroup.procs").read_text().split()]
    except OSError:
        return []


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _processes() -> list[int]:
    try:
        return [int(name) for name in os.listdir(_PROC) if name.isdecimal()]  # noqa: PTH208
    except OSError:
        return []


def _has(pid: int, marks: Collection[bytes], tagged: Collection[range]) -> bool:
    try:
        environment = (_PROC / str(pid) / "environ").read_bytes()
        if any(mark in environment for mark in marks):
            return True
        limits = (_PROC / str(pid) / "limits").read_bytes()
    except OSError:
        return False
    soft = limits.partition(_LIMIT)[2].split(None, 1)[:1]
    return bool(soft) and soft[0].isdigit() and any(int(soft[0]) in tag for tag in tagged)


def tags(mark: bytes) -> range:
    """Return the tags of a mark: of one server's processes, or of all that a worker starts.

    A tag is a limit on the processor time of real-time processes, in microseconds: children
    inherit it whatever their environment, and one of so many years limits nothing.
    """
    run, _, number = mark.removesuffix(b".").partition(b".")
    try:
        first = _TAGGED | int(run[:7], 16) << 32
        return range(first + int(number), first + int(number) + 1) if number else _all(first)
    except ValueError:
        return range(0)


def _all(first: int) -> range:
    return range(first, first + (1 << 32))


if __name__ == "__main__":
    main(batches(sys.stdin.fileno()))
