"""What a process is busy with, as one line of its log whenever SIGUSR1 asks for it.

For operators who look at a process that holds more than it should, or does not answer: the line
comes from the event loop, so that one which never comes says something too.
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
_MOST_KINDS: Final = 40


def census(facts: Mapping[str, int]) -> str:
    """Return a line of `name=count` with the tasks of the running loop, the most frequent first.

    Args:
        facts: What else is counted, by name.

    """
    tasks = asyncio.all_tasks()
    kinds = Counter(getattr(task.get_coro(), "__qualname__", "?") for task in tasks)
    counts = {**facts, "threads": threading.active_count(), "tasks": len(tasks)}
    said = " ".join(f"{name}={count}" for name, count in counts.items())
    running = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(_MOST_KINDS))
    return f"{said} ({running})"


@contextmanager
def census_on_signal(facts: Callable[[], Mapping[str, int]]) -> Iterator[None]:
    """Log a census at each SIGUSR1, in the running loop, as long as the context lasts.

    Args:
        facts: Counts what else is to be said, at that moment.

    """
    loop = asyncio.get_running_loop()
    before = signal.getsignal(signal.SIGUSR1)
    loop.add_signal_handler(signal.SIGUSR1, lambda: _logger.info("Now: %s", census(facts())))
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGUSR1)
        signal.signal(signal.SIGUSR1, before)  # a process that ignores it may still end slowly
