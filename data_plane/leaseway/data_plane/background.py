"""Background tasks of a worker: owned by one group, loud when they fail.

What ends by itself is spawned; what must go on for as long as the worker does is kept.

Threads for work on a disk that may hang.

The loop's own threads are few and shared by all that may block, and a process waits for them when
it ends. What waits for a disk that does not answer must hold up neither, so it has threads of its
own, which end with the process whatever they are at.

One timer that is set anew again and again.

Letting an ending reach its end.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

from leaseway.wire.timing.backoff import Backoff


class Alarm:
    """Rings at the time set last.

    Args:
        ring: What is called; it may set the alarm anew.
    """

    def __init__(self, ring: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._ring = ring
        self._handle: asyncio.TimerHandle | None = None

    def set(self, at: float) -> None:
        """Ring at a time of the loop's clock, and at no time set before; infinite is never."""
        self.clear()
        if at < math.inf:
            self._handle = self._loop.call_at(at, self._ring)

    def clear(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


_logger = logging.getLogger(__name__)
_AGAIN: Final = Backoff(0.2, 30.0)
_STEADY: Final = 60.0
"""Seconds after which work that fails has no failures behind it."""


class Background:
    """Starts tasks in one task group; what a task fails with is logged and ends only that task.

    Args:
        group: Owns the tasks.
    """

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._group = group
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run some work; its name appears in the log where it fails."""
        task = self._group.create_task(self._guarded(work, name), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # What was cancelled before its first step has not begun the work, which says so otherwise.
        task.add_done_callback(lambda _task: work.close())
        return task

    def supervise(
        self, work: Callable[[], Coroutine[Any, Any, None]], name: str
    ) -> asyncio.Task[None]:
        """Run some work until it returns; where it fails, it is logged and begun again.

        Args:
            work: Begins it; called again after each failure, later and later (30 s at most).
            name: Appears in the log.
        """
        return self.spawn(self._again_and_again(work, name), name)

    def cancel_all(self) -> None:
        """Cancel what still runs."""
        for task in tuple(self._tasks):
            task.cancel()

    async def _again_and_again(
        self, work: Callable[[], Coroutine[Any, Any, None]], name: str
    ) -> None:
        clock = asyncio.get_running_loop().time
        failures = 0
        while True:
            began = clock()
            try:
                return await work()
            except (Exception, asyncio.CancelledError) as error:
                if _is_cancelled():
                    raise
                failures = failures if clock() - began < _STEADY else 0
                delay = _AGAIN.ceiling(failures)
                failures += 1
                _logger.error(
                    "The background work '%s' failed; it begins again in %g s, and the rest of "
                    "the worker goes on.",
                    name,
                    delay,
                    exc_info=error,
                )
            await asyncio.sleep(delay)

    async def _guarded(self, work: Coroutine[Any, Any, None], name: str) -> None:
        try:
            await work
        except Exception:
            _logger.exception(
                "The background work '%s' failed; the rest of the worker goes on.", name
            )


def _is_cancelled() -> bool:
    """Return whether somebody cancels this task, and not only what it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def shielded(task: asyncio.Task[None]) -> None:
    """Wait for a bounded task however often the waiter is cancelled; then be cancelled."""
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError
    if not task.cancelled():
        task.result()


_T = TypeVar("_T")
_IDLE: Final = 1.0
"""Seconds that a thread waits for more work before it ends."""


class DiskThreads:
    """Runs blocking work in threads that begin when there is some and end when there is none.

    How much work may wait is for those to bound who bring it.

    Args:
        max_threads: How many threads there may be.
    """

    def __init__(self, max_threads: int = 8) -> None:
        self._max_threads = max_threads
        self._jobs: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._running = 0
        self._idle = 0

    def start(self, work: Callable[[], _T]) -> asyncio.Future[_T]:
        """Run some work; return its outcome. What is cancelled before its turn is not begun."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_T] = loop.create_future()
        job = partial(_run, loop, future, partial(contextvars.copy_context().run, work))
        with self._changed:
            self._jobs.append(job)
            if len(self._jobs) <= self._idle:
                self._changed.notify()
            elif self._running < self._max_threads:
                self._running += 1
                threading.Thread(target=self._serve, name="disk", daemon=True).start()
        return future

    async def run(self, work: Callable[..., _T], *args: Any) -> _T:
        """Run some work and wait for it; if the wait is cancelled, what has begun goes on."""
        return await self.start(partial(work, *args))

    def _serve(self) -> None:
        while (job := self._next()) is not None:
            job()

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._jobs, _IDLE)
            self._idle -= 1
            if self._jobs:
                return self._jobs.popleft()
            self._running -= 1
            return None


def _run(
    loop: asyncio.AbstractEventLoop, future: asyncio.Future[_T], work: Callable[[], _T]
) -> None:
    if future.cancelled():
        return
    try:
        settle = partial(future.set_result, work())
    except BaseException as error:  # whoever waits for it is told
        settle = partial(future.set_exception, error)
    with suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(_settle, future, settle)


def _settle(future: asyncio.Future[Any], settle: Callable[[], None]) -> None:
    if not future.done():
        settle()
