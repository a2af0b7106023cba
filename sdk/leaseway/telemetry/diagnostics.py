"""Diagnostics of a process: its tasks on SIGUSR1, and stalls of its event loop.

SIGUSR1 logs the running tasks. The event loop writes the line, so a missing line shows that the
loop is blocked. A periodic timer measures stalls: it fires late by as long as the loop was blocked.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

_logger = logging.getLogger(__name__)
_MAX_KINDS: Final = 40


Facts = Callable[[], Mapping[str, int]]


def diagnostics(facts: Mapping[str, int]) -> str:
    """Return one line of counts, with the tasks of the running loop, the most frequent first.

    Args:
        facts: Additional counts by name.
    """
    tasks = asyncio.all_tasks()
    kinds = Counter(getattr(task.get_coro(), "__qualname__", "?") for task in tasks)
    counts = {**facts, "threads": threading.active_count(), "tasks": len(tasks)}
    shown = " ".join(f"{name}={count}" for name, count in counts.items())
    running = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(_MAX_KINDS))
    return f"{shown} ({running})"


@contextmanager
def diagnostics_on_signal() -> Iterator[list[Facts]]:
    """Log diagnostics at each SIGUSR1, in the running loop, until the context ends.

    Yields what returns additional counts: empty, parts add themselves when they are built.
    """
    facts: list[Facts] = []

    def log() -> None:
        counts = {name: count for of_part in facts for name, count in of_part().items()}
        _logger.info("Now: %s", diagnostics(counts))

    loop = asyncio.get_running_loop()
    previous = signal.getsignal(signal.SIGUSR1)
    loop.add_signal_handler(signal.SIGUSR1, log)
    try:
        yield facts
    finally:
        loop.remove_signal_handler(signal.SIGUSR1)
        signal.signal(signal.SIGUSR1, previous)  # it may have been ignored


_BEAT: Final = 0.02
_PERIOD: Final = 60.0


class StallMeter:
    """Measures how long the running loop was blocked, from `start` to `stop`."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._recent = self._before = 0.0
        self._period_ends = self._loop.time() + _PERIOD
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def start(self) -> None:
        """Start measuring."""
        self._due = self._loop.time() + _BEAT
        self._timer = self._loop.call_at(self._due, self._beat)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def recent(self) -> float:
        """Return the longest stall of the last one to two minutes, in seconds."""
        return max(self._recent, self._before)

    def _beat(self) -> None:
        now = self._loop.time()
        if now >= self._period_ends:
            self._before, self._recent = self._recent, 0.0
            self._period_ends = now + _PERIOD
        self._recent = max(self._recent, now - self._due)
        self.start()


@contextmanager
def measure_stalls() -> Iterator[StallMeter]:
    """Measure stalls of the running loop, until the context ends."""
    meter = StallMeter()
    meter.start()
    try:
        yield meter
    finally:
        meter.stop()
