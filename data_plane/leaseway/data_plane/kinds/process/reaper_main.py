"""The reaper process's program: it outlives a killed worker and kills the worker's servers.

Started as a file with `python -I -S`, so it imports the standard library only. It reads lines from
its standard input, a pipe from the worker:

- `mark TEXT`: every process that the worker starts has TEXT in its environment.
- `cgroup PATH`: the worker's own cgroup, with a child for each limited instance.
- `folder PATH`: a folder of the worker, to remove at the end.
- `remove PATH`: such a folder of an earlier run, to remove now.
- `engine JSON`: the worker runs containers; the commands that list and remove them.
- `+PGID`: a process group was started.
- `end`: the worker shuts down in order: no container start is in flight.
- `-PGID TEXT`: the group has exited; kill processes with TEXT in their environment, which left it.
  PGID 0 stands for an earlier run whose worker and reaper were killed together.

When the pipe closes, for any reason, the reaper kills every group, every process with the mark and
every process in the cgroups, and removes these. The mark finds processes that left their group and
session (a detached browser, say); its `tags` find those that dropped the environment, too. Without
/proc, and for processes of other users, only the groups are found.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
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
_POLL_INTERVAL = 0.2
_ROUNDS = 5
_TAGGED = 1 << 62
_LIMIT = b"Max realtime timeout"


def main(batches: Iterable[Iterable[bytes]]) -> None:
    """Read the worker's lines until it exits, then clean up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    worker = _Worker()
    for batch in batches:
        for line in batch:
            worker.handle(line)
        worker.clean_up_ended()
    for group in worker.groups:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)
    kill_marked({worker.mark})
    for folder in worker.folders:
        remove_tree(folder)
    for engine in worker.engines:
        remove_containers(json.loads(engine), worker.empty_polls)
    _remove_all(worker.cgroups)


class _Worker:
    """What a worker has registered, and what has ended since the last batch of lines."""

    def __init__(self) -> None:
        self.mark = b""
        self.groups: set[int] = set()
        self.cgroups: set[Path] = set()
        self.folders: set[Path] = set()
        self.engines: list[bytes] = []
        self.empty_polls = _ROUNDS
        self._ended: set[bytes] = set()
        self._removed: set[Path] = set()

    def handle(self, line: bytes) -> None:
        verb, _, rest = line.partition(b" ")
        if verb == b"mark":
            self.mark = rest
        elif verb == b"cgroup":
            self.cgroups.add(Path(os.fsdecode(rest)))
        elif verb == b"folder":
            self.folders.add(Path(os.fsdecode(rest)))
        elif verb == b"remove":
            self._removed.add(Path(os.fsdecode(rest)))
        elif verb == b"engine":
            self.engines.append(rest)
        elif verb == b"end":
            self.empty_polls = 1
        elif verb.startswith(b"+"):
            self.groups.add(int(verb[1:]))
        elif verb.startswith(b"-"):
            self.groups.discard(int(verb[1:]))
            self._ended.add(rest)

    def clean_up_ended(self) -> None:
        kill_marked(self._ended)
        for folder in self._removed:
            remove_tree(folder)
        self._ended, self._removed = set(), set()


def batches(descriptor: int) -> Iterator[list[bytes]]:
    """Yield all lines received so far, so that one scan of /proc serves them all."""
    rest = b""
    while data := os.read(descriptor, 1 << 16):
        *lines, rest = (rest + data).split(b"\n")
        yield lines


def kill_marked(marks: Collection[bytes]) -> None:
    """Kill every process with one of the marks in its environment, and its new children."""
    wanted = [mark for mark in marks if mark]
    tagged = [tags(mark) for mark in wanted]
    # A process may fork between being found and being killed: repeat until none is found.
    for _ in range(_ROUNDS if wanted else 0):
        spared = (os.getpid(), os.getppid())  # a worker has a server's tag while starting it
        found = [pid for pid in _processes() if pid not in spared and _matches(pid, wanted, tagged)]
        if not found:
            return
        _kill(found)


def remove_containers(engine: dict[str, Any], empty_polls: int) -> None:
    """Remove all of a worker's containers, including those that the engine is just creating.

    That is done once `empty_polls` polls in a row have found no container.
    """
    deadline, empty = time.monotonic() + _CONTAINERS_REMOVAL, 0
    while empty < empty_polls and time.monotonic() < deadline:
        try:
            found = _run(engine["list"], engine["environment"]).split()
            if found:
                _run([*engine["remove"], *found], engine["environment"])
        except (OSError, subprocess.SubprocessError):
            found = []  # the engine is busy or stopped; it may respond later
        empty = 0 if found else empty + 1
        if empty < empty_polls:
            time.sleep(_POLL_INTERVAL)


def _run(command: list[str], environment: dict[str, str]) -> str:
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


def remove_tree(folder: Path) -> bool:
    """Remove a folder that a server could change, without following links; return success."""
    with contextlib.suppress(OSError, RecursionError):
        for root, names, _ in os.walk(folder):
            for name in names:
                path = os.path.join(root, name)  # noqa: PTH118 - faster for large trees
                if not os.path.islink(path):  # noqa: PTH114
                    os.chmod(path, 0o700)  # noqa: PTH101
        shutil.rmtree(folder)
    return not folder.exists()


def kill_in_cgroup(folder: Path) -> None:
    """Kill every process in a cgroup and in its children."""
    with contextlib.suppress(OSError), (folder / "cgroup.kill").open("r+") as kill:
        kill.write("1")
        return  # version 2 kills the whole tree at once
    for _ in range(_ROUNDS):
        found = [pid for group in _tree(folder) for pid in _inside(group) if pid != os.getpid()]
        if not found:
            return
        _kill(found)


def remove_cgroup(folder: Path) -> bool:
    """Kill the processes in a cgroup, remove it and its children; return whether it is removed."""
    kill_in_cgroup(folder)
    remove_empty(folder)
    return not folder.exists()


def _remove_all(folders: Collection[Path]) -> None:
    """Remove workers' cgroups, within 3 s."""
    deadline = time.monotonic() + _REMOVAL
    while any(_remaining_instances(folder) for folder in folders):
        if time.monotonic() > deadline:
            return
        time.sleep(0.01)
    for folder in folders:
        remove_empty(folder)


def _remaining_instances(folder: Path) -> list[Path]:
    instances = [child for child in _children(folder) if child.name.isdecimal()]
    return [child for child in instances if not remove_cgroup(child)]


def remove_empty(folder: Path) -> None:
    """Remove a cgroup and its children, as far as no process is in them."""
    for group in _tree(folder):
        with contextlib.suppress(OSError):
            group.rmdir()


def _tree(folder: Path) -> list[Path]:
    """Return a cgroup and all its descendants, the deepest first."""
    found = [folder]
    for pid in found:
        found.extend(_children(pid))
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


def _matches(pid: int, marks: Collection[bytes], tagged: Collection[range]) -> bool:
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
    """Return the tags of a mark: one server's, or all of a worker's.

    A tag is a value of RLIMIT_RTTIME (CPU time of real-time processes, in microseconds): children
    inherit it with any environment, and a limit of so many years has no effect.
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
