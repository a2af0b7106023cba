"""The workers with room for a lease, the least loaded first, in an order that is kept.

A fleet of hundreds is not sorted, nor walked, for each lease: a change of one worker's load moves
that worker, and who chooses begins at the front and mostly ends there.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

__all__ = ["LoadOrder"]


class LoadOrder:
    """Who has room, by load and then by id. Its owner is the placement table."""

    def __init__(self) -> None:
        self._order: list[tuple[int, str]] = []
        self._capacity: dict[str, int] = {}
        self._load: dict[str, int] = {}  # of those in the order

    def __iter__(self) -> Iterator[str]:
        return (worker_id for _, worker_id in self._order)

    def __contains__(self, worker_id: str) -> bool:
        return worker_id in self._load

    def capacity(self, worker_id: str) -> int:
        """Return the most leases that a worker takes; 0 for one that has not joined."""
        return self._capacity.get(worker_id, 0)

    def joined(self, worker_id: str, capacity: int, load: int) -> None:
        """Take a worker in, or take its new capacity."""
        self._capacity[worker_id] = capacity
        self.moved(worker_id, load)

    def left(self, worker_id: str) -> None:
        """Forget a worker; an unknown one is no error."""
        self._capacity.pop(worker_id, None)
        self._take_out(worker_id)

    def moved(self, worker_id: str, load: int) -> None:
        """Take a worker's new load; one that has not joined stays out."""
        self._take_out(worker_id)
        if load < self._capacity.get(worker_id, 0):
            self._load[worker_id] = load
            insort(self._order, (load, worker_id))

    def _take_out(self, worker_id: str) -> None:
        load = self._load.pop(worker_id, None)
        if load is not None:
            del self._order[bisect_left(self._order, (load, worker_id))]
