"""Whose process starts next if a worker limits how many start at the same time. Pure."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from leaseway.data_plane.core.calls.turns import FairQueue


class StartTurns:
    """The starts that hold a place, and those that wait for one.

    Starts that somebody waits for come before all others. Among equals the turns are fair between
    tenants: one that needs fifty processes at once gets one place for each place of another.

    Args:
        places: How many starts may hold a place, at least 1.
    """

    def __init__(self, places: int) -> None:
        self._places = places
        self._holding: set[Hashable] = set()
        self._awaited = FairQueue()
        self._others = FairQueue()

    def add(self, start: Hashable, tenant: str, *, awaited: bool) -> bool:
        """Add a start; return whether it has a place. Otherwise `next` returns it later."""
        if len(self._holding) < self._places:  # then none waits: `next` is called after `remove`
            self._holding.add(start)
            return True
        (self._awaited if awaited else self._others).add(start, tenant)
        return False

    def remove(self, start: Hashable, tenant: str) -> None:
        """Free the place of a start, or let it wait no longer; unknown ones are ignored."""
        if start in self._holding:
            self._holding.discard(start)
        else:
            self._awaited.remove(start, tenant)
            self._others.remove(start, tenant)

    def next(self) -> Any:
        """Give a free place to a waiting start and return it; None if there is none."""
        queue = self._awaited if self._awaited.by_tenant else self._others
        if not queue.by_tenant or len(self._holding) >= self._places:
            return None
        start = queue.pop(_equally)
        self._holding.add(start)
        return start


def _equally(_tenant: str) -> float:
    return 1.0
