"""`cwd: private` and the names of a lease: what processes get, and what is left of it."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import BOUND
from tests.data_plane.mcp.conftest import SERVERS, until
from tests.e2e.forking import ForkedProcess, fork_python

from leaseway.data_plane.kinds.process.reaper_main import remove_tree
from leaseway.spec.kinds.confinement import Sandbox
from leaseway.spec.kinds.table import server_spec
from leaseway.spec.lease_names import LeaseNames
from leaseway.spec.references import Value

pytestmark = pytest.mark.usefixtures("leak_guard")
Bench = Any

WORKER = """
import asyncio, os, sys
from leaseway.data_plane.core.ports import ANY_INSTANCE
from leaseway.data_plane.kinds.http_api.rendering import Renderers
from leaseway.data_plane.kinds.openers import Opener, built_in_kinds
from leaseway.data_plane.mcp.host import Host, http_client
from leaseway.data_plane.kinds.process.reaper import Reaper
from leaseway.spec.kinds.table import server_spec
from leaseway.spec.model import VariantKey

class InstanceListener:
    on_closed = on_tools_changed = on_disconnected = on_warning = print
    on_warning_cleared = on_notification = find_caller = print

async def main():
    reaper = Reaper()
    args = tuple(sys.argv[1:])
    key = VariantKey("x")
    spec = server_spec(key, "stdio", command=sys.executable, args=args, cwd="private")
    host = Host(environment=os.environ, http=http_client())
    kinds = built_in_kinds(reaper, Renderers())
    instance = Opener("w", host, kinds)(spec, InstanceListener(), ANY_INSTANCE)
    await instance.start()
    print(os.readlink(f"/proc/{instance.pid}/cwd"), reaper.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def cwd_of(pid: int | None) -> Path:
    return Path(f"/proc/{pid}/cwd").readlink()


async def started_worker() -> tuple[ForkedProcess, Path, int]:
    worker = await fork_python("-c", WORKER, str(SERVERS / "counter.py"))
    try:
        async with asyncio.timeout(2 * BOUND):  # it starts two programs
            folder, reaper = (await worker.stdout.readline()).decode().split()
    except BaseException:
        worker.kill()
        raise
    return worker, Path(folder), int(reaper)


async def test_each_instance_gets_an_empty_folder_which_ends_with_it(bench: Bench) -> None:
    spec = bench.stdio("counter", cwd="private")
    one, two = await bench.start(spec), await bench.start(spec)
    folders = [cwd_of(one.pid), cwd_of(two.pid)]
    assert folders[0] != folders[1]
    for folder in folders:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert not list(folder.iterdir())
    (folders[0] / "kept" / "deep").mkdir(parents=True)
    (folders[0] / "kept" / "link").symlink_to(Path.home())
    (folders[0] / "kept").chmod(0o500)
    await one.close()
    assert not folders[0].exists()
    assert folders[1].exists()
    assert Path.home().exists()
    assert one.resolved_values.cwd == "private"  # not part of the values that are compared


async def test_a_start_that_fails_leaves_no_folder(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = bench.stdio("counter", cwd="private")
    running = await bench.start(spec)
    base = cwd_of(running.pid).parent
    await bench.fails(bench.stdio("missing", cwd="private"))
    await until(lambda: len(list(base.iterdir())) == 1)


async def test_the_folder_of_a_killed_worker_is_removed_by_its_reaper() -> None:
    worker, folder, _ = await started_worker()
    (folder / "state").write_text("x")
    worker.kill()
    await worker.wait()
    await until(lambda: not folder.parent.exists())


async def test_the_folder_of_a_worker_killed_with_its_reaper_is_removed_by_the_next_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    worker, folder, reaper = await started_worker()
    worker.send_signal(19)  # SIGSTOP: it would restart its reaper
    os.kill(reaper, 9)
    worker.kill()
    await worker.wait()
    assert folder.exists()
    other, other_folder, _ = await started_worker()
    await until(lambda: not folder.parent.exists())
    assert other_folder.exists()
    other.kill()
    await other.wait()
    await until(lambda: not other_folder.parent.exists())


async def test_a_folder_that_other_users_can_read_is_refused(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = bench.reaper.folders._base
    base.parent.mkdir(mode=0o700, exist_ok=True)
    base.mkdir(mode=0o755)
    base.chmod(0o755)
    fault = await bench.fails(bench.stdio("counter", cwd="private"))
    assert "its folder can't be created on this worker" in fault.message
    base.rmdir()


@pytest.mark.usefixtures("bwrap")
async def test_a_sandboxed_server_may_write_to_its_private_folder(bench: Bench) -> None:
    script = "open('here', 'w').close(); import runpy; runpy.run_path(%r)"
    spec = bench.stdio("counter", cwd="private", sandbox=Sandbox(True))
    code = script % str(SERVERS / "counter.py")
    instance = await bench.start(
        server_spec(
            spec.key,
            "stdio",
            command=sys.executable,
            args=("-c", code, str(SERVERS / "counter.py")),
            cwd="private",
            sandbox=Sandbox(True),
        )
    )
    assert await bench.text(instance, "next") == "1"


async def test_args_env_and_cwd_hold_the_names_of_the_lease(bench: Bench, tmp_path: Path) -> None:
    names = LeaseNames.of("acme", "../dialog 42")
    spec = bench.stdio(
        "nosy",
        "--dir=/x/${lease}",
        env={"STATE": Value("literal", "/data/${tenant}/${session}.json")},
        cwd=f"{tmp_path}/${{tenant}}/${{session}}",
    )
    instance = await bench.start(spec, names=names)
    folder = cwd_of(instance.pid)
    assert folder == tmp_path / "acme" / names.session
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    arguments = Path(f"/proc/{instance.pid}/cmdline").read_bytes().decode().split("\0")
    assert f"--dir=/x/{names.lease}" in arguments
    state = Path(f"/proc/{instance.pid}/environ").read_bytes().decode().split("\0")
    assert f"STATE=/data/acme/{names.session}.json" in state
    other = await bench.start(spec, resolved_values=instance.resolved_values)
    assert cwd_of(other.pid) != folder
    await instance.close()
    assert folder.exists()  # a session's folder outlives its lease


async def test_a_folder_of_leases_must_exist_itself(bench: Bench, tmp_path: Path) -> None:
    spec = bench.stdio("counter", cwd=f"{tmp_path}/missing/${{session}}")
    fault = await bench.fails(spec)
    assert "its folder can't be created on this worker" in fault.message


def test_a_tree_is_removed_whatever_its_modes_and_without_following_links(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o755)
    (outside / "file").write_text("x")
    tree = tmp_path / "tree"
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "a" / "link").symlink_to(outside)
    (tree / "a" / "b" / "file").write_text("x")
    (tree / "a" / "b").chmod(0)
    (tree / "a").chmod(0o500)
    assert remove_tree(tree)
    assert not tree.exists()
    assert (outside / "file").exists()
    assert stat.S_IMODE(outside.stat().st_mode) == 0o755
