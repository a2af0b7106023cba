"""Tasks by key, while they run, and whether a task is being cancelled."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, TypeVar

_K = TypeVar("_K")


class RunningTasks(dict[_K, asyncio.Task[Any]]):
    """Running tasks by key; each one leaves when it ends. The newer of two with a key stays."""

    def add(self, key: _K, task: asyncio.Task[Any]) -> None:
        """Keep a task until it ends."""
        self[key] = task
        task.add_done_callback(partial(self._forget, key))

    def _forget(self, key: _K, task: asyncio.Task[Any]) -> None:
        if self.get(key) is task:
            del self[key]


def is_cancelled() -> bool:
    """Return whether the current task is being cancelled, and not only what it awaits."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
