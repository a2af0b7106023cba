"""The time and the capacity facts that one decision of the core is made with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Moment:
    """Now: seconds on the monotonic clock, and Unix time in seconds."""

    mono: float
    unix: float
