"""Recently ended leases, for clients that list leases. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_RETENTION: Final = 60.0
_MAX_ENDS: Final = 4096


@dataclass(frozen=True, slots=True)
class ReportedLeaseEnd:
    """How a lease ended, as its worker reported it."""

    lease_id: str
    tenant: str
    how: str
    """`released`, `revoked`, `expired` or `lost`; newer workers may send other values."""


class LeaseEnds:
    """The ends that workers reported within the last minute, at most 4,096 of them.

    No decision depends on them, so a restarted control plane starts with none.
    """

    def __init__(self) -> None:
        self._ends: OrderedDict[str, tuple[ReportedLeaseEnd, float]] = OrderedDict()

    def record(self, ends: Iterable[ReportedLeaseEnd], now: float) -> None:
        """Record ends; drop the oldest ones over the limit."""
        for end in ends:
            self._ends[end.lease_id] = (end, now)
            self._ends.move_to_end(end.lease_id)
        self._forget_old(now)

    def recent(self, now: float) -> list[ReportedLeaseEnd]:
        """Return the recent ends, oldest first."""
        self._forget_old(now)
        return [end for end, _at in self._ends.values()]

    def _forget_old(self, now: float) -> None:
        while self._ends:
            _end, at = next(iter(self._ends.values()))
            if len(self._ends) <= _MAX_ENDS and now - at < _RETENTION:
                return
            self._ends.popitem(last=False)
