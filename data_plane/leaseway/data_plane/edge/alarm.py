"""One timer that is set anew again and again."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

__all__ = ["Alarm"]


class Alarm:
    """Rings at the time set last.

    Args:
        ring: What is called; it may set the alarm anew.

    """

    def __init__(self, ring: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._ring = ring
        self._handle: asyncio.TimerHandle | None = None

    def set(self, at: float) -> None:
        """Ring at a time of the loop's clock, and at no time set before; infinite is never."""
        self.clear()
        if at < math.inf:
            self._handle = self._loop.call_at(at, self._ring)

    def clear(self) -> None:
        """Do not ring."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
