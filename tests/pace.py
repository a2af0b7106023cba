"""How fast this machine is, for tests that bound CPU time in milliseconds."""

from __future__ import annotations

import time
from functools import cache
from typing import Final

_USUAL: Final = 0.005
"""Seconds that `_work` takes on a fast machine, for which the bounds are written."""


@cache
def slowness() -> float:
    """Return how many times as long as a fast machine this one takes for work; at least 1."""
    shortest = 60.0
    for _ in range(10):
        began = time.thread_time()
        _work()
        shortest = min(shortest, time.thread_time() - began)
    return max(1.0, shortest / _USUAL)


def _work() -> int:
    total = 0
    for number in range(200_000):
        total += number * number % 7
    return total
