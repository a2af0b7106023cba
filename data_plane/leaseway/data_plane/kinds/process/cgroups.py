"""Resource limits by Linux control groups, versions 1 and 2 (design.md#configuration, `limits`).

The worker creates a cgroup `leaseway-…` below its own one, and in it a cgroup for each limited
instance. A limit that the worker may not set is reported by its key. The worker locks its cgroup's
folder while it lives: a folder without a lock is left over from a dead worker.

With version 2 no process may be beside these: the worker's own, those of the `up` that started it
and the init of a container move to the leaf `leaseway.processes`, which all workers there share.
Nobody kills what is in it.

The worker's own limit of processors decides how many servers start at the same time.
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
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Final, Literal

from leaseway.data_plane.kinds.process.reaper_main import remove_cgroup, remove_empty
from leaseway.spec.kinds.confinement import Limits
from leaseway.wire import bounds

SELF: Final = Path("/proc/self")
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class Hierarchy:
    """A mounted cgroup hierarchy, and the folder in it of the process's cgroup."""

    version: Literal[1, 2]
    controllers: frozenset[str]
    path: Path


def find_hierarchies(proc: Path = SELF) -> list[Hierarchy]:
    """Return the mounted hierarchies that a process (its folder in /proc) is in.

    Empty without Linux or without a mounted hierarchy.
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
    return [group for group in found if group is not None]


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
    root = PurePosixPath(_unescape(fields[3]))
    mounted = Path(_unescape(fields[4]))
    # A container may see its place on the host, and its own cgroup mounted as the whole.
    if ".." in place.parts or not place.is_relative_to(root):
        return mounted
    return mounted / place.relative_to(root)


def _unescape(text: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), text)


CONTROLLERS: Final[Mapping[str, str]] = {"memory": "memory", "cpu": "cpu", "processes": "pids"}
"""The controller of each limit that a cgroup can hold, by its key under `limits:`."""

OWN: Final = "leaseway-"
LEAF: Final = "leaseway.processes"
_PERIOD: Final = 100_000
_ROUNDS: Final = 5
_LOCK_DELAY: Final = 10.0
"""Seconds after its creation in which a cgroup without a lock may still get one."""

_REMOVE_TIMEOUT: Final = 2.0
_Files = tuple[tuple[str, str], ...]


class Cgroups:
    """The cgroups of one worker, created with its first limited instance.

    `on_created` is called with each folder of the worker; it must be removed, with its contents,
    when the worker exits. `starter` is the `up` that has started the worker: its other processes
    may be in the worker's cgroup, too.
    """

    def __init__(
        self, on_created: Callable[[Path], None], proc: Path = SELF, starter: int | None = None
    ) -> None:
        self._on_created = on_created
        self._proc = proc
        # If it has ended, the worker has another parent, with processes of others.
        self._starter = starter if starter == os.getppid() else os.getpid()
        self._name = OWN + secrets.token_hex(8)
        self._folders: dict[Path, Path] = {}
        self._hierarchies: list[Hierarchy] = []
        self._locks: list[int] = []
        self._numbers = itertools.count(1)

    def create(self, limits: Limits) -> Cgroup:
        """Return a new cgroup with these limits, as far as they can be set.

        `Cgroup.missing` has the limits that could not be set. A failure is not remembered: once the
        machine is fixed, the next start succeeds.
        """
        # Runs on the loop: these files are in the kernel's memory, so all writes together take
        # about a millisecond, less than starting the process afterwards. In a thread, a cancelled
        # start would leak its cgroup.
        group = Cgroup()
        number = str(next(self._numbers))
        if not self._folders:
            self._hierarchies = [_around_leaf(found) for found in find_hierarchies(self._proc)]
        for key, settings in _settings(limits).items():
            controller = CONTROLLERS[key]
            hierarchy = next(
                (found for found in self._hierarchies if controller in found.controllers), None
            )
            if hierarchy is None:
                group.missing[key] = f"the worker has no cgroup controller '{controller}'"
                continue
            try:
                folder = self._instance_folder(hierarchy, controller, number)
                group.folders[controller] = folder
                _write_limits(folder, settings[hierarchy.version])
            except OSError as error:
                group.missing[key] = _reason(error, hierarchy)
        return group

    def close(self) -> None:
        """Release the locks: any process may then remove remaining cgroups."""
        for descriptor in self._locks:
            os.close(descriptor)
        self._locks.clear()
        self._folders.clear()

    def _instance_folder(self, hierarchy: Hierarchy, controller: str, number: str) -> Path:
        worker_folder = self._worker_folder(hierarchy)
        if hierarchy.version == 2:
            self._enable(hierarchy.path, controller)
            self._enable(worker_folder, controller)
        folder = worker_folder / number
        folder.mkdir(exist_ok=True)
        return folder

    def _worker_folder(self, hierarchy: Hierarchy) -> Path:
        folder = self._folders.get(hierarchy.path)
        if folder is None:
            _remove_abandoned(hierarchy.path)
            folder = hierarchy.path / self._name
            folder.mkdir(exist_ok=True)  # a step below may have failed before
            self._on_created(folder)
            self._locks.append(_lock(folder))
            self._folders[hierarchy.path] = folder
        return folder

    def _enable(self, parent: Path, controller: str) -> None:
        """Enable a controller for the children of a cgroup (version 2 only)."""
        control = parent / "cgroup.subtree_control"
        if controller in control.read_text().split():
            return
        # Except for the root, a cgroup that contains processes can't have children with any. The
        # kernel refuses only the controller of memory then: with others, the children are invalid.
        is_root = not (parent / "cgroup.events").exists()
        if not is_root and not self._vacate(parent):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        _write(control, f"+{controller}")

    def _vacate(self, parent: Path) -> bool:
        """Move this Leaseway's processes into the leaf; False if other processes are there."""
        leaf = parent / LEAF
        for _ in range(_ROUNDS):  # children may fork meanwhile
            processes = _processes(parent)
            if not processes:
                return True
            if not all(_is_ours(pid, self._starter) for pid in processes):
                return False
            leaf.mkdir(exist_ok=True)
            for pid in processes:
                with contextlib.suppress(ProcessLookupError):  # it has exited
                    _write(leaf / "cgroup.procs", str(pid))
        return not _processes(parent)


