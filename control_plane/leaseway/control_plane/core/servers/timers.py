"""When something is due next, among many that are set, moved and discarded. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Any)  # comparable, for equal times

_SPARE = 64
"""Outdated entries that are kept beyond as many as there are valid ones."""


@dataclass
class Timers(Generic[K]):
    """A time for each key; each operation costs the logarithm of their number."""

    _times: dict[K, float] = field(default_factory=dict)
    _heap: list[tuple[float, K]] = field(default_factory=list)  # outdated entries stay for a while

    def set(self, key: K, time: float) -> None:
        """Set a key's only time."""
        self._times[key] = time
        heappush(self._heap, (time, key))
        if len(self._heap) > 2 * len(self._times) + _SPARE:
            self._heap = [(time, key) for key, time in self._times.items()]
            heapify(self._heap)

    def discard(self, key: K) -> None:
        """Forget a key, if it has a time."""
        self._times.pop(key, None)

    def next(self) -> float | None:
        """Return the earliest time, or None if no key has one."""
        while self._heap:
            time, key = self._heap[0]
            if self._times.get(key) == time:
                return time
            heappop(self._heap)
        return None

    def pop_due(self, now: float) -> Iterator[K]:
        """Remove and yield the keys whose time has come, earliest first."""
        while (time := self.next()) is not None and time <= now:
            _, key = heappop(self._heap)
            del self._times[key]
            yield key
