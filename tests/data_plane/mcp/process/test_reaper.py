"""Servers of a killed worker are killed by its reaper, or by the next worker."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conftest import BOUND, descendants
from tests.data_plane.mcp.conftest import SERVERS, is_alive, until, until_exited
from tests.e2e.forking import ForkedProcess, fork_python

from leaseway.data_plane.kinds.process.reaper import MARK_VARIABLE, Reaper
from leaseway.data_plane.kinds.process.reaper_main import tags

pytestmark = pytest.mark.usefixtures("leak_guard")

WORKER = """
import asyncio, os, sys
from leaseway.data_plane.core.ports import ANY_INSTANCE
from leaseway.data_plane.kinds.http_api.rendering import Renderers
from leaseway.data_plane.kinds.openers import Opener, built_in_kinds
from leaseway.data_plane.mcp.host import Host, http_client
from leaseway.data_plane.kinds.process.reaper import Reaper
from leaseway.spec.kinds.table import server_spec
from leaseway.spec.model import ServerSpec, VariantKey

class InstanceListener:
    on_closed = on_tools_changed = on_disconnected = on_warning = print
    on_warning_cleared = on_notification = find_caller = print

async def main():
    reaper = Reaper()
    spec = server_spec(VariantKey("x"), "stdio", command=sys.executable, args=tuple(sys.argv[1:]))
    host = Host(environment=os.environ, http=http_client())
    kinds = built_in_kinds(reaper, Renderers())
    instance = Opener("w", host, kinds)(spec, InstanceListener(), ANY_INSTANCE)
    await instance.start()
    print(instance.pid, reaper.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def start_worker(*command: str) -> tuple[ForkedProcess, int, int]:
    worker = await fork_python("-c", WORKER, *command)
    try:
        async with asyncio.timeout(2 * BOUND):  # it starts two programs
            server, reaper = map(int, (await worker.stdout.readline()).split())
    except BaseException:
        worker.kill()
        raise
    return worker, server, reaper


@pytest.mark.parametrize("mode", ["child", "escaped_child", "bare_child"])
async def test_after_a_worker_is_killed_its_server_grandchild_and_reaper_exit(
    tmp_path: Path, mode: str
) -> None:
    pid_file = tmp_path / "pid"
    worker, server, reaper = await start_worker(str(SERVERS / "faulty.py"), mode, str(pid_file))
    child = int(pid_file.read_text())
    assert all(is_alive(pid) for pid in (server, reaper, child))
    worker.kill()
    await worker.wait()
    await until_exited(server, child, reaper)


@given(st.integers(1, 2**31), st.integers(1, 2**31), st.text("0123456789abcdef", min_size=32))
def test_a_tag_belongs_to_one_server_of_one_run(one: int, other: int, run: str) -> None:
    whole = tags(f"{run}.".encode())
    [tag] = tags(f"{run}.{one}.".encode())
    assert tag in whole
    assert (tag in tags(f"{run}.{other}.".encode())) == (one == other)
    assert tag < 2**63
    another = f"{(int(run[:7], 16) + 1) % 2**28:07x}{run[7:]}"
    assert tag not in tags(f"{another}.".encode())
    assert not tags(b"no such mark")


async def test_a_stubborn_server_does_not_survive_a_killed_worker() -> None:
    worker, server, reaper = await start_worker(str(SERVERS / "faulty.py"), "stubborn")
    worker.kill()
    await worker.wait()
    await until_exited(server, reaper)


@pytest.mark.parametrize("mode", ["stubborn", "bare_child"])
async def test_servers_of_a_worker_killed_with_its_reaper_are_killed_by_the_next_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    pid_file = tmp_path / "pid"
    worker, server, reaper = await start_worker(str(SERVERS / "faulty.py"), mode, str(pid_file))
    orphan = server if mode == "stubborn" else int(pid_file.read_text())
    other, running, its_reaper = await start_worker(str(SERVERS / "faulty.py"), "stubborn")
    worker.send_signal(signal.SIGSTOP)  # it would restart its reaper
    os.kill(reaper, signal.SIGKILL)
    worker.kill()
    await worker.wait()
    assert is_alive(orphan)
    third, _, third_reaper = await start_worker(str(SERVERS / "faulty.py"), "stubborn")
    await until_exited(orphan)
    assert is_alive(running)  # its worker is alive
    [folder] = tmp_path.glob("leaseway-runs-*")
    assert len(list(folder.iterdir())) == 2
    for process in (other, third):
        process.kill()
        await process.wait()
    await until_exited(running, its_reaper, third_reaper)


async def test_the_reaper_ignores_signals_that_stop_a_worker() -> None:
    reaper = Reaper()
    try:
        await settled(reaper)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(reaper.pid, number)
        assert os.getsid(reaper.pid) == reaper.pid
        group = await sleeper(reaper)
        assert is_alive(group)
    finally:
        await reaper.close()
    await until_exited(group)


async def test_a_killed_reaper_is_replaced_and_keeps_its_registrations() -> None:
    reaper = Reaper()
    first = reaper.pid
    group = await sleeper(reaper)
    os.kill(first, signal.SIGKILL)
    await until(lambda: reaper.pid != first)
    second = reaper.pid
    assert second in descendants(os.getpid())
    assert is_alive(group)
    await reaper.close()
    await until_exited(group)
    assert second not in descendants(os.getpid())


async def settled(reaper: Reaper) -> None:
    """Wait until the reaper process has set its signals."""
    async with asyncio.timeout(BOUND):
        while True:
            status = Path(f"/proc/{reaper.pid}/status").read_text()
            ignored = next(line for line in status.splitlines() if line.startswith("SigIgn"))
            if int(ignored.split()[1], 16) & (1 << (signal.SIGTERM - 1)):
                return
            await asyncio.sleep(0.005)


async def sleeper(reaper: Reaper) -> int:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "import time; time.sleep(600)",
        start_new_session=True,
        env={MARK_VARIABLE: reaper.mark()},
    )
    reaper.register(process.pid)
    return process.pid
