"""Finds out what blocks the event loop of a process, for the stalls that a test run prints.

A periodic timer measures how late it fires. A thread looks at the blocked loop meanwhile. Processes
that tests fork write their longest stall into the folder that `STALLS_VARIABLE` names.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

STALLS_VARIABLE: Final = "TEST_STALLS"
"""The environment variable that names the folder."""

_PLANES: Final = frozenset({"control-plane", "mcp-front", "up", "worker"})
_BEAT: Final = 0.02
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


class StallFinder:
    """Measures a loop from `start`, in its thread, to `stop`.

    Args:
        on_record: Called with each stall that is longer, or busier, than all previous ones.
    """

    def __init__(self, on_record: Callable[[Stall], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_record = on_record
        self._longest = self._busiest = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._started = self._due = self._loop.time()
        self._used = time.thread_time()
        self._thread = threading.get_ident()
        self._stopped = threading.Event()
        self._seen: tuple[float, tuple[str, ...]] = (0.0, ())

    def start(self) -> None:
        """Start measuring, and a thread that examines the blocked loop."""
        self._schedule()
        threading.Thread(target=self._watch, name="stalls", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(self) -> None:
        self._due = self._loop.time() + _BEAT
        self._timer = self._loop.call_at(self._due, self._beat)

    def _beat(self) -> None:
        now, used = self._loop.time(), time.thread_time()
        late, busy = now - self._due, used - self._used
        self._used = used
        if late > self._longest or min(late, busy) > self._busiest:
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


def watch_plane(command: str) -> None:
    """Measure the event loop of this process, if it is a plane and the folder is set."""
    folder = os.environ.get(STALLS_VARIABLE, "")
    if not folder or command not in _PLANES:
        return
    record = _recorder(Path(folder), f"leaseway-{command}")
    run_until_complete = asyncio.BaseEventLoop.run_until_complete

    def measured(loop: asyncio.BaseEventLoop, future: object) -> object:
        loop.call_soon(lambda: StallFinder(record).start())
        return run_until_complete(loop, future)  # type: ignore[arg-type]

    asyncio.BaseEventLoop.run_until_complete = measured  # type: ignore[assignment, method-assign]


def _recorder(folder: Path, name: str) -> Callable[[Stall], None]:
    path = folder / f"{name}-{os.getpid()}.json"
    longest = busiest = Stall()

    def record(stall: Stall) -> None:
        nonlocal longest, busiest
        longest = max(longest, stall, key=lambda stall: stall.seconds)
        busiest = max(busiest, stall, key=lambda stall: min(stall.seconds, stall.busy))
        found = {"longest": asdict(longest), "busiest": asdict(busiest)}
        with suppress(OSError):  # the folder may have been removed
            path.write_text(json.dumps({"name": name, **found}))

    return record
