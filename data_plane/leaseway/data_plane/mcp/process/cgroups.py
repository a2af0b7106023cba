"""Limits by the kernel's control groups, of either version (DESIGN §2, `limits`).

Below the worker's own cgroup there is one of the worker, `leaseway-…`, and in that one of each
limited instance. What the worker may not write is said, limit by limit, and never guessed at.
The worker's cgroup is locked as long as the worker lives: one that is not has been left behind.

Which control-group hierarchies a process is in, and where. Reads two files of /proc.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import itertools
import os
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final, Literal

from leaseway.data_plane.mcp.process.reaper_main import remove_cgroup
from leaseway.spec.model import Limits

SELF: Final = Path("/proc/self")
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class Hierarchy:
    """One mounted hierarchy.

    Attributes:
        version: Of its interface.
        controllers: What it can limit where the process is.
        path: The folder of the cgroup that the process is in.
    """

    version: Literal[1, 2]
    controllers: frozenset[str]
    path: Path


def find_hierarchies(proc: Path = SELF) -> list[Hierarchy]:
    """Return the hierarchies; empty where there are none (no Linux, nothing mounted).

    Args:
        proc: The process's folder in /proc.
    """
    try:
        memberships = (proc / "cgroup").read_text().splitlines()
        mounts = (proc / "mountinfo").read_text().splitlines()
    except OSError:
        return []
    places: dict[str, PurePosixPath] = {}
    for line in memberships:
        _, controllers, path = line.split(":", 2)
        places |= {name: PurePosixPath(path) for name in controllers.split(",")}
    found = (_hierarchy(line, places) for line in mounts)
    return [each for each in found if each is not None]


def _hierarchy(mount: str, places: dict[str, PurePosixPath]) -> Hierarchy | None:
    before, _, after = mount.partition(" - ")
    fields, kind = before.split(), after.split()
    if kind[0] == "cgroup2" and "" in places:
        path = _folder(fields, places[""])
        try:
            controllers = (path / "cgroup.controllers").read_text().split()
        except OSError:
            return None
        return Hierarchy(2, frozenset(controllers), path)
    if kind[0] == "cgroup":
        names = frozenset(kind[-1].split(",")) & places.keys()
        if names:
            return Hierarchy(1, names, _folder(fields, places[min(names)]))
    return None


def _folder(fields: list[str], place: PurePosixPath) -> Path:
    root = PurePosixPath(_plain(fields[3]))
    mounted = Path(_plain(fields[4]))
    # A container may see its place on the host, and its own cgroup mounted as the whole.
    if ".." in place.parts or not place.is_relative_to(root):
        return mounted
    return mounted / place.relative_to(root)


def _plain(text: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), text)


CONTROLLERS: Final[Mapping[str, str]] = {"memory": "memory", "cpu": "cpu", "processes": "pids"}
"""The controller of each limit that a cgroup can hold, by its key under `limits:`."""

OWN: Final = "leaseway-"
_LEAF: Final = "worker"
_PERIOD: Final = 100_000
_SETTLED: Final = 10.0
"""A cgroup without a lock may be a moment before its lock; after so many seconds it is not."""

_REMOVAL: Final = 2.0
_Files = tuple[tuple[str, str], ...]


class Cgroups:
    """The cgroups of one worker; made when the first limit asks for them.

    Args:
        on_folder: Called with each folder of the worker, which is to go when the worker does,
            with everything in it.
        proc: Where the kernel says which cgroups the worker is in.
    """

    def __init__(self, on_folder: Callable[[Path], None], proc: Path = SELF) -> None:
        self._on_folder = on_folder
        self._proc = proc
        self._name = OWN + secrets.token_hex(8)
        self._folders: dict[Path, Path] = {}
        self._locks: list[int] = []
        self._numbers = itertools.count(1)

    def confine(self, limits: Limits) -> Cgroup:
        """Return a new cgroup with these limits, as far as they can be set.

        What could not be is in `Cgroup.missing`. Nothing is remembered of a failure: what is
        mended on the machine holds from the next start on.
        """
        # On the loop: these files are the kernel's memory and no disk is behind them, so all of
        # them together take about a millisecond, less than the start of the process that follows.
        # In a thread, a start that is cancelled would leave a cgroup that nobody knows of.
        group = Cgroup()
        number = str(next(self._numbers))
        hierarchies = find_hierarchies(self._proc)
        for key, settings in _settings(limits).items():
            controller = CONTROLLERS[key]
            owner = next((each for each in hierarchies if controller in each.controllers), None)
            if owner is None:
                group.missing[key] = f"the worker has no cgroup controller '{controller}'"
                continue
            try:
                folder = self._instance_folder(owner, controller, number)
                group.add(controller, folder)
                _write_limits(folder, settings[owner.version])
            except OSError as error:
                group.missing[key] = _why(error, owner)
        return group

    def close(self) -> None:
        """Give up the locks: what is left may be removed by anyone."""
        for descriptor in self._locks:
            os.close(descriptor)
        self._locks.clear()
        self._folders.clear()

    def _instance_folder(self, owner: Hierarchy, controller: str, number: str) -> Path:
        folder = self._worker_folder(owner)
        if owner.version == 2:
            self._enable(owner.path, controller, folder)
            self._enable(folder, controller, folder)
        own = folder / number
        own.mkdir(exist_ok=True)
        return own

    def _worker_folder(self, owner: Hierarchy) -> Path:
        folder = self._folders.get(owner.path)
        if folder is None:
            _remove_abandoned(owner.path)
            folder = owner.path / self._name
            folder.mkdir()
            self._on_folder(folder)
            self._folders[owner.path] = folder
            self._locks.append(_lock(folder))
        return folder

    def _enable(self, parent: Path, controller: str, folder: Path) -> None:
        """Let the children of a cgroup have a controller (version 2 only)."""
        control = parent / "cgroup.subtree_control"
        if controller in control.read_text().split():
            return
        try:
            _write(control, f"+{controller}")
        except OSError as error:
            # A cgroup with processes in it can't have children with controllers.
            if error.errno != errno.EBUSY or not self._step_aside(parent, folder):
                raise
            _write(control, f"+{controller}")

    def _step_aside(self, parent: Path, folder: Path) -> bool:
        """Move this worker into a leaf, if it is alone with what it started; say whether."""
        processes = _processes(parent)
        if not all(_is_ours(pid) for pid in processes):
            return False
        leaf = folder / _LEAF
        leaf.mkdir(exist_ok=True)
        for pid in processes:
            _write(leaf / "cgroup.procs", str(pid))
        return True


@dataclass
class Cgroup:
    """The cgroups of one instance, one for each hierarchy that holds a limit.

    Attributes:
        folders: Where they are, by controller.
        missing: Why a limit is not held, by its key.
    """

    folders: dict[str, Path] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def add(self, controller: str, folder: Path) -> None:
        self.folders[controller] = folder

    @property
    def entrances(self) -> tuple[Path, ...]:
        """The files that a process writes its id to, to be inside."""
        return tuple(folder / "cgroup.procs" for folder in dict.fromkeys(self.folders.values()))

    @property
    def memory_kills(self) -> int:
        """How many processes the kernel killed because the memory was used up.

        Read from the kernel's memory at once, within about 0.1 ms: no disk is behind it.
        """
        folder = self.folders.get("memory")
        if folder is None:
            return 0
        for name in ("memory.events", "memory.oom_control"):
            with contextlib.suppress(OSError):
                fields = dict(
                    line.split(maxsplit=1) for line in (folder / name).read_text().splitlines()
                )
                return int(fields.get("oom_kill", 0))
        return 0

    def discard(self) -> None:
        """Remove the cgroups at once: nothing was started in them, or it has ended."""
        for folder in dict.fromkeys(self.folders.values()):
            remove_cgroup(folder)

    async def remove(self) -> bool:
        """Kill what is inside and remove the cgroups; say whether they went within 2 s."""
        left = list(dict.fromkeys(self.folders.values()))
        try:
            async with asyncio.timeout(_REMOVAL):
                while True:
                    left = await asyncio.to_thread(_removed_in_vain, left)
                    if not left:
                        return True
                    await asyncio.sleep(0.01)
        except TimeoutError:
            return False


def _removed_in_vain(folders: list[Path]) -> list[Path]:
    """Kill what is in cgroups and remove them; return those that are still there."""
    return [folder for folder in folders if not remove_cgroup(folder)]


def _settings(limits: Limits) -> dict[str, dict[int, _Files]]:
    """Return what to write where, by limit and version. The first file of each is needed."""
    found: dict[str, dict[int, _Files]] = {}
    if limits.memory_bytes is not None:
        most = str(limits.memory_bytes)
        found["memory"] = {
            1: (("memory.limit_in_bytes", most), ("memory.memsw.limit_in_bytes", most)),
            2: (("memory.max", most), ("memory.swap.max", "0")),
        }
    if limits.cpu_cores is not None:
        quota = str(max(1000, round(limits.cpu_cores * _PERIOD)))
        found["cpu"] = {
            1: (("cpu.cfs_quota_us", quota), ("cpu.cfs_period_us", str(_PERIOD))),
            2: (("cpu.max", f"{quota} {_PERIOD}"),),
        }
    if limits.processes is not None:
        files: _Files = (("pids.max", str(limits.processes)),)
        found["processes"] = {1: files, 2: files}
    return found


def _write_limits(folder: Path, settings: _Files) -> None:
    (first, value), *others = settings
    _write(folder / first, value)
    for name, text in others:
        with contextlib.suppress(FileNotFoundError):  # without swap there is nothing to bound
            _write(folder / name, text)


def _write(file: Path, text: str) -> None:
    """Write to a file of the kernel, which is there or not: it can't be made."""
    with file.open("r+") as opened:
        opened.write(text)


def _why(error: OSError, owner: Hierarchy) -> str:
    if error.errno == errno.EBUSY:
        return f"the worker's cgroup {owner.path} has other processes in it, which rules it out"
    return f"the worker's cgroup {owner.path} can't be written: {error.strerror or error}"


def _lock(folder: Path) -> int:
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _remove_abandoned(parent: Path) -> None:
    """Remove what workers left behind that were killed together with their reaper."""
    for folder in parent.glob(OWN + "*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_ctime < _SETTLED:
                continue
            descriptor = _lock(folder)
            try:
                for child in folder.iterdir():
                    if child.is_dir() and not remove_cgroup(child):
                        remove_cgroup(child)  # what was killed just now may need a moment
                remove_cgroup(folder)
            finally:
                os.close(descriptor)


def _processes(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "cgroup.procs").read_text().split()]


def _is_ours(pid: int) -> bool:
    """Return whether a process is this one or descends from it."""
    while pid > 1 and pid != os.getpid():
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return True  # it has ended
    return pid == os.getpid()
