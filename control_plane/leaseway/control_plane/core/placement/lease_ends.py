"""How leases ended that are gone since a short while, for those who watch them. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_KEPT_FOR: Final = 60.0
_MOST: Final = 4096


@dataclass(frozen=True, slots=True)
class ReportedLeaseEnd:
    """How a lease ended.

    Attributes:
        lease_id: The lease.
        tenant: Its tenant.
        how: `released`, `revoked`, `expired` or `lost`, or whatever newer workers say.
    """

    lease_id: str
    tenant: str
    how: str


class LeaseEnds:
    """The ends that workers reported within the last minute, at most 4,096 of them.

    It is no state that anything depends on: a control plane that starts knows of none.
    """

    def __init__(self) -> None:
        self._ends: OrderedDict[str, tuple[ReportedLeaseEnd, float]] = OrderedDict()

    def record(self, ends: Iterable[ReportedLeaseEnd], now: float) -> None:
        """Remember ends; of too many the oldest are forgotten."""
        for end in ends:
            self._ends[end.lease_id] = (end, now)
            self._ends.move_to_end(end.lease_id)
        self._forget_old(now)

    def recent(self, now: float) -> list[ReportedLeaseEnd]:
        """Return them, the oldest first."""
        self._forget_old(now)
        return [end for end, _at in self._ends.values()]

    def _forget_old(self, now: float) -> None:
        while self._ends:
            _end, at = next(iter(self._ends.values()))
            if len(self._ends) <= _MOST and now - at < _KEPT_FOR:
                return
            self._ends.popitem(last=False)
