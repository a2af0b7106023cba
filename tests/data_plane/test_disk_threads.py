"""Threads for disks that may hang delay neither other work nor the exit."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
import threading
from functools import partial

import pytest
from tests.conftest import BOUND

from leaseway.data_plane.background import DiskThreads


@pytest.fixture(autouse=True)
def _brief_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leaseway.data_plane.background._THREAD_IDLE", 0.05)


def disk_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "disk"]


def fail() -> None:
    raise OSError(5, "Input/output error")


async def test_work_runs_in_another_thread_and_returns_its_result() -> None:
    disk = DiskThreads()
    async with asyncio.timeout(BOUND):
        assert await disk.run(threading.get_ident) != threading.get_ident()
        with pytest.raises(OSError, match="Input/output"):
            await disk.run(fail)
        assert await disk.run(divmod, 7, 2) == (3, 1)


async def test_work_sees_the_context_of_its_caller() -> None:
    name: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="nobody")
    name.set("a call")
    assert await asyncio.wait_for(DiskThreads().run(name.get), BOUND) == "a call"


async def test_there_are_no_more_threads_than_allowed_and_all_work_is_done() -> None:
    disk = DiskThreads(max_threads=3)
    before = len(disk_threads())
    at_once = threading.Barrier(3)
    counts: list[int] = []

    def count() -> None:
        at_once.wait(BOUND)  # three really run at once: each waits for the others
        counts.append(len(disk_threads()) - before)

    async with asyncio.timeout(BOUND):
        await asyncio.gather(*(disk.run(count) for _ in range(12)))
    assert len(counts) == 12
    assert max(counts) <= 3


async def test_idle_threads_end_and_new_ones_start_on_demand() -> None:
    disk = DiskThreads()
    async with asyncio.timeout(BOUND):
        thread = await disk.run(threading.current_thread)
        await asyncio.to_thread(thread.join, BOUND)
        assert not thread.is_alive()
        assert await disk.run(abs, -1) == 1


async def test_work_that_is_cancelled_while_it_waits_is_not_run() -> None:
    disk, go_on = DiskThreads(max_threads=1), threading.Event()
    begun: list[str] = []
    first = disk.submit(partial(go_on.wait, BOUND))
    second = disk.submit(partial(begun.append, "second"))
    second.cancel()
    go_on.set()
    async with asyncio.timeout(BOUND):
        await first
        await disk.run(begun.append, "third")
    assert begun == ["third"]


async def test_work_that_is_cancelled_while_it_runs_delays_no_other_work() -> None:
    disk, go_on = DiskThreads(), threading.Event()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(disk.run(go_on.wait, BOUND), 0.01)
    assert await asyncio.wait_for(disk.run(abs, -2), BOUND) == 2
    go_on.set()


HANGS = """
import asyncio, threading
from leaseway.data_plane.background import DiskThreads

async def main():
    hanging = DiskThreads().submit(threading.Event().wait)
    print(await DiskThreads().run(str, "answered"), hanging.done())

asyncio.run(main())
"""


def test_a_process_ends_although_its_disk_hangs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=BOUND, check=True
    )
    assert done.stdout == "answered False\n"
