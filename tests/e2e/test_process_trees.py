"""No process outlives its instance, server or worker, wherever it is in the process tree."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tests.conftest import ServerCommand, descendants
from tests.e2e.system import SERVERS, System, eventually, python_server, running

from leaseway.sdk import AsyncClient, LeasewayError

pytestmark = pytest.mark.usefixtures("leak_guard")
TAG = f"TEST_TREE_{os.getpid()}"
NOSY = str(SERVERS / "nosy.py")
SHARED = {"truely-stateless": True}
# Without a redirection, a shell gives background processes no standard input.
WRAPPER = 'exec 3<&0; "$@" <&3 3<&- & exec 3<&-; wait'
LIMITS = {"memory": "512MiB", "open_files": 64, "processes": 64}
Trees = dict[str, set[int]]


def wrapped(*command: str, **settings: object) -> dict[str, object]:
    """Return the entry of a server behind `sh -c 'server & wait'`."""
    args = ["-c", WRAPPER, "sh", *command]
    return {"transport": "stdio", "command": "sh", "args": args, **settings}


def all_kinds(folder: Path) -> dict[str, dict[str, object]]:
    """Return servers whose children stay in the tree, leave the group, or leave the tree."""
    kinds = {
        "alone": python_server("nosy.py"),
        "wrapped": wrapped(sys.executable, NOSY),
        "limited": python_server("nosy.py", *child(folder, "orphan"), limits=LIMITS),
        **{how: python_server("nosy.py", *child(folder, how)) for how in HOW},
    }
    return {name: marked(name, entry) for name, entry in kinds.items()}


HOW = ("plain", "session", "orphan")
SIZES = {"alone": 1, "wrapped": 2, "limited": 2, **dict.fromkeys(HOW, 2)}


def child(folder: Path, how: str) -> list[str]:
    return ["--child", how, str(folder / f"{how}.pid")]


def marked(name: str, entry: dict[str, object]) -> dict[str, object]:
    return {**entry, **SHARED, "env": {TAG: name}}


def tree(name: str) -> set[int]:
    """Return the live processes of a server, found by an environment variable."""
    wanted = f"{TAG}={name}\0".encode()
    found = set()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdecimal() and wanted in (entry / "environ").read_bytes():
                found.add(int(entry.name))
    return found


def states(parent: int) -> dict[int, str]:
    """Return the states of a process's children, by id."""
    found = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdecimal():
                state, above = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                if int(above) == parent:
                    found[int(entry.name)] = state
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def all_exited(trees: Trees) -> None:
    await eventually(lambda: not any(alive(pid) for pids in trees.values() for pid in pids))


@contextlib.asynccontextmanager
async def running_trees(
    folder: Path, servers: dict[str, dict[str, object]], sizes: dict[str, int]
) -> AsyncIterator[tuple[System, AsyncClient, Trees]]:
    """Run servers; yield the processes of each."""
    async with running(folder, servers) as (system, client):
        await eventually(lambda: all(len(tree(name)) >= size for name, size in sizes.items()))
        yield system, client, {name: tree(name) for name in sizes}


async def remove_servers(system: System, trees: Trees) -> None:
    system.write({})


async def kill_worker(system: System, trees: Trees) -> None:
    system.workers["worker-1"].process.kill()
    await system.workers["worker-1"].process.wait()


async def kill_servers(system: System, trees: Trees) -> None:
    worker = system.workers["worker-1"].process.pid
    leaders = states(worker).keys() & {pid for pids in trees.values() for pid in pids}
    assert len(leaders) == len(trees)
    for pid in leaders:
        os.kill(pid, signal.SIGKILL)


ENDS = (remove_servers, kill_worker, kill_servers)
End = Callable[[System, Trees], "asyncio.Future[None]"]


async def test_process_trees_of_removed_servers_are_stopped(tmp_path: Path) -> None:
    async with running_trees(tmp_path, all_kinds(tmp_path), SIZES) as (system, _, trees):
        await remove_servers(system, trees)
        await all_exited(trees)


@pytest.mark.npm
@pytest.mark.parametrize("end", [remove_servers, kill_servers])
async def test_the_process_tree_of_npx_is_stopped(
    tmp_path: Path, npm_server: ServerCommand, end: End
) -> None:
    if shutil.which("npx") is None:
        npm_server("npx")
    (binary,) = npm_server("mcp-server-everything")
    prefix = str(Path(binary).parents[2])
    args = ["--no-install", "--prefix", prefix, "mcp-server-everything", "stdio"]
    servers = {"npx": marked("npx", {"transport": "stdio", "command": "npx", "args": args})}
    async with running_trees(tmp_path, servers, {"npx": 2}) as (system, _, trees):
        await end(system, trees)
        await all_exited(trees)


