"""Background tasks of a worker: owned by one group, loud when they fail.

What ends by itself is spawned; what must go on for as long as the worker does is kept.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from leaseway.wire.backoff import Backoff

__all__ = ["Background"]

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

    def keep(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> asyncio.Task[None]:
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
    """Say whether somebody cancels this task; a CancelledError may come from what it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