@dataclass
class Cgroup:
    """The cgroups of one instance by controller, and why a limit is missing, by its key."""

    folders: dict[str, Path] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def procs_files(self) -> tuple[Path, ...]:
        """The files that a process writes its id to, to join the cgroups."""
        return tuple(folder / "cgroup.procs" for folder in dict.fromkeys(self.folders.values()))

    @property
    def memory_kills(self) -> int:
        """How many processes the kernel's OOM killer killed in this cgroup.

        Reading takes about 0.1 ms: no disk is involved.
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

    def remove_nowait(self) -> None:
        """Try to remove the cgroups once, without waiting."""
        for folder in dict.fromkeys(self.folders.values()):
            remove_cgroup(folder)

    async def remove(self) -> bool:
        """Kill the processes inside and remove the cgroups; False if that takes more than 2 s."""
        remaining = list(dict.fromkeys(self.folders.values()))
        try:
            async with asyncio.timeout(_REMOVE_TIMEOUT):
                while True:
                    remaining = await asyncio.to_thread(_remove_cgroups, remaining)
                    if not remaining:
                        return True
                    await asyncio.sleep(0.01)
        except TimeoutError:
            return False


def _remove_cgroups(folders: list[Path]) -> list[Path]:
    """Kill the processes in cgroups and remove these; return the folders that remain."""
    return [folder for folder in folders if not remove_cgroup(folder)]


def _settings(limits: Limits) -> dict[str, dict[int, _Files]]:
    """Return the files to write, by limit and version. The first file of each must exist."""
    found: dict[str, dict[int, _Files]] = {}
    if limits.memory_bytes is not None:
        limit = str(limits.memory_bytes)
        found["memory"] = {
            1: (("memory.limit_in_bytes", limit), ("memory.memsw.limit_in_bytes", limit)),
            2: (("memory.max", limit), ("memory.swap.max", "0")),
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
        with contextlib.suppress(FileNotFoundError):  # a kernel without swap accounting
            _write(folder / name, text)


def _write(file: Path, text: str) -> None:
    """Write to an existing file of the kernel; fail if it does not exist."""
    with file.open("r+") as opened:
        opened.write(text)


def _reason(error: OSError, hierarchy: Hierarchy) -> str:
    if error.errno == errno.EBUSY:
        return f"the worker's cgroup {hierarchy.path} contains other processes, so it can't be used"
    return f"the worker's cgroup {hierarchy.path} can't be written: {error.strerror or error}"


def _lock(folder: Path) -> int:
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _remove_abandoned(parent: Path) -> None:
    """Remove cgroups of workers that were killed together with their reapers."""
    for folder in parent.glob(OWN + "*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_ctime < _LOCK_DELAY:
                continue
            descriptor = _lock(folder)
            try:
                for child in folder.iterdir():  # of instances; who knows who is in another one
                    if child.name.isdecimal() and not remove_cgroup(child):
                        remove_cgroup(child)  # a killed process may need a moment to exit
                remove_empty(folder)
            finally:
                os.close(descriptor)


def _processes(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "cgroup.procs").read_text().split()]


def _is_ours(pid: int, starter: int) -> bool:
    """Return whether a process is the starter, descends from it, or is its container's init."""
    if pid == 1:  # only a container's init shares a cgroup with a worker
        return True
    while pid > 1 and pid != starter:
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return True  # it has exited
    return pid == starter


def _around_leaf(hierarchy: Hierarchy) -> Hierarchy:
    """Return the cgroup in which a worker has its own, if a worker has moved this one to a leaf."""
    around = hierarchy.path.parent
    if hierarchy.version != 2 or hierarchy.path.name != LEAF:
        return hierarchy
    controllers = (around / "cgroup.controllers").read_text().split()
    return replace(hierarchy, controllers=frozenset(controllers), path=around)


def default_concurrent_starts() -> int:
    """Return how many processes of servers start at the same time, if no option says it.

    A worker with less than one processor starts as many as one with a whole one.
    """
    return round(max(1.0, usable_processors()) * bounds.STARTS_PER_CORE)


def usable_processors(proc: Path = SELF) -> float:
    """Return how many processors a process (its folder in /proc) may use, or a part of one."""
    try:
        known = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # not Linux
        known = os.cpu_count() or 1
    limits = [_limit(group.path, group.version) for group in find_hierarchies(proc)]
    return min([known, *(limit for limit in limits if limit is not None)])


def _limit(folder: Path, version: int) -> float | None:
    """Return the least limit of a cgroup and of those that contain it."""
    read = _of_version_2 if version == 2 else _of_version_1
    limits = [read(each) for each in (folder, *folder.parents)]
    return min((limit for limit in limits if limit is not None), default=None)


def _of_version_2(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
        return int(quota) / int(period)
    except (OSError, ValueError):  # `max`: no limit
        return None


def _of_version_1(folder: Path) -> float | None:
    try:
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        period = int((folder / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
    return quota / period if quota > 0 else None
