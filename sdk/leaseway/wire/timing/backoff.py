"""Delays between tries: exponential, bounded, with full jitter."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Backoff:
    """A schedule of delays in seconds (design.md#bounds-and-defaults)."""

    initial: float = 0.2
    maximum: float = 30.0
    multiplier: float = 2.0

    def ceiling(self, attempt: int) -> float:
        """Return the maximum delay after failed attempt number `attempt`, counted from 0."""
        # The exponent is bounded so that weeks of failures cannot overflow a float.
        return min(self.maximum, self.initial * self.multiplier ** min(attempt, 64))

    def delay(
        self, attempt: int, uniform: Callable[[float, float], float] = random.uniform
    ) -> float:
        """Return a random delay between 0 and the ceiling."""
        return uniform(0.0, self.ceiling(attempt))


RECONNECT: Final = Backoff(initial=0.1, maximum=2.0)
"""To a plane: it is near, and callers wait for it."""
RESTART: Final = Backoff(initial=0.2, maximum=30.0)
"""Of Leaseway's own processes and tasks."""
RETRY: Final = Backoff(initial=0.5, maximum=30.0)
"""Of what failed for a reason that is likely to last: a server of somebody else, a probe."""
REOPEN: Final = Backoff(initial=1.0, maximum=60.0)
"""Of a stream that brings only notifications: nothing waits for it."""
STEADY_STREAM: Final = 30.0
"""Seconds after which the end of such a stream does not count as a failure."""
REDIRECT: Final = Backoff(initial=0.3, maximum=0.3)
"""To a plane's other process, which another one has named: it may not serve for a moment yet."""
REQUEST_TOKEN: Final = Backoff(initial=1.0, maximum=60.0)
"""Of a request for an OAuth token."""
REQUEST_REFUSED_TOKEN: Final = Backoff(initial=30.0, maximum=300.0)
"""The same after an error that somebody must correct: more tries would only fill two logs."""
FETCH_DOCUMENT: Final = Backoff(initial=5.0, maximum=60.0)
"""Of an OpenAPI document: its web server may start later than who fetches it."""
AWAIT_LOGIN: Final = Backoff(initial=1.0, maximum=5.0)
"""Until somebody has logged in: only a file is read."""
