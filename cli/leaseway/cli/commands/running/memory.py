"""When a long-running process collects cyclic garbage and returns memory.

See design.md#traces-metrics-and-logs.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import resource
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from leaseway.wire.bounds import MIB

_NEVER: Final = 1_000_000_000
_THRESHOLDS: Final = (10_000, _NEVER, _NEVER)
"""Thresholds of the garbage collector's generations.

A call creates many objects but few cycles: with Python's default of 700, collections take one
twentieth of a process's time. Objects that survive the youngest generation are collected only when
the process has grown (`GrowthWatch`): what a large fleet reports stays, and walking it again and
again took a tenth of a restart, up to 160 ms at a time.
"""
_FREEZE_MODULES_AFTER: Final = 5.0
"""Seconds until MCP's modules are loaded; a collection would spend 35 ms on them."""
_FREEZE_ALL_AFTER: Final = 10.0
"""Seconds until the configuration and the first instances, which stay, are loaded."""

_MALLOC_OPTIONS: Final = {-3: 2 * MIB, -1: 8 * MIB}
"""glibc's `M_MMAP_THRESHOLD` and `M_TRIM_THRESHOLD`.

By default the first large message raises both, and later ones leave holes in the heap instead of
being returned to the system.
"""

GROWTH: Final = 32 * MIB
"""Growth of the process that causes a collection."""
_CHECK_EVERY: Final = 1.0
_GROWING: Final = GROWTH // 4
"""Growth between two checks by which a process is still growing."""
_MIN_INTERVAL: Final = 5.0
"""Seconds between two such collections, each of which blocks the loop for some milliseconds."""
_MAX_INTERVAL: Final = 300.0
"""The same as long as the process does not grow further."""
_STATM: Final = Path("/proc/self/statm")
_PAGE_SIZE: Final = resource.getpagesize()


class Collector(Protocol):
    """Python's garbage collector; see `gc`."""

    def collect(self, generation: int, /) -> int: ...

    def freeze(self) -> None: ...

    def unfreeze(self) -> None: ...


def collect_rarely(loop: asyncio.AbstractEventLoop) -> None:
    """Collect garbage rarely, never look at what exists by then, and keep the process small."""
    _return_large_blocks()
    gc.set_threshold(*_THRESHOLDS)
    gc.freeze()
    # Freeze the modules first, without a collection, so that the later one is short.
    loop.call_later(_FREEZE_MODULES_AFTER, gc.freeze)
    loop.call_later(_FREEZE_ALL_AFTER, _collect_and_freeze)
    GrowthWatch(loop).start()


def _collect_and_freeze() -> None:
    """Exclude all current objects from later collections; a fleet may be reporting just now."""
    gc.collect(0)
    gc.freeze()


class GrowthWatch:
    """Collects garbage, and returns free memory to the system, when the process has grown.

    The collector counts objects. A few objects in a cycle, such as an error with its frames, can
    hold many megabytes, and the C library keeps freed memory that it may never use again.

    What stays is not walked again: objects that have survived are excluded (`gc.freeze`) until the
    process has doubled. Cyclic garbage is therefore at most as large as what is in use, or 32 MiB.

    Args:
        loop: The process's event loop.
        size: Returns the process's resident bytes.
        trim: Returns free memory to the system; called in a thread.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        size: Callable[[], int] | None = None,
        trim: Callable[[], object] | None = None,
        collector: Collector = gc,
    ) -> None:
        self._loop = loop
        self._size = size or resident_bytes
        self._trim = trim or _trim()
        self._collector = collector
        self._low = self._collected = self._whole = self._checked = self._size()
        self._last = float("-inf")
        self._interval = _MIN_INTERVAL

    def start(self) -> None:
        """Check the size every second, as long as the loop runs."""
        self._loop.call_later(_CHECK_EVERY, self._tick)

    def _tick(self) -> None:
        self.check()
        self.start()

    def check(self) -> None:
        """Collect garbage if the process is larger than it was.

        A process that is still growing is given time, as it uses what it allocates. As long as it
        stays larger, this is repeated with growing intervals: what it uses is freed later than it
        grows, and may also be in use for good.
        """
        size = self._size()
        is_growing = self._checked + _GROWING <= size < 2 * self._collected
        self._checked = size
        self._low = min(self._low, size)
        self._collected = min(self._collected, size)
        self._whole = min(self._whole, size)
        if size < self._low + GROWTH or size >= self._collected + GROWTH:
            self._interval = _MIN_INTERVAL
        if size < self._low + GROWTH or self._loop.time() - self._last < self._interval:
            return
        if is_growing:
            return
        self._last = self._loop.time()
        # The youngest garbage first, which takes milliseconds, and all if that is not enough.
        if self._interval == _MIN_INTERVAL:
            self._collector.collect(1)
        else:
            self._collect_all(size)
        self._interval = min(2 * self._interval, _MAX_INTERVAL)
        with suppress(RuntimeError):  # the process ends, and has no threads any more
            self._loop.run_in_executor(None, self._trim).add_done_callback(self._trimmed)

    def _collect_all(self, size: int) -> None:
        if size >= 2 * self._whole:
            self._collector.unfreeze()
            self._whole = size
        self._collector.collect(2)
        self._collector.freeze()

    def _trimmed(self, _done: object) -> None:
        self._collected = self._size()


def resident_bytes() -> int:
    """Return the memory of this process, or 0 where the system does not tell."""
    with suppress(OSError):
        return int(_STATM.read_text().split()[1]) * _PAGE_SIZE
    return 0


def _return_large_blocks() -> None:
    """Let glibc return each large block to the system when it is freed."""
    with suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        for option, value in _MALLOC_OPTIONS.items():
            mallopt(option, value)


def _trim() -> Callable[[], object]:
    """Return glibc's function that returns free memory; elsewhere one that does nothing."""
    try:
        return partial(ctypes.CDLL(None).malloc_trim, 0)
    except (AttributeError, OSError):
        return gc.get_count
