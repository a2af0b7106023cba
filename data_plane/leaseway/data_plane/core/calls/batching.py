"""When results wait a moment for others to share their message (DESIGN §6).

A message costs gRPC and both processes many times what a result in it does. Results of many
servers at work at once arrive one by one, and each would leave alone. Pure: the exchange's writer
waits, and tells here what came of it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

_LOOK: Final = 0.05
"""Seconds between two looks at which calls take long; one that is seen twice does."""
_MOST_AT_ONCE: Final = 64
"""Messages that leave before another wait, however many waits were vain."""


class Batching:
    """Decides for one stream, by what waiting was good for lately.

    A message waits until it answers half of the quick calls under way: with half of them at once,
    both sides are at work. Calls that take long are not counted, for nobody knows when they end.
    Where waits are vain all the same, twice as many messages leave at once after each, up to 64,
    before the next one waits.

    Args:
        calls: The ids of the stream's calls that have no result yet; ids are never reused.
    """

    def __init__(self, calls: Collection[int]) -> None:
        self._calls = calls
        self._seen: frozenset[int] = frozenset()
        self._slow = 0
        self._look_at = 0.0
        self._at_once = 0
        self._left = 0

    def is_enough(self, ready: int) -> bool:
        """Return whether a message with so many frames answers half of the quick calls."""
        return ready >= len(self._calls) - self._slow

    def pays(self, ready: int, now: float) -> bool:
        """Return whether the next message is to wait for more.

        Args:
            ready: How many frames it would carry now.
            now: In seconds, on a clock that never goes back.
        """
        if now >= self._look_at:
            self._look(now)
        if self.is_enough(ready):
            return False
        if self._left:
            self._left -= 1
            return False
        return True

    def waited(self, gained: int) -> None:
        """Note how many frames came while a message waited."""
        self._at_once = 0 if gained else min(max(2, 2 * self._at_once), _MOST_AT_ONCE)
        self._left = self._at_once

    def _look(self, now: float) -> None:
        calls = frozenset(self._calls)
        self._slow = len(calls & self._seen)
        self._seen = calls
        self._look_at = now + _LOOK
