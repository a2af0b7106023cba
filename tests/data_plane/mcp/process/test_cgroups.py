"""Cgroups of both versions, over a folder that imitates the kernel's file system."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import BOUND

from leaseway.data_plane.kinds.process import cgroups as module
from leaseway.data_plane.kinds.process.cgroups import (
    LEAF,
    Cgroup,
    Cgroups,
    Hierarchy,
    find_hierarchies,
    usable_processors,
)
from leaseway.spec.kinds.confinement import Limits
from leaseway.wire.bounds import MIB

EVERYTHING = Limits(memory_bytes=64 * MIB, cpu_cores=1.5, open_files=64, processes=16)
FILES = {
    "memory": {"memory.max": "max", "memory.swap.max": "max", "memory.events": "oom 0\noom_kill 0"},
    "cpu": {"cpu.max": "max 100000"},
    "pids": {"pids.max": "max"},
}


class Kernel:
    """Imitates version 2 in a folder: enabled controllers and member processes.

    A cgroup with processes may enable any controller but that of memory. Its children then are
    invalid: they can have neither processes nor controllers.

    Args:
        root: The worker's cgroup.
        controllers: Those that its children may have.
    """

    def __init__(self, root: Path, controllers: str = "memory cpu pids") -> None:
        self.root = root
        self.membership = root.parent / "proc" / "cgroup"
        self.read_only = False
        self.plain_mkdir, self.plain_rmdir = os.mkdir, os.rmdir
        root.mkdir()
        self._fill(root, controllers)

    def _fill(self, folder: Path, controllers: str) -> None:
        (folder / "cgroup.controllers").write_text(controllers)
        (folder / "cgroup.subtree_control").write_text("")
        (folder / "cgroup.procs").write_text("")
        (folder / "cgroup.events").write_text("populated 0")

    def _is_invalid(self, folder: Path) -> bool:
        above = folder.parent
        return above != self.root.parent and (
            self._is_invalid(above)
            or bool(entry(above, "cgroup.procs") and entry(above, "cgroup.subtree_control"))
        )

    def _enable(self, folder: Path, controller: str) -> None:
        listed = (folder / "cgroup.controllers").read_text().split()
        (folder / "cgroup.controllers").write_text(" ".join([*listed, controller]))
        for file, text in FILES[controller].items():
            (folder / file).write_text(text)

    def enter(self, *pids: int) -> None:
        """Move processes into the worker's cgroup."""
        (self.root / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))

    def mkdir(self, path: Path, mode: int = 0o777) -> None:
        """Create a cgroup with its files."""
        if self.read_only:
            raise OSError(errno.EROFS, "Read-only file system")
        self.plain_mkdir(path, mode)
        self._fill(path, "")
        for name in (path.parent / "cgroup.subtree_control").read_text().split():
            self._enable(path, name)

    def rmdir(self, path: Path) -> None:
        """Remove a cgroup without processes and children."""
        if (path / "cgroup.procs").read_text().strip():
            raise OSError(errno.EBUSY, "Device or resource busy")
        for file in path.iterdir():
            if file.is_file():
                file.unlink()
        self.plain_rmdir(path)

    def write(self, file: Path, text: str) -> None:
        """Write to a file with the kernel's checks."""
        if not file.exists():
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        if file.name.startswith("cgroup.") and self._is_invalid(file.parent):
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        if file.name == "cgroup.subtree_control":
            name = text.removeprefix("+")
            if name == "memory" and (file.parent / "cgroup.procs").read_text().strip():
                raise OSError(errno.EBUSY, "Device or resource busy")
            if name not in (file.parent / "cgroup.controllers").read_text().split():
                raise FileNotFoundError(errno.ENOENT, "No such file or directory")
            for child in file.parent.iterdir():
                if child.is_dir():
                    self._enable(child, name)
            text = f"{file.read_text()} {name}".strip()
        if file.name == "cgroup.procs":
            for other in self.root.rglob("cgroup.procs"):
                left = [pid for pid in other.read_text().split() if pid != text]
                other.write_text("".join(f"{pid}\n" for pid in left))
            if text == str(os.getpid()):
                place = file.parent.relative_to(self.root.parent)
                self.membership.write_text(f"0::/{place}\n")
            text = f"{file.read_text()}{text}\n"
        file.write_text(text)


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """Replace the kernel's cgroup file system."""
    kernel = Kernel(tmp_path / "unit.service")
    monkeypatch.setattr(os, "mkdir", kernel.mkdir)
    monkeypatch.setattr(os, "rmdir", kernel.rmdir)
    monkeypatch.setattr(module, "_write", kernel.write)
    return kernel


@pytest.fixture
def cgroups(kernel: Kernel, tmp_path: Path) -> Iterator[Cgroups]:
    """Return the cgroups of a worker in that kernel."""
    proc = tmp_path / "proc"
    kernel.plain_mkdir(proc)
    (proc / "cgroup").write_text("0::/unit.service\n")
    (proc / "mountinfo").write_text(f"29 22 0:26 / {tmp_path} rw - cgroup2 cgroup2 rw\n")
    cgroups = Cgroups(lambda _folder: None, proc)
    yield cgroups
    cgroups.close()


