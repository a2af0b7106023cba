"""Diagnostics of a process: its tasks on SIGUSR1, and stalls of its event loop.

SIGUSR1 logs the running tasks. The event loop writes the line, so a missing line shows that the
loop is blocked. A periodic timer measures stalls: it fires late by as long as the loop was blocked.
If LEASEWAY_STALLS names a folder, a thread finds out what blocks the loop, and the longest stall of
each process is written there with its stack.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from operator import attrgetter
from pathlib import Path
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


STALLS_VARIABLE: Final = "LEASEWAY_STALLS"
"""The environment variable that names the folder."""

_BEAT: Final = 0.02
_PERIOD: Final = 60.0
_LATE: Final = 0.05
_FRAMES: Final = 5
_OURS: Final = f"{os.sep}leaseway{os.sep}"


@dataclass(frozen=True)
class Stall:
    """One stall of the event loop.

    Attributes:
        seconds: How long the loop was blocked.
        busy: Processor time of its thread during the stall, in seconds. The rest it waited for a
            file, another thread or the processor.
        age: Seconds since the start of the measurement.
        stack: Calls of our own code, then the innermost call; empty if not examined.
    """

    seconds: float = 0.0
    busy: float = 0.0
    age: float = 0.0
    stack: tuple[str, ...] = ()


class StallMeter:
    """Measures the running loop from `start` to `stop`.

    Args:
        on_record: Called with each stall that is longer, or busier, than all previous ones.
    """

    def __init__(self, on_record: Callable[[Stall], None] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_record = on_record
        self._longest = self._busiest = 0.0
        self._recent = self._before = 0.0
        self._period_ends = self._loop.time() + _PERIOD
        self._timer: asyncio.TimerHandle | None = None
        self._started = self._due = self._loop.time()
        self._used = time.thread_time()
        self._thread = threading.get_ident()
        self._stopped = threading.Event()
        self._seen: tuple[float, tuple[str, ...]] = (0.0, ())

    def start(self) -> None:
        """Start measuring. If stalls are recorded, a thread examines the blocked loop."""
        self._schedule()
        if self._on_record is not None:
            threading.Thread(target=self._watch, name="stalls", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()
        if self._timer is not None:
            self._timer.cancel()

    def recent(self) -> float:
        """Return the longest stall of the last one to two minutes, in seconds."""
        return max(self._recent, self._before)

    def _schedule(self) -> None:
        self._due = self._loop.time() + _BEAT
        self._timer = self._loop.call_at(self._due, self._beat)

    def _beat(self) -> None:
        now, used = self._loop.time(), time.thread_time()
        late, busy = now - self._due, used - self._used
        self._used = used
        if now >= self._period_ends:
            self._before, self._recent = self._recent, 0.0
            self._period_ends = now + _PERIOD
        self._recent = max(self._recent, late)
        if self._on_record is not None and (
            late > self._longest or min(late, busy) > self._busiest
        ):
            self._longest = max(self._longest, late)
            self._busiest = max(self._busiest, min(late, busy))
            due, stack = self._seen
            age = now - self._started
            self._on_record(Stall(late, busy, age, stack if due == self._due else ()))
        self._schedule()

    def _watch(self) -> None:
        while not self._stopped.wait(_BEAT):
            due = self._due
            if self._loop.time() - due > _LATE:
                found = traceback.extract_stack(sys._current_frames().get(self._thread))
                ours = [frame for frame in found[:-1] if _OURS in frame.filename][-_FRAMES:]
                places = [
                    f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in ours
                ]
                last = found[-1]
                places.append(f"{Path(last.filename).name}:{last.lineno} {last.name}")
                seen_at, before = self._seen
                # At first it may only wait for another thread; the deepest stack is the best.
                if seen_at != due or len(places) > len(before):
                    self._seen = (due, tuple(places))


@contextmanager
def measure_stalls(name: str, *, enabled: bool) -> Iterator[StallMeter | None]:
    """Measure stalls of the running loop if enabled, or if LEASEWAY_STALLS is set.

    Args:
        name: The process's name in the file.
        enabled: Whether the caller reads the meter.
    """
    folder = os.environ.get(STALLS_VARIABLE, "")
    if not folder and not enabled:
        yield None
        return
    meter = StallMeter(_recorder(Path(folder), name) if folder else None)
    meter.start()
    try:
        yield meter
    finally:
        meter.stop()


def _recorder(folder: Path, name: str) -> Callable[[Stall], None]:
    path = folder / f"{name}-{os.getpid()}.json"
    longest = busiest = Stall()

    def record(stall: Stall) -> None:
        nonlocal longest, busiest
        longest = max(longest, stall, key=attrgetter("seconds"))
        busiest = max(busiest, stall, key=lambda stall: min(stall.seconds, stall.busy))
        found = {"longest": asdict(longest), "busiest": asdict(busiest), "program": sys.argv[:1]}
        with suppress(OSError):  # the folder may have been removed
            path.write_text(json.dumps({"name": name, **found}))

    return record
