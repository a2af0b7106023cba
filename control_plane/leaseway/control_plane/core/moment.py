"""The time at which the core handles an event."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Moment:
    """One instant: seconds on the monotonic clock, and Unix time in seconds."""

    mono: float
    unix: float
