"""Background work: spawned and supervised tasks, and threads for disks that may hang."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial

import pytest
from tests.conftest import BOUND

from leaseway.data_plane.background import (
    Alarm,
    Background,
    FairThreads,
    LightEvent,
)
from leaseway.wire import daemon_threads
from leaseway.wire.daemon_threads import DaemonThreads
from leaseway.wire.timing import running_tasks
from leaseway.wire.timing.backoff import Backoff


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restart work at once, and end idle threads soon."""
    monkeypatch.setattr(running_tasks, "RESTART", Backoff(0.0))
    monkeypatch.setattr(daemon_threads, "_THREAD_IDLE", 0.05)


class Work:
    """Fails with each of the given errors, then runs until it is cancelled."""

    def __init__(self, *failures: BaseException) -> None:
        self.failures = list(failures)
        self.runs = 0
        self.running = asyncio.Event()

    async def __call__(self) -> None:
        self.runs += 1
        if self.failures:
            raise self.failures.pop(0)
        self.running.set()
        await asyncio.Event().wait()


async def test_supervised_work_that_fails_is_logged_and_restarted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    work = Work(RuntimeError("odd"), ValueError("odder"))
    async with asyncio.timeout(BOUND), asyncio.TaskGroup() as group:
        owner = Background(group)
        owner.supervise(work, "look around")
        await work.running.wait()
        owner.cancel_all()
    assert work.runs == 3
    said = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.exc_info[0] for record in said if record.exc_info] == [RuntimeError, ValueError]
    assert "'look around' failed; it restarts in 0 s" in caplog.text


async def test_supervised_work_survives_a_cancellation_of_what_it_awaits() -> None:
    """GRPC reports a stream that was cancelled on this side so."""
    work = Work(asyncio.CancelledError())
    async with asyncio.timeout(BOUND), asyncio.TaskGroup() as group:
        owner = Background(group)
        owner.supervise(work, "stay joined")
        await work.running.wait()
        owner.cancel_all()
    assert work.runs == 2


async def test_supervised_work_that_is_cancelled_ends() -> None:
    work = Work()
    async with asyncio.timeout(BOUND), asyncio.TaskGroup() as group:
        task = Background(group).supervise(work, "stay joined")
        await work.running.wait()
        task.cancel()
    assert task.cancelled()
    assert work.runs == 1


async def test_supervised_work_that_returns_ends() -> None:
    runs = []

    async def work() -> None:
        runs.append(1)

    async with asyncio.timeout(BOUND), asyncio.TaskGroup() as group:
        await Background(group).supervise(work, "look around")
    assert runs == [1]


async def test_spawned_work_that_fails_is_logged_and_ends(caplog: pytest.LogCaptureFixture) -> None:
    work = Work(RuntimeError("odd"))
    async with asyncio.timeout(BOUND), asyncio.TaskGroup() as group:
        await Background(group).spawn(work(), "close an instance")
    assert work.runs == 1
    assert "'close an instance' failed" in caplog.text


async def test_background_work_and_alarms_run_outside_the_context_of_who_needs_them() -> None:
    trace: contextvars.ContextVar[str] = contextvars.ContextVar("trace", default="none")
    seen = []
    rung = asyncio.Event()

    async def work() -> None:
        seen.append(trace.get())

    def ring() -> None:
        seen.append(trace.get())
        rung.set()

    trace.set("a reload")
    async with asyncio.timeout(BOUND), asyncio.TaskGroup() as group:
        await Background(group).spawn(work(), "start an instance")
        Alarm(ring).set(0.0)
        await rung.wait()
    assert seen == ["none", "none"]


def disk_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "disk"]


def fail() -> None:
    raise OSError(5, "Input/output error")


async def test_work_runs_in_another_thread_and_returns_its_result() -> None:
    disk = DaemonThreads()
    async with asyncio.timeout(BOUND):
        assert await disk.run(threading.get_ident) != threading.get_ident()
        with pytest.raises(OSError, match="Input/output"):
            await disk.run(fail)
        assert await disk.run(divmod, 7, 2) == (3, 1)


