"""Background tasks of a worker: owned by one group, loud when they fail."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

__all__ = ["Background"]

_logger = logging.getLogger(__name__)


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

    def cancel_all(self) -> None:
        """Cancel what still runs."""
        for task in tuple(self._tasks):
            task.cancel()

    async def _guarded(self, work: Coroutine[Any, Any, None], name: str) -> None:
        try:
            await work
        except Exception:
            _logger.exception(
                "The background work '%s' failed; the rest of the worker goes on.", name
            )
