"""What a process is busy with, as one line of its log whenever SIGUSR1 asks for it.

For operators who look at a process that holds more than it should, or does not answer: the line
comes from the event loop, so that one which never comes says something too.

How long the loop stands still: as a metric, and what it was at, in a file. A loop that stands still
answers nobody. A beat on the loop is late by as much as the loop stood still. Where LEASEWAY_STALLS
names a folder, a thread looks at a loop that is late, and the longest stall of each process is kept
there with the place in the code.
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
from pathlib import Path
from typing import Final

_logger = logging.getLogger(__name__)
_MOST_KINDS: Final = 40


def diagnostics(facts: Mapping[str, int]) -> str:
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
def diagnostics_on_signal(facts: Callable[[], Mapping[str, int]]) -> Iterator[None]:
    """Log diagnostics at each SIGUSR1, in the running loop, as long as the context lasts.

    Args:
        facts: Counts what else is to be said, at that moment.
    """
    loop = asyncio.get_running_loop()
    before = signal.getsignal(signal.SIGUSR1)
    loop.add_signal_handler(signal.SIGUSR1, lambda: _logger.info("Now: %s", diagnostics(facts())))
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGUSR1)
        signal.signal(signal.SIGUSR1, before)  # a process that ignores it may still end slowly


STALLS_VARIABLE: Final = "LEASEWAY_STALLS"
"""Names the folder."""

_BEAT: Final = 0.02
_PERIOD: Final = 60.0
_LATE: Final = 0.05
_FRAMES: Final = 5
_OURS: Final = f"{os.sep}leaseway{os.sep}"


@dataclass(frozen=True)
class Stall:
    """One stall.

    Attributes:
        seconds: How long the loop stood still.
        busy: Seconds of processor time that its thread used meanwhile; what is missing it waited
            for: for a file, for another thread, or for a machine with too much to do.
        age: Seconds since the loop's first beat.
        stack: Where it was: calls of our own code, then the innermost; empty where nobody looked.
    """

    seconds: float = 0.0
    busy: float = 0.0
    age: float = 0.0
    stack: tuple[str, ...] = ()


class StallMeter:
    """Measures the running loop from `start` to `stop`.

    Args:
        on_record: Called with each stall that is longer, or busier, than all before it.
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
        self._watching = threading.Event()
        self._seen: tuple[float, tuple[str, ...]] = (0.0, ())

    def start(self) -> None:
        """Begin; where stalls are recorded, a thread looks at what the loop is at."""
        self._schedule()
        if self._on_record is not None:
            threading.Thread(target=self._watch, name="stalls", daemon=True).start()

    def stop(self) -> None:
        self._watching.set()
        if self._timer is not None:
            self._timer.cancel()

    def recent(self) -> float:
        """Return the longest stall of the last minute or two, in seconds."""
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
        while not self._watching.wait(_BEAT):
            due = self._due
            if self._loop.time() - due > _LATE:
                frame = sys._current_frames().get(self._thread)
                found = traceback.extract_stack(frame)
                ours = [one for one in found[:-1] if _OURS in one.filename][-_FRAMES:]
                places = [f"{Path(one.filename).name}:{one.lineno} {one.name}" for one in ours]
                last = found[-1]
                places.append(f"{Path(last.filename).name}:{last.lineno} {last.name}")
                seen_at, before = self._seen
                # At first it may only wait for another thread; the deepest place says the most.
                if seen_at != due or len(places) > len(before):
                    self._seen = (due, tuple(places))


@contextmanager
def measuring_stalls(name: str, *, wanted: bool) -> Iterator[StallMeter | None]:
    """Measure the running loop where somebody wants it, or where a folder is named for it.

    Args:
        name: The process's, in the file.
        wanted: Whether somebody reads the meter.
    """
    folder = os.environ.get(STALLS_VARIABLE, "")
    if not folder and not wanted:
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
        longest = max(longest, stall, key=lambda one: one.seconds)
        busiest = max(busiest, stall, key=lambda one: min(one.seconds, one.busy))
        found = {"longest": asdict(longest), "busiest": asdict(busiest), "program": sys.argv[:1]}
        with suppress(OSError):  # the folder is gone: nobody wants to know any more
            path.write_text(json.dumps({"name": name, **found}))

    return record
