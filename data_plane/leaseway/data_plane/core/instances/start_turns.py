"""Whose process starts next if a worker limits how many start at the same time. Pure."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from leaseway.data_plane.core.calls.turns import CallTurns


class StartTurns:
    """The starts that hold a place, and those that wait for one.

    Starts that somebody waits for come before all others. Among equals the turns are fair between
    tenants: one that needs fifty processes at once gets one place for each place of another.

    Args:
        places: How many starts may hold a place, at least 1.
    """

    def __init__(self, places: int) -> None:
        self._places = places
        self._awaited = CallTurns(places, _equally)
        self._others = CallTurns(places, _equally)

    def add(self, start: Hashable, tenant: str, *, awaited: bool) -> bool:
        """Add a start; return whether it has a place. Otherwise `next` returns it later."""
        self._share_places()
        return (self._awaited if awaited else self._others).add(start, tenant)

    def remove(self, start: Hashable, tenant: str) -> None:
        """Free the place of a start, or let it wait no longer; unknown ones are ignored."""
        self._awaited.remove(start, tenant)
        self._others.remove(start, tenant)

    def next(self) -> Any:
        """Give a free place to a waiting start and return it; None if there is none."""
        self._share_places()
        start = self._awaited.start_next()
        if start is None:
            self._share_places()
            start = self._others.start_next()
        return start

    def _share_places(self) -> None:
        self._awaited.max_running = self._places - self._others.running
        self._others.max_running = self._places - self._awaited.running


def _equally(_tenant: str) -> float:
    return 1.0