def entry(folder: Path, name: str) -> str:
    return (folder / name).read_text()


def test_each_limit_is_written_to_its_file(kernel: Kernel, cgroups: Cgroups) -> None:
    group = cgroups.create(EVERYTHING)
    (folder,) = set(group.folders.values())
    assert group.missing == {}
    assert entry(folder, "memory.max") == str(64 * MIB)
    assert entry(folder, "memory.swap.max") == "0"
    assert entry(folder, "cpu.max") == "150000 100000"
    assert entry(folder, "pids.max") == "16"
    assert group.procs_files == (folder / "cgroup.procs",)


def test_each_instance_has_its_own_cgroup_below_the_workers(
    kernel: Kernel, cgroups: Cgroups
) -> None:
    one, other = (cgroups.create(EVERYTHING).folders["memory"] for _ in range(2))
    assert one.parent == other.parent
    assert one.parent.parent == kernel.root
    assert one != other


def test_only_controllers_of_configured_limits_are_enabled(
    kernel: Kernel, cgroups: Cgroups
) -> None:
    group = cgroups.create(Limits(processes=4))
    assert entry(kernel.root, "cgroup.subtree_control") == "pids"
    assert group.folders.keys() == {"pids"}


@pytest.mark.parametrize("limits", [EVERYTHING, Limits(processes=4), Limits(cpu_cores=1.0)])
def test_a_worker_alone_in_its_cgroup_moves_to_a_leaf(
    kernel: Kernel, cgroups: Cgroups, limits: Limits
) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        container_init = 1
        kernel.enter(container_init, os.getpid(), child.pid)
        group = cgroups.create(limits)
        child.communicate(b"\n")
    leaf = kernel.root / LEAF
    assert group.missing == {}
    assert entry(leaf, "cgroup.procs").split() == ["1", str(os.getpid()), str(child.pid)]
    assert entry(kernel.root, "cgroup.procs") == ""


def test_a_worker_moves_once(kernel: Kernel, cgroups: Cgroups) -> None:
    kernel.enter(os.getpid())
    one, other = (cgroups.create(EVERYTHING).folders["memory"] for _ in range(2))
    assert one.parent == other.parent
    assert entry(kernel.root / LEAF, "cgroup.procs").split() == [str(os.getpid())]


def test_the_workers_of_one_up_use_the_cgroup_that_they_share(
    kernel: Kernel, cgroups: Cgroups
) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as plane:
        kernel.enter(os.getppid(), os.getpid(), plane.pid)
        workers = [
            Cgroups(lambda _folder: None, cgroups._proc, starter=os.getppid()) for _ in range(2)
        ]
        groups = [worker.create(EVERYTHING) for worker in workers]
        plane.communicate(b"\n")
    assert [group.missing for group in groups] == [{}, {}]
    leaf = entry(kernel.root / LEAF, "cgroup.procs").split()
    assert leaf == [str(pid) for pid in (os.getppid(), os.getpid(), plane.pid)]
    assert {group.folders["memory"].parent.parent for group in groups} == {kernel.root}
    for worker in workers:
        worker.close()


def test_processes_of_an_up_that_has_ended_are_those_of_others(
    kernel: Kernel, cgroups: Cgroups
) -> None:
    kernel.enter(os.getppid(), os.getpid())
    orphan = Cgroups(lambda _folder: None, cgroups._proc, starter=os.getppid() + 1)
    assert "contains other processes" in orphan.create(EVERYTHING).missing["memory"]


def test_a_worker_that_its_containers_init_restarts_nests_no_deeper(
    kernel: Kernel, cgroups: Cgroups
) -> None:
    kernel.enter(1, os.getpid())
    first = cgroups.create(EVERYTHING).folders["memory"]
    again = Cgroups(lambda _folder: None, cgroups._proc)  # its parent is in the leaf
    group = again.create(EVERYTHING)
    assert group.missing == {}
    assert group.folders["memory"].parent.parent == first.parent.parent == kernel.root
    again.close()


def test_a_cgroup_with_other_processes_is_not_used(kernel: Kernel, cgroups: Cgroups) -> None:
    kernel.enter(os.getpid(), os.getppid())
    group = cgroups.create(EVERYTHING)
    assert group.missing.keys() == {"memory", "cpu", "processes"}
    assert "contains other processes" in group.missing["cpu"]
    assert entry(kernel.root, "cgroup.procs").split() == [str(os.getpid()), str(os.getppid())]


def test_a_failed_write_is_reported_and_retried_at_the_next_start(
    kernel: Kernel, cgroups: Cgroups
) -> None:
    kernel.read_only = True
    refused = cgroups.create(Limits(memory_bytes=MIB))
    assert refused.missing["memory"].endswith("can't be written: Read-only file system")
    assert refused.procs_files == ()
    kernel.read_only = False
    assert cgroups.create(Limits(memory_bytes=MIB)).missing == {}


