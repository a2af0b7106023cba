"""Starts servers' processes beside the loop: executing a file on a disk that hangs, hangs.

The threads live as long as the worker, since the kernel ends a sandbox with the thread that started
it. One start is under way at a time, because what marks a process is set for the whole worker while
it is started; one that hangs keeps its thread to itself, and the others go on in another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from leaseway.data_plane.mcp.process.reaper_main import tags

PATIENCE: Final = 1.0
"""Seconds that a start may take before the others go on without it."""

SPAWN_TIMEOUT: Final = 10.0
"""Seconds that a start may take at all."""

MOST_HUNG: Final = 64
"""Starts that may hang at once; beyond that nothing is started until one of them ends."""

_RTTIME: Final = getattr(resource, "RLIMIT_RTTIME", None)  # not on macOS

Popen = subprocess.Popen[bytes]


class SpawnHangsError(Exception):
    """A process was not started in time; if it ever is, it is ended at once."""


class Spawner:
    """Starts processes, one after the other. One a worker.

    Args:
        patience: Seconds for one start before the others go on without it.
        timeout: Seconds for one start.
    """

    def __init__(self, patience: float = PATIENCE, timeout: float = SPAWN_TIMEOUT) -> None:
        self._patience = patience
        self._timeout = timeout
        self._changed = threading.Condition()
        self._jobs: deque[_Job] = deque()
        self._current: _Job | None = None
        self._limit: tuple[int, int] | None = None
        self._threads = 0
        self._hung = 0
        self._closed = False

    async def start(
        self, mark: str, start: Callable[[], Popen], undo: Callable[[Popen], None]
    ) -> Popen:
        """Start a process with a mark that its children keep; return it.

        Args:
            mark: The mark, as `Reaper.mark` makes it.
            start: Starts it, in a thread.
            undo: Called on the loop with a process that was started after nobody wanted it.

        Raises:
            SpawnHangsError: It takes too long, or too many others do.
        """
        job = _Job(mark, start)
        self._add(job)
        try:
            while not job.future.done():
                await asyncio.wait([job.future], timeout=self._patience)
                if not job.future.done() and self._look_at(job):
                    raise SpawnHangsError
        except BaseException:
            self._give_up(job, undo)
            raise
        return job.future.result()

    def close(self) -> None:
        """Let the threads end; those that hang end with the worker."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _add(self, job: _Job) -> None:
        with self._changed:
            if self._hung >= MOST_HUNG:
                raise SpawnHangsError
            self._jobs.append(job)
            self._call_a_thread()

    def _call_a_thread(self) -> None:
        if self._threads == self._hung:
            self._threads += 1
            threading.Thread(target=self._serve, name="spawn", daemon=True).start()
        self._changed.notify_all()

    def _look_at(self, job: _Job) -> bool:
        """Go on without the start that hangs; say whether this job's has taken too long."""
        now = time.monotonic()
        with self._changed:
            current = self._current
            if current is not None and now - current.began >= self._patience:
                self._end_turn()
                current.hangs = True
                self._hung += 1
                if self._hung < MOST_HUNG:
                    self._call_a_thread()
            too_many = self._hung >= MOST_HUNG and job in self._jobs
            return too_many or (job.began > 0 and now - job.began >= self._timeout)

    def _give_up(self, job: _Job, undo: Callable[[Popen], None]) -> None:
        with self._changed, contextlib.suppress(ValueError):
            self._jobs.remove(job)

        def late(future: asyncio.Future[Popen]) -> None:
            if not future.cancelled() and future.exception() is None:
                undo(future.result())

        job.future.add_done_callback(late)

    def _serve(self) -> None:
        while (job := self._next()) is not None:
            process: Popen | None = None
            try:
                process = job.start()
                outcome = partial(_succeed, job.future, process)
            except BaseException as error:  # whoever waits for it is told
                outcome = partial(_fail, job.future, error)
            with self._changed:
                if job.hangs:
                    self._hung -= 1
                else:
                    self._end_turn()
                self._changed.notify_all()
            try:
                job.loop.call_soon_threadsafe(outcome)
            except RuntimeError:  # the loop is closed: nobody waits any more
                if process is not None:
                    process.kill()

    def _next(self) -> _Job | None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or (self._jobs and self._current is None))
            if self._closed:
                self._threads -= 1
                return None
            job = self._current = self._jobs.popleft()
            job.began = time.monotonic()
            self._limit = _tag(job.mark)
            return job

    def _end_turn(self) -> None:
        """Let the next start begin, and take the mark off the worker."""
        self._current = None
        if self._limit is not None and _RTTIME is not None:
            resource.setrlimit(_RTTIME, self._limit)
        self._limit = None


class _Job:
    """One start.

    Attributes:
        began: When a thread took it up; 0 before.
        hangs: Whether the others go on without it.
    """

    def __init__(self, mark: str, start: Callable[[], Popen]) -> None:
        self.mark = mark
        self.start = start
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Popen] = self.loop.create_future()
        self.began = 0.0
        self.hangs = False


def _succeed(future: asyncio.Future[Popen], process: Popen) -> None:
    future.set_result(process)


def _fail(future: asyncio.Future[Popen], error: BaseException) -> None:
    future.set_exception(error)
    future.exception()  # nobody may wait for it any more


def _tag(mark: str) -> tuple[int, int] | None:
    """Mark what is started from now on, also where it drops its environment.

    Returns what the limit was, where it was changed.
    """
    found = tags(mark.encode())
    if _RTTIME is None or not found:
        return None
    soft, hard = resource.getrlimit(_RTTIME)
    if hard != resource.RLIM_INFINITY:  # a limit that somebody means
        return None
    resource.setrlimit(_RTTIME, (found[0], hard))
    return soft, hard