@pytest.mark.usefixtures("bwrap")
@pytest.mark.parametrize("end", ENDS)
async def test_a_sandbox_is_stopped_with_all_its_processes(tmp_path: Path, end: End) -> None:
    sandbox = {"writable": [str(tmp_path)]}
    servers = {
        how: marked(how, python_server("nosy.py", *child(tmp_path, how), sandbox=sandbox))
        for how in HOW
    }
    servers["orphan"]["limits"] = LIMITS
    async with running_trees(tmp_path, servers, dict.fromkeys(HOW, 4)) as (system, _, trees):
        await end(system, trees)
        await all_exited(trees)


async def test_a_stopped_worker_leaves_no_processes_and_no_cgroups(tmp_path: Path) -> None:
    async with running_trees(tmp_path, all_kinds(tmp_path), SIZES) as (system, _, trees):
        folders = [folder for pid in trees["limited"] for folder in cgroups(pid)]
        assert await system.workers["worker-1"].end() == 0
        await all_exited(trees)
    assert not any(folder.parent.exists() for folder in folders)


async def test_a_killed_worker_leaves_no_processes_and_no_cgroups(tmp_path: Path) -> None:
    async with running_trees(tmp_path, all_kinds(tmp_path), SIZES) as (system, _, trees):
        folders = [folder for pid in trees["limited"] for folder in cgroups(pid)]
        await kill_worker(system, trees)
        await all_exited(trees)
        await eventually(lambda: not any(folder.parent.exists() for folder in folders))


async def test_killed_servers_leave_no_process_and_no_zombie(tmp_path: Path) -> None:
    async with running_trees(tmp_path, all_kinds(tmp_path), SIZES) as (system, _, trees):
        worker = system.workers["worker-1"].process.pid
        await kill_servers(system, trees)
        await all_exited(trees)
        system.write({})
        await eventually(lambda: len(states(worker)) == 1)  # its reaper
        assert "Z" not in states(worker).values()


async def test_servers_inherit_only_the_three_standard_descriptors(tmp_path: Path) -> None:
    shared = {"transport": "stdio", "command": "sh", **SHARED}
    others = {f"o{i}": {**shared, "args": [str(SERVERS / "tiny.sh")]} for i in range(5)}
    nosy = {
        "plain": python_server("nosy.py", **SHARED),
        "limited": python_server("nosy.py", limits=LIMITS, **SHARED),
        "wrapped": wrapped(sys.executable, NOSY, **SHARED),
    }
    if shutil.which("bwrap") is not None:
        nosy["boxed"] = python_server("nosy.py", sandbox=True, limits=LIMITS, **SHARED)
    async with running(tmp_path, others) as (system, client):
        await system.start_worker("worker-2", "--log-file", str(tmp_path / "worker.log"))
        await system.workers.pop("worker-1").end()
        await eventually(
            lambda: answers(client, "o0:hello")
        )  # a stream with its sockets is open now
        prefixed = {
            name: {**entry, "transform": [{"prefix": f"{name}_"}]} for name, entry in nosy.items()
        }
        system.write({**others, **prefixed})
        for name in nosy:
            await eventually(functools.partial(answers, client, f"{name}:descriptors"))
            found = await client.call_tool(f"{name}:descriptors", {})
            assert json.loads(found.text) == [0, 1, 2], name
        below = descendants(system.workers["worker-2"].process.pid)
        reaper = next(pid for pid, line in below.items() if "reaper_main" in line)
        folder = Path(f"/proc/{reaper}/fd")  # it opens more while it searches for processes
        await eventually(lambda: {entry.name for entry in folder.iterdir()} == {"0", "1", "2"})


async def answers(client: AsyncClient, tool: str) -> bool:
    try:
        return not (await client.call_tool(tool, {})).is_error
    except LeasewayError:
        return False


def cgroups(pid: int) -> list[Path]:
    """Return the cgroups that were created for a process."""
    found = []
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        if "/leaseway-" in path:
            found += list(Path("/sys/fs/cgroup").glob(f"{names.split(',')[0] or '*'}{path}"))
    return found
