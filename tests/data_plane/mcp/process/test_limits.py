"""Limits are enforced by cgroups if this machine's are writable, else by setrlimit."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import BOUND
from tests.data_plane.mcp.conftest import Bench, is_alive
from tests.specs import part

from leaseway.data_plane.kinds.process import launch
from leaseway.data_plane.kinds.process.cgroups import CONTROLLERS, Cgroups, find_hierarchies
from leaseway.data_plane.kinds.process.limits import KernelLimits, plan_limits
from leaseway.spec.kinds.confinement import Limits
from leaseway.spec.kinds.table import server_spec
from leaseway.spec.model import VariantKey
from leaseway.spec.references import Value
from leaseway.wire.bounds import MIB

pytestmark = pytest.mark.usefixtures("leak_guard")
EVERYTHING = Limits(memory_bytes=64 * MIB, cpu_cores=0.5, open_files=64, processes=16)
ROOT = KernelLimits(bounds_data=True, bounds_tasks=False)
USER = KernelLimits(bounds_data=True, bounds_tasks=True)


def limits_of_cgroups() -> set[str]:
    """Return the limits that cgroups enforce on this machine."""
    cgroups = Cgroups(lambda _folder: None)
    group = cgroups.create(EVERYTHING)
    folders = {folder.parent for folder in group.folders.values()}
    group.remove_nowait()
    for folder in folders:
        folder.rmdir()
    cgroups.close()
    return CONTROLLERS.keys() - group.missing.keys()


ENFORCED = limits_of_cgroups()


def needs(key: str) -> pytest.MarkDecorator:
    reason = f"No cgroup can limit {key} here: its hierarchy is missing or read-only."
    return pytest.mark.skipif(key not in ENFORCED, reason=reason)


@pytest.fixture
def no_cgroups(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bench: Bench) -> Bench:
    """Return a bench on a machine without cgroups."""
    monkeypatch.setattr(bench.reaper.cgroups, "_proc", tmp_path / "none")
    return bench


async def ask(bench: Bench, limits: Limits, tool: str, **arguments: Any) -> Any:
    instance = await bench.start(bench.stdio("nosy", limits=limits))
    try:
        return json.loads(await bench.text(instance, tool, arguments))
    finally:
        await instance.close()


async def test_a_server_without_limits_is_started_as_configured(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("nosy"))
    assert bench.reaper.cgroups._folders == {}
    assert instance.warnings == ()
    assert Path(f"/proc/{instance.pid}/exe").resolve() == Path(sys.executable).resolve()


async def test_open_files_are_bounded_for_the_server_and_its_children(bench: Bench) -> None:
    limits = Limits(open_files=48)
    assert (await ask(bench, limits, "limits"))["open_files"] == [48, 48]
    assert await ask(bench, limits, "open_files", count=60) == "OSError"
    instance = await bench.start(bench.stdio("nosy", limits=limits))
    (child,) = json.loads(await bench.text(instance, "spawn", {"how": "orphan"}))
    assert "Max open files            48                   48" in proc(child, "limits")


@needs("memory")
async def test_a_server_that_uses_up_its_memory_is_killed_and_the_error_says_so(
    bench: Bench,
) -> None:
    spec = bench.stdio("nosy", limits=Limits(memory_bytes=64 * MIB))
    instance = await bench.start(spec)
    assert await bench.text(instance, "allocate", {"mib": 8}) == "8"
    fault = await bench.call_fault(instance, "allocate", {"mib": 300})
    assert "limits.memory is 64 MiB" in fault.message
    assert fault.metadata["exit_status"] == "-9"


@needs("memory")
async def test_memory_is_bounded_for_the_whole_tree(bench: Bench) -> None:
    limits = Limits(memory_bytes=48 * MIB)
    instance = await bench.start(bench.stdio("nosy", limits=limits))
    (child,) = json.loads(await bench.text(instance, "spawn", {"how": "orphan"}))
    mine = [line for line in proc(instance.pid or 0, "cgroup").splitlines() if "leaseway-" in line]
    assert mine
    assert set(mine) <= set(proc(child, "cgroup").splitlines())


@needs("processes")
async def test_processes_are_bounded(bench: Bench) -> None:
    limits = Limits(processes=8)
    assert len(await ask(bench, limits, "spawn", how="plain", count=5)) == 5
    assert await ask(bench, limits, "spawn", how="plain", count=10) == "BlockingIOError"


@needs("cpu")
async def test_processor_time_is_bounded(bench: Bench) -> None:
    share = await ask(bench, Limits(cpu_cores=0.2), "burn", seconds=1.0)
    assert 0 < share < 0.45  # a busy machine may give it less


@pytest.mark.skipif(set(CONTROLLERS) != ENFORCED, reason="Cgroups do not enforce every limit here.")
async def test_no_warning_if_every_limit_is_enforced(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("nosy", limits=EVERYTHING))
    assert instance.warnings == ()


@needs("memory")
async def test_cgroups_are_removed_after_close_and_after_a_kill(bench: Bench) -> None:
    spec = bench.stdio("nosy", limits=EVERYTHING)
    closed, killed = [await bench.start(spec) for _ in range(2)]
    folders = [folder for cgroup in (closed, killed) for folder in cgroup_folders(cgroup.pid or 0)]
    assert folders
    await bench.text(killed, "spawn", {"how": "orphan", "count": 3})
    await closed.close()
    os.kill(killed.pid or 0, signal.SIGKILL)
    async with asyncio.timeout(BOUND):
        await bench.closed.get()
        await bench.closed.get()
    assert not any(folder.exists() for folder in folders)


@needs("memory")
async def test_a_start_that_fails_leaves_no_cgroup(bench: Bench, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("no program\n")
    script.chmod(0o755)
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    for command in (script, tmp_path / "broken", tmp_path / "absent"):
        spec = server_spec(VariantKey("x"), "stdio", command=str(command), limits=EVERYTHING)
        await bench.fails(spec)
    await asyncio.gather(*(instance.close() for instance in bench.instances))
    for folder in bench.reaper.cgroups._folders.values():
        assert not [child for child in folder.iterdir() if child.is_dir()]


@needs("memory")
async def test_a_process_without_the_mark_and_the_group_is_killed_by_its_cgroup(
    bench: Bench,
) -> None:
    script = 'env -i setsid sleep 600 & exec "$0" "$@"'
    spec = bench.stdio("nosy", limits=Limits(processes=32))
    spec = server_spec(
        VariantKey("x"),
        "stdio",
        command="sh",
        args=("-c", script, part(spec).command, *part(spec).args),
        limits=part(spec).limits,
    )
    instance = await bench.start(spec)
    (folder,) = cgroup_folders(instance.pid or 0)
    inside = [int(line) for line in (folder / "cgroup.procs").read_text().split()]
    assert len(inside) == 2
    await instance.close()
    assert not any(is_alive(pid) for pid in inside)


async def test_the_environment_is_passed_unchanged_and_in_no_command_line(bench: Bench) -> None:
    env = {"odd.name": Value("literal", "1"), "API_TOKEN": Value("literal", "very-secret")}
    base = {"PATH": os.environ["PATH"], "LANG": "C"}
    plain = await bench.start(bench.stdio("echo_raw", env=env), base)
    limited = await bench.start(bench.stdio("echo_raw", env=env, limits=EVERYTHING), base)
    found = [json.loads(await bench.text(cgroup, "env")) for cgroup in (plain, limited)]
    for cgroup in found:
        cgroup.pop("_LEASEWAY_MARK")
    assert found[0] == found[1]
    assert found[1]["odd.name"] == "1"
    assert not [line for line in command_lines() if "very-secret" in line]


async def test_a_limited_server_has_three_descriptors_and_the_usual_signals(
    bench: Bench,
) -> None:
    plain = await bench.start(bench.stdio("nosy"))
    limited = await bench.start(bench.stdio("nosy", limits=EVERYTHING))
    assert await bench.text(limited, "descriptors") == "[0, 1, 2]"
    assert proc(limited.pid or 0, "cmdline") == proc(plain.pid or 0, "cmdline")
    signals = [line for line in proc(plain.pid or 0, "status").splitlines() if "SigIgn" in line]
    assert signals[0] in proc(limited.pid or 0, "status")


async def test_a_missing_command_of_a_limited_server_is_named(bench: Bench) -> None:
    spec = server_spec(VariantKey("x"), "stdio", command="no-such-command", limits=EVERYTHING)
    fault = await bench.fails(spec)
    assert fault.metadata["problem"] == "COMMAND_NOT_FOUND"
    assert "no-such-command" in fault.message


async def test_without_cgroups_memory_is_bounded_for_each_process(no_cgroups: Bench) -> None:
    limits = Limits(memory_bytes=128 * MIB)
    instance = await no_cgroups.start(no_cgroups.stdio("nosy", limits=limits))
    assert await no_cgroups.text(instance, "allocate", {"mib": 300}) == '"MemoryError"'
    ((reason, text),) = instance.warnings
    assert reason == "LIMIT_PARTLY_ENFORCED"
    assert text.startswith("limits.memory (128 MiB) applies to each process alone")


async def test_without_cgroups_the_server_starts_with_warnings(
    no_cgroups: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "kernel_limits", lambda: ROOT)
    limits = Limits(cpu_cores=1.5, processes=16)
    instance = await no_cgroups.start(no_cgroups.stdio("nosy", limits=limits))
    assert instance.state == "ready"
    ((reason, text),) = instance.warnings
    assert reason == "LIMIT_NOT_ENFORCED"
    assert text == (
        "limits.cpu (1.5) is not enforced: the worker has no cgroup controller 'cpu';"
        " limits.processes (16) is not enforced: the worker has no cgroup controller 'pids'."
        " Give the worker a writable cgroup (systemd: Delegate=yes; a container: a writable"
        " /sys/fs/cgroup), or remove the limit."
    )


async def test_a_limit_that_fails_in_the_process_fails_the_start(bench: Bench) -> None:
    cgroups = bench.reaper.cgroups
    real = cgroups.create

    def vanishing(limits: Limits) -> Any:
        group = real(limits)
        group.remove_nowait()
        return group

    if "memory" not in ENFORCED:
        pytest.skip("No cgroup can be written here.")
    cgroups.create = vanishing  # type: ignore[method-assign]
    fault = await bench.fails(bench.stdio("nosy", limits=EVERYTHING))
    assert fault.metadata["exit_status"] == "125"
    assert "could not apply the limit join=" in fault.message


def test_an_unprivileged_users_processes_are_limited_by_setrlimit() -> None:
    plan = plan_limits(EVERYTHING, [], {"processes": "no"}, USER)
    assert plan.steps == ("nproc=16", "nofile=64")
    assert [reason for reason, _ in plan.warnings] == ["LIMIT_PARTLY_ENFORCED"]


def test_cgroups_are_joined_first(tmp_path: Path) -> None:
    plan = plan_limits(EVERYTHING, [tmp_path], {"memory": "no", "cpu": "no"}, USER)
    assert plan.steps == (f"join={tmp_path}", f"data={64 * MIB}", "nofile=64")
    assert [reason for reason, _ in plan.warnings] == [
        "LIMIT_PARTLY_ENFORCED",
        "LIMIT_NOT_ENFORCED",
    ]


def proc(pid: int, name: str) -> str:
    return Path(f"/proc/{pid}/{name}").read_text()


def cgroup_folders(pid: int) -> list[Path]:
    """Return the leaseway cgroups of a process."""
    found = find_hierarchies(Path(f"/proc/{pid}"))
    return [cgroup.path for cgroup in found if "leaseway-" in str(cgroup.path)]


def command_lines() -> Iterator[str]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                yield (entry / "cmdline").read_text()
            except OSError:
                continue
