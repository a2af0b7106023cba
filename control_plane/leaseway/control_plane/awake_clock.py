"""The clock of a control plane: it stands still while the process does not run."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from leaseway.control_plane.core.moment import Moment

BEAT: Final = 0.25
"""Seconds after which a running control plane reads its clock again."""

_STALL: Final = 4 * BEAT


class AwakeClock:
    """Monotonic time in which this process could hear its workers, and Unix time.

    What a control plane waits for comes from other processes: workers that join again, and
    messages that prove them alive. A machine that was suspended, or that gave the process no
    processor time, has heard nobody, so that this time must not count as anybody's silence
    (design.md#leases). It is found by its gap: somebody reads the clock every `BEAT` seconds, and
    of a gap of more than a second only `BEAT` counts.

    Args:
        monotonic: Seconds that never fall.
        unix: Seconds since 1970.
    """

    def __init__(
        self,
        monotonic: Callable[[], float] = time.monotonic,
        unix: Callable[[], float] = time.time,
    ) -> None:
        self._monotonic = monotonic
        self._unix = unix
        self._read_at = monotonic()
        self._stalled = 0.0

    def __call__(self) -> Moment:
        """Return the time."""
        read_at = self._monotonic()
        gap = read_at - self._read_at
        if gap > _STALL:
            self._stalled += gap - BEAT
        self._read_at = read_at
        return Moment(read_at - self._stalled, self._unix())
