"""What happens to servers when their worker is killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conftest import BOUND

from leaseway.data_plane.mcp.process.reaper import MARK_VARIABLE, Reaper
from leaseway.data_plane.mcp.process.reaper_main import tags

SERVERS = Path(__file__).parents[3] / "servers"
pytestmark = pytest.mark.usefixtures("leak_guard")

WORKER = """
import asyncio, os, sys
from leaseway.data_plane.mcp.host import Host, http_client
from leaseway.data_plane.mcp.instance import Instance
from leaseway.data_plane.mcp.process.reaper import Reaper
from leaseway.spec.model import ServerSpec, VariantKey

class InstanceListener:
    on_closed = on_tools_changed = on_disconnected = on_warning = print
    on_warning_cleared = print

async def main():
    reaper = Reaper()
    spec = ServerSpec(VariantKey("x"), "stdio", command=sys.executable, args=tuple(sys.argv[1:]))
    host = Host(os.environ, reaper, http_client())
    instance = Instance(spec, host, InstanceListener(), instance_id="i")
    await instance.start()
    print(instance.pid, reaper.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def all_gone(*pids: int) -> None:
    async with asyncio.timeout(BOUND):
        while any(alive(pid) for pid in pids):
            await asyncio.sleep(0.005)


async def start_worker(*command: str) -> tuple[asyncio.subprocess.Process, int, int]:
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WORKER, *command, stdout=asyncio.subprocess.PIPE
    )
    assert worker.stdout is not None
    try:
        async with asyncio.timeout(BOUND):
            server, reaper = map(int, (await worker.stdout.readline()).split())
    except BaseException:
        worker.kill()
        raise
    return worker, server, reaper


@pytest.mark.parametrize("mode", ["child", "escaped_child", "bare_child"])
async def test_a_killed_worker_leaves_neither_server_nor_grandchild_nor_reaper(
    tmp_path: Path, mode: str
) -> None:
    pid_file = tmp_path / "pid"
    worker, server, reaper = await start_worker(str(SERVERS / "faulty.py"), mode, str(pid_file))
    child = int(pid_file.read_text())
    assert all(alive(pid) for pid in (server, reaper, child))
    worker.kill()
    await worker.wait()
    await all_gone(server, child, reaper)


@given(st.integers(1, 2**31), st.integers(1, 2**31), st.text("0123456789abcdef", min_size=32))
def test_a_tag_is_of_its_own_server_and_run_only(one: int, other: int, run: str) -> None:
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
    await all_gone(server, reaper)


@pytest.mark.parametrize("mode", ["stubborn", "bare_child"])
async def test_what_a_worker_leaves_that_was_killed_with_its_reaper_ends_with_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    pid_file = tmp_path / "pid"
    worker, server, reaper = await start_worker(str(SERVERS / "faulty.py"), mode, str(pid_file))
    left = server if mode == "stubborn" else int(pid_file.read_text())
    other, running, its_reaper = await start_worker(str(SERVERS / "faulty.py"), "stubborn")
    worker.send_signal(signal.SIGSTOP)  # it would start another reaper
    os.kill(reaper, signal.SIGKILL)
    worker.kill()
    await worker.wait()
    assert alive(left)
    third, _, third_reaper = await start_worker(str(SERVERS / "faulty.py"), "stubborn")
    await all_gone(left)
    assert alive(running)  # as everything is whose worker lives
    [folder] = tmp_path.glob("leaseway-runs-*")
    assert len(list(folder.iterdir())) == 2
    for each in (other, third):
        each.kill()
        await each.wait()
    await all_gone(running, its_reaper, third_reaper)


async def test_the_reaper_ignores_what_ends_a_worker() -> None:
    reaper = Reaper()
    try:
        await settled(reaper)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(reaper.pid, number)
        assert os.getsid(reaper.pid) == reaper.pid
        group = await sleeper(reaper)
        assert alive(group)
    finally:
        await reaper.close()
    await all_gone(group)


async def test_a_killed_reaper_is_replaced_and_knows_what_it_must() -> None:
    reaper = Reaper()
    first = reaper.pid
    group = await sleeper(reaper)
    os.kill(first, signal.SIGKILL)
    async with asyncio.timeout(BOUND):
        while reaper.pid == first:
            other = await sleeper(reaper)
            reaper.release(other, "no such mark")
            with contextlib.suppress(ProcessLookupError):  # the next one may have done it
                os.killpg(other, signal.SIGKILL)
    assert alive(group)
    await reaper.close()
    await all_gone(group)


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