async def test_work_sees_the_context_of_its_caller() -> None:
    name: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="none")
    name.set("a call")
    assert await asyncio.wait_for(DaemonThreads().run(name.get), BOUND) == "a call"


async def test_there_are_no_more_threads_than_allowed_and_all_work_is_done() -> None:
    disk = DaemonThreads(max_threads=3)
    before = len(disk_threads())
    at_once = threading.Barrier(3)
    counts: list[int] = []

    def count() -> None:
        at_once.wait(BOUND)  # three run at once: each waits for the others
        counts.append(len(disk_threads()) - before)

    async with asyncio.timeout(BOUND):
        await asyncio.gather(*(disk.run(count) for _ in range(12)))
    assert len(counts) == 12
    assert max(counts) <= 3


async def test_idle_threads_end_and_new_ones_start_on_demand() -> None:
    disk = DaemonThreads()
    async with asyncio.timeout(BOUND):
        thread = await disk.run(threading.current_thread)
        await asyncio.to_thread(thread.join, BOUND)
        assert not thread.is_alive()
        assert await disk.run(abs, -1) == 1


async def test_work_that_is_cancelled_while_it_waits_is_not_run() -> None:
    disk, release = DaemonThreads(max_threads=1), threading.Event()
    ran: list[str] = []
    first = disk.submit(partial(release.wait, BOUND))
    second = disk.submit(partial(ran.append, "second"))
    second.cancel()
    release.set()
    async with asyncio.timeout(BOUND):
        await first
        await disk.run(ran.append, "third")
    assert ran == ["third"]


async def test_work_that_is_cancelled_while_it_runs_delays_no_other_work() -> None:
    disk, release = DaemonThreads(), threading.Event()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(disk.run(release.wait, BOUND), 0.01)
    assert await asyncio.wait_for(disk.run(abs, -2), BOUND) == 2
    release.set()


@contextlib.contextmanager
def no_more_threads() -> Iterator[None]:
    """Let no thread start, as at the limit of a user's or a container's processes."""

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        yield


async def test_threads_that_the_system_refused_start_later() -> None:
    disk, fair = DaemonThreads(max_threads=1), FairThreads(1)
    async with asyncio.timeout(BOUND):
        with no_more_threads():
            for _ in range(2):
                with pytest.raises(RuntimeError, match="new thread"):
                    await disk.run(abs, -1)
                with pytest.raises(RuntimeError, match="new thread"):
                    await fair.run("a", partial(abs, -1))
        assert await disk.run(abs, -2) == 2
        assert await fair.run("a", partial(abs, -2)) == 2


async def test_work_for_which_no_thread_starts_waits_for_those_that_run() -> None:
    disk, release = DaemonThreads(max_threads=2), threading.Event()
    first = disk.submit(partial(release.wait, BOUND))
    with no_more_threads():
        second = disk.submit(partial(abs, -2))
    release.set()
    async with asyncio.timeout(BOUND):
        assert (await first, await second) == (True, 2)


HANGS = """
import asyncio, threading
from leaseway.wire.daemon_threads import DaemonThreads

async def main():
    hanging = DaemonThreads().submit(threading.Event().wait)
    print(await DaemonThreads().run(str, "answered"), hanging.done())

asyncio.run(main())
"""


def test_a_process_ends_although_its_disk_hangs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=BOUND, check=True
    )
    assert done.stdout == "answered False\n"


async def test_a_light_event_wakes_all_who_wait_and_lets_who_comes_later_pass() -> None:
    event = LightEvent()
    waiters = [asyncio.ensure_future(event.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    waiters[1].cancel()
    await asyncio.wait(waiters[1:2])
    assert not event.is_set
    assert not waiters[0].done()
    event.set()
    event.clear()
    await asyncio.wait_for(asyncio.gather(waiters[0], waiters[2]), BOUND)
    later = asyncio.ensure_future(event.wait())
    await asyncio.sleep(0)
    event.set()
    await asyncio.wait_for(later, BOUND)
    await asyncio.wait_for(event.wait(), BOUND)
