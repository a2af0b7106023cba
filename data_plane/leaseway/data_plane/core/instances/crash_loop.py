"""How long the problem of a server that exits by itself stays open after a restart. Pure.

A restart alone is no cure: in a crash loop each one succeeds. After one crash a server counts as
cured when it has run for as long as a start needs to be stable; after more crashes, when it has
run twice as long as the last time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from leaseway.data_plane.core.instances.circuit_breaker import STABLE_AFTER

MAX_QUIET: Final = 600.0
"""Seconds between two crashes after which they have nothing to do with each other."""


@dataclass(frozen=True, slots=True)
class CrashHistory:
    """The crashes of one generation so far.

    Attributes:
        last: When an instance last exited by itself, or None if none has.
        quiet: Seconds that an instance must run until the last crash is history.
    """

    last: float | None = None
    quiet: float = STABLE_AFTER

    def crashed(self, now: float) -> CrashHistory:
        """Return the history after another crash."""
        if self.last is None or now - self.last > MAX_QUIET:
            return CrashHistory(now)
        return CrashHistory(now, min(MAX_QUIET, max(STABLE_AFTER, 2 * (now - self.last))))
