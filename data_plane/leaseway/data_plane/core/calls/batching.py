"""Decides when results wait briefly to share a message (design.md#calls).

A message costs gRPC and both processes many times as much as a result in it. Results of many busy
servers arrive one by one, so each would be sent alone. Pure: the exchange's writer waits.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

_SAMPLE_INTERVAL: Final = 0.05
"""Seconds between two samples of the calls in flight; calls in two samples count as slow."""
_MAX_UNDELAYED: Final = 64
"""Maximum number of messages sent without waiting after useless waits."""


class Batching:
    """Decides for one stream, by the benefit of its recent waits.

    A message waits until it answers half of the quick calls in flight: with half of them at once,
    both sides are at work. Slow calls do not count, because their end is unknown. After
    each useless wait, twice as many messages are sent without waiting, up to 64.

    Args:
        calls: The ids of the stream's calls without a result; ids are never reused.
    """

    def __init__(self, calls: Collection[int]) -> None:
        self._calls = calls
        self._sample: frozenset[int] = frozenset()
        self._slow = 0
        self._sample_at = 0.0
        self._undelayed = 0
        self._undelayed_remaining = 0

    def is_enough(self, ready: int) -> bool:
        """Return whether a message with this many frames answers half of the quick calls."""
        return ready >= len(self._calls) - self._slow

    def should_wait(self, ready: int, now: float) -> bool:
        """Return whether the next message should wait for more frames.

        Args:
            ready: How many frames it contains now.
            now: In seconds, on a monotonic clock.
        """
        if now >= self._sample_at:
            self._take_sample(now)
        if self.is_enough(ready):
            return False
        if self._undelayed_remaining:
            self._undelayed_remaining -= 1
            return False
        return True

    def record_wait(self, gained: int) -> None:
        """Record how many frames were added while a message waited."""
        self._undelayed = 0 if gained else min(max(2, 2 * self._undelayed), _MAX_UNDELAYED)
        self._undelayed_remaining = self._undelayed

    def _take_sample(self, now: float) -> None:
        calls = frozenset(self._calls)
        self._slow = len(calls & self._sample)
        self._sample = calls
        self._sample_at = now + _SAMPLE_INTERVAL
