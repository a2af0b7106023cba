"""Tasks by key, tasks that outlast who starts them, and whether a task is being cancelled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextvars import Context
from functools import partial
from typing import Any, Final, TypeVar

from leaseway.wire.timing.backoff import RESTART

_STABLE_AFTER: Final = 60.0
"""Seconds after which a failure of work that is kept running counts as the first one again."""

_logger = logging.getLogger(__name__)

_K = TypeVar("_K")
_T = TypeVar("_T")


class RunningTasks(dict[_K, asyncio.Task[Any]]):
    """Running tasks by key; each one leaves when it ends. The newer of two with a key stays."""

    def add(self, key: _K, task: asyncio.Task[Any]) -> None:
        """Keep a task until it ends."""
        self[key] = task
        task.add_done_callback(partial(self._forget, key))

    def _forget(self, key: _K, task: asyncio.Task[Any]) -> None:
        if self.get(key) is task:
            del self[key]


def start_lasting_task(work: Coroutine[Any, Any, _T], name: str | None = None) -> asyncio.Task[_T]:
    """Start a task in a context of its own, in the running loop.

    It outlasts the call that starts it. In the call's context it would run with the trace and all
    other context variables of this one call, and keep them, such as an HTTP request.
    """
    return asyncio.get_running_loop().create_task(work, name=name, context=Context())


async def keep_running(work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
    """Run work until it returns; log each failure and restart it with backoff, up to 30 s."""
    clock = asyncio.get_running_loop().time
    failures = 0
    while True:
        started = clock()
        try:
            return await work()
        except (Exception, asyncio.CancelledError) as error:
            if is_cancelled():
                raise
            failures = failures if clock() - started < _STABLE_AFTER else 0
            delay = RESTART.ceiling(failures)
            failures += 1
            _logger.error(
                "The background work '%s' failed; it restarts in %g s, and the rest of the "
                "process continues.",
                name,
                delay,
                exc_info=error,
            )
        await asyncio.sleep(delay)


def is_cancelled() -> bool:
    """Return whether the current task is being cancelled, and not only what it awaits."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
