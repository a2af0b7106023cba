"""Threads for work on a disk that may hang.

The loop's own threads are few and shared by all that may block, and a process waits for them when
it ends. What waits for a disk that does not answer must hold up neither, so it has threads of its
own, which end with the process whatever they are at.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

__all__ = ["DiskThreads"]

_T = TypeVar("_T")
_IDLE: Final = 1.0
"""Seconds that a thread waits for more work before it ends."""


class DiskThreads:
    """Runs blocking work in threads that begin when there is some and end when there is none.

    How much work may wait is for those to bound who bring it.

    Args:
        most: How many threads there may be.
    """

    def __init__(self, most: int = 8) -> None:
        self._most = most
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
            elif self._running < self._most:
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
