"""Threads for work that may block for ever, as on a disk that does not respond."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

_THREAD_IDLE: Final = 1.0
"""Seconds that a thread waits for more work before it ends."""

_T = TypeVar("_T")


class DaemonThreads:
    """Runs blocking work in its own daemon threads, which start on demand and end when idle.

    The loop's default executor is shared and joined at exit. Work on a disk, or at a name server,
    that does not respond must hold up neither. Callers must bound the work that waits.

    Args:
        max_threads: The limit of threads.
    """

    def __init__(self, max_threads: int = 8) -> None:
        self._max_threads = max_threads
        self._jobs: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._running = 0
        self._idle = 0

    def submit(self, work: Callable[[], _T]) -> asyncio.Future[_T]:
        """Run work and return the future of its result. Cancelled work that waits is not run.

        Raises:
            RuntimeError: No thread could be started for it.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_T] = loop.create_future()
        job = partial(_run, loop, future, partial(contextvars.copy_context().run, work))
        with self._changed:
            self._jobs.append(job)
            if len(self._jobs) <= self._idle:
                self._changed.notify()
            elif self._running < self._max_threads:
                self._start_thread()
        return future

    async def run(self, work: Callable[..., _T], *args: Any) -> _T:
        """Run work and wait for it; a cancelled wait does not stop work that has started.

        Raises:
            RuntimeError: No thread could be started for it.
        """
        return await self.submit(partial(work, *args))

    def _start_thread(self) -> None:
        """Start one more thread; if the system refuses it, the others do the newest job, too."""
        try:
            threading.Thread(target=self._serve, name="disk", daemon=True).start()
        except RuntimeError:
            if not self._running:
                self._jobs.pop()
                raise
        else:
            self._running += 1

    def _serve(self) -> None:
        while (job := self._next()) is not None:
            job()

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._jobs, _THREAD_IDLE)
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
        finish = partial(future.set_result, work())
    except BaseException as error:  # noqa: BLE001 - the waiter gets it
        finish = partial(future.set_exception, error)
    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(_finish, future, finish)


def _finish(future: asyncio.Future[Any], finish: Callable[[], None]) -> None:
    if not future.done():
        finish()
