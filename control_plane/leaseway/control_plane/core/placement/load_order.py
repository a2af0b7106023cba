"""The workers with free capacity, by load. Pure."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator


class LoadOrder:
    """Workers with free capacity, ordered by load and then by id.

    The order is updated for one worker at a time, so that placing a lease neither sorts nor scans
    a large fleet.
    """

    def __init__(self) -> None:
        self._order: list[tuple[int, str]] = []
        self._capacity: dict[str, int] = {}
        self._load: dict[str, int] = {}  # of the workers in the order

    def __iter__(self) -> Iterator[str]:
        return (worker_id for _, worker_id in self._order)

    def __contains__(self, worker_id: str) -> bool:
        return worker_id in self._load

    def capacity(self, worker_id: str) -> int:
        """Return the lease limit of a worker; 0 for one that has not joined."""
        return self._capacity.get(worker_id, 0)

    def set_capacity(self, worker_id: str, capacity: int, load: int) -> None:
        """Register a worker, or change its capacity."""
        self._capacity[worker_id] = capacity
        self.set_load(worker_id, load)

    def remove(self, worker_id: str) -> None:
        """Remove a worker if it is known."""
        self._capacity.pop(worker_id, None)
        self._remove_from_order(worker_id)

    def set_load(self, worker_id: str, load: int) -> None:
        """Record a worker's new load; ignore one that has not joined."""
        self._remove_from_order(worker_id)
        if load < self._capacity.get(worker_id, 0):
            self._load[worker_id] = load
            insort(self._order, (load, worker_id))

    def _remove_from_order(self, worker_id: str) -> None:
        load = self._load.pop(worker_id, None)
        if load is not None:
            del self._order[bisect_left(self._order, (load, worker_id))]