def test_a_cgroup_is_not_used_without_its_lock(
    kernel: Kernel, cgroups: Cgroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_folder: Path) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as without:
        without.setattr(module, "_lock", refuse)
        refused = cgroups.create(Limits(memory_bytes=MIB))
    assert refused.missing["memory"].endswith("can't be written: Too many open files")
    group = cgroups.create(Limits(memory_bytes=MIB))
    assert group.missing == {}
    with pytest.raises(BlockingIOError):
        module._lock(group.folders["memory"].parent)


def test_a_missing_controller_affects_only_its_limit(kernel: Kernel, cgroups: Cgroups) -> None:
    (kernel.root / "cgroup.controllers").write_text("memory pids")
    group = cgroups.create(EVERYTHING)
    assert group.missing == {"cpu": "the worker has no cgroup controller 'cpu'"}
    assert group.folders.keys() == {"memory", "pids"}


def test_oom_kills_are_counted(kernel: Kernel, cgroups: Cgroups) -> None:
    group = cgroups.create(Limits(memory_bytes=MIB))
    assert group.memory_kills == 0
    (group.folders["memory"] / "memory.events").write_text("oom 1\noom_kill 2\n")
    assert group.memory_kills == 2
    assert Cgroup().memory_kills == 0


async def test_remove_deletes_the_folders(kernel: Kernel, cgroups: Cgroups) -> None:
    group = cgroups.create(EVERYTHING)
    assert await group.remove()
    assert not group.folders["memory"].exists()


async def test_a_removal_that_hangs_in_the_kernel_blocks_neither_the_loop_nor_the_close(
    kernel: Kernel, cgroups: Cgroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    proceed = threading.Event()
    monkeypatch.setattr(module, "remove_cgroup", lambda _: not proceed.wait(BOUND))
    monkeypatch.setattr(module, "_REMOVE_TIMEOUT", 0.05)
    group = cgroups.create(EVERYTHING)
    try:
        async with asyncio.timeout(BOUND / 2):
            assert not await group.remove()
    finally:
        proceed.set()


def test_a_killed_workers_cgroup_is_removed_by_the_next_worker(
    kernel: Kernel, cgroups: Cgroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LOCK_DELAY", -1.0)
    dead, alive = (Cgroups(lambda _folder: None, cgroups._proc) for _ in range(2))
    abandoned = dead.create(EVERYTHING).folders["memory"].parent
    locked = alive.create(EVERYTHING).folders["memory"].parent
    dead.close()
    cgroups.create(EVERYTHING)
    assert not abandoned.exists()
    assert locked.exists()
    alive.close()


MOUNTS = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu\\040acct rw - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
36 31 0:33 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd
"""


def test_version_1_folders_are_found_inside_and_outside_containers(
    tmp_path: Path,
) -> None:
    (tmp_path / "mountinfo").write_text(MOUNTS)
    (tmp_path / "cgroup").write_text(
        "9:name=systemd:/\n8:pids:/../outside\n4:memory:/docker/abc/in\n2:cpu,cpuacct:/a:b\n0::/\n"
    )
    base = Path("/sys/fs/cgroup")
    assert find_hierarchies(tmp_path) == [
        Hierarchy(1, frozenset({"cpu", "cpuacct"}), base / "cpu acct" / "a:b"),
        Hierarchy(1, frozenset({"memory"}), base / "memory" / "in"),
        Hierarchy(1, frozenset({"pids"}), base / "pids"),
        Hierarchy(1, frozenset({"name=systemd"}), base / "systemd"),
    ]


def test_a_machine_without_cgroups_has_no_hierarchies(tmp_path: Path) -> None:
    assert find_hierarchies(tmp_path) == []


@pytest.mark.parametrize(
    ("kind", "files", "expected"),
    [
        ("cgroup2", {"pod/cpu.max": "50000 100000", "pod/worker/cpu.max": "max 100000"}, 0.5),
        ("cgroup2", {"pod/worker/cpu.max": "max 100000"}, None),
        (
            "cgroup",
            {"pod/worker/cpu.cfs_quota_us": "25000", "pod/worker/cpu.cfs_period_us": "100000"},
            0.25,
        ),
        (
            "cgroup",
            {"pod/worker/cpu.cfs_quota_us": "-1", "pod/worker/cpu.cfs_period_us": "100000"},
            None,
        ),
    ],
)
def test_the_usable_processors_are_limited_by_the_cgroup_and_those_around_it(
    tmp_path: Path, kind: str, files: dict[str, str], expected: float | None
) -> None:
    mounted = tmp_path / "cgroup"
    (mounted / "pod/worker").mkdir(parents=True)
    (mounted / "pod/worker/cgroup.controllers").write_text("cpu")
    for name, text in files.items():
        (mounted / name).write_text(text)
    proc = tmp_path / "proc"
    proc.mkdir()
    controllers = "" if kind == "cgroup2" else "cpu"
    (proc / "cgroup").write_text(f"0:{controllers}:/pod/worker\n")
    (proc / "mountinfo").write_text(f"1 1 0:1 / {mounted} rw - {kind} {kind} rw,cpu\n")
    assert usable_processors(proc) == (expected or len(os.sched_getaffinity(0)))
