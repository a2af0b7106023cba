"""Starts server processes in threads: executing a file on a disk that hangs blocks the caller.

The threads live as long as the worker, since the kernel kills a sandbox when the thread that
started it exits. One start runs at a time, because the tag of the process is set on the whole
worker during its start. A start that hangs keeps its thread; the next ones use another thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import resource
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from leaseway.data_plane.kinds.process.reaper_main import tags

SKIP_AFTER: Final = 1.0
"""Seconds that a start may take before the next one is started in another thread."""

SPAWN_TIMEOUT: Final = 10.0
"""Seconds that a start may take at all."""

MAX_HUNG: Final = 64
"""Starts that may hang at once; beyond that every start fails until one of them ends."""

_RTTIME: Final = getattr(resource, "RLIMIT_RTTIME", None)  # not on macOS

Popen = subprocess.Popen[bytes]


class SpawnHangsError(Exception):
    """A process was not started in time; if it starts later, it is killed at once."""


class Spawner:
    """Starts processes, one after the other. One per worker.

    After `skip_after` seconds, the next process is started in another thread.
    """

    def __init__(self, skip_after: float = SKIP_AFTER, timeout: float = SPAWN_TIMEOUT) -> None:
        self._skip_after = skip_after
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
        """Start a process, tagged with a mark that its children inherit; return it.

        Args:
            mark: From `Reaper.mark`.
            start: Starts the process, in a thread.
            undo: Called on the loop with a process that started after this call had failed.

        Raises:
            SpawnHangsError: The start takes too long, or too many other starts hang.
            OSError: The process cannot be started.
        """
        job = _Job(mark, start)
        self._add(job)
        try:
            while not job.future.done():
                await asyncio.wait([job.future], timeout=self._skip_after)
                if not job.future.done() and self._skip_hung(job):
                    raise SpawnHangsError
        except BaseException:
            self._abandon(job, undo)
            raise
        return job.future.result()

    def close(self) -> None:
        """Stop the threads; those that hang end with the worker."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _add(self, job: _Job) -> None:
        with self._changed:
            if self._hung >= MAX_HUNG:
                raise SpawnHangsError
            self._ensure_thread()
            self._jobs.append(job)

    def _ensure_thread(self) -> None:
        """Start a thread if all hang, and wake them.

        Raises:
            OSError: The system refuses another thread.
        """
        if self._threads == self._hung:
            try:
                threading.Thread(target=self._serve, name="spawn", daemon=True).start()
            except RuntimeError as error:
                raise OSError(errno.EAGAIN, str(error)) from None
            self._threads += 1
        self._changed.notify_all()

    def _skip_hung(self, job: _Job) -> bool:
        """Skip the current start if it hangs; return whether `job` has failed."""
        now = time.monotonic()
        with self._changed:
            current = self._current
            if current is not None and now - current.started_at >= self._skip_after:
                self._finish_current()
                current.is_hung = True
                self._hung += 1
                if self._hung < MAX_HUNG:
                    self._ensure_thread()
            too_many = self._hung >= MAX_HUNG and job in self._jobs
            return too_many or (job.started_at > 0 and now - job.started_at >= self._timeout)

    def _abandon(self, job: _Job, undo: Callable[[Popen], None]) -> None:
        with self._changed, contextlib.suppress(ValueError):
            self._jobs.remove(job)

        def on_done(future: asyncio.Future[Popen]) -> None:
            if not future.cancelled() and future.exception() is None:
                undo(future.result())

        job.future.add_done_callback(on_done)

    def _serve(self) -> None:
        while (job := self._next()) is not None:
            process: Popen | None = None
            try:
                process = job.start()
                outcome = partial(_succeed, job.future, process)
            except BaseException as error:  # noqa: BLE001 - raised in the coroutine that waits for it
                outcome = partial(_fail, job.future, error)
            with self._changed:
                if job.is_hung:
                    self._hung -= 1
                else:
                    self._finish_current()
                self._changed.notify_all()
            try:
                job.loop.call_soon_threadsafe(outcome)
            except RuntimeError:  # the loop is closed
                if process is not None:
                    process.kill()

    def _next(self) -> _Job | None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or (self._jobs and self._current is None))
            if self._closed:
                self._threads -= 1
                return None
            job = self._current = self._jobs.popleft()
            job.started_at = time.monotonic()
            self._limit = _set_tag(job.mark)
            return job

    def _finish_current(self) -> None:
        """Let the next start run, and remove the tag from the worker."""
        self._current = None
        if self._limit is not None and _RTTIME is not None:
            resource.setrlimit(_RTTIME, self._limit)
        self._limit = None


class _Job:
    """One start, and whether it was skipped. `started_at` is 0 before it runs."""

    def __init__(self, mark: str, start: Callable[[], Popen]) -> None:
        self.mark = mark
        self.start = start
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Popen] = self.loop.create_future()
        self.started_at = 0.0
        self.is_hung = False


def _succeed(future: asyncio.Future[Popen], process: Popen) -> None:
    future.set_result(process)


def _fail(future: asyncio.Future[Popen], error: BaseException) -> None:
    future.set_exception(error)
    future.exception()  # its caller may have been cancelled


def _set_tag(mark: str) -> tuple[int, int] | None:
    """Set the tag of a mark on this process: children inherit it with any environment.

    Returns the previous limit, or None if it was not changed.
    """
    found = tags(mark.encode())
    if _RTTIME is None or not found:
        return None
    soft, hard = resource.getrlimit(_RTTIME)
    if hard != resource.RLIM_INFINITY:  # the operator's own limit
        return None
    resource.setrlimit(_RTTIME, (found[0], hard))
    return soft, hard
