"""Spawned and supervised background work."""

from __future__ import annotations

import asyncio
import logging

import pytest
from tests.conftest import BOUND

from leaseway.data_plane import background as tasks
from leaseway.data_plane.background import Background
from leaseway.wire.timing.backoff import Backoff


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin again without a pause."""
    monkeypatch.setattr(tasks, "_RESTART", Backoff(0.0))


class Work:
    """Fails as it is told, run by run; then goes on until cancelled."""

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
        background = Background(group)
        background.supervise(work, "look around")
        await work.running.wait()
        background.cancel_all()
    assert work.runs == 3
    said = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.exc_info[0] for record in said if record.exc_info] == [RuntimeError, ValueError]
    assert "'look around' failed; it restarts in 0 s" in caplog.text


async def test_supervised_work_survives_a_cancellation_of_what_it_awaits() -> None:
    """So gRPC says of a stream that was cancelled on this side."""
    work = Work(asyncio.CancelledError())
    async with asyncio.timeout(BOUND), asyncio.TaskGroup() as group:
        background = Background(group)
        background.supervise(work, "stay joined")
        await work.running.wait()
        background.cancel_all()
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
