"""Fair turns between tenants: a queue, and what runs beside what waits in it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Final

_FORGET_AT: Final = 256
"""Idle tenants whose next turn is remembered."""


class FairQueue:
    """What waits for a turn, by tenant.

    Start-time fair queuing, each turn being one unit: the next turn goes to the tenant that has
    had the fewest since it started to wait, divided by its weight. A tenant with a thousand at once
    gets one turn for each turn of another tenant of the same weight.

    Attributes:
        by_tenant: What waits of each tenant that has anything waiting, oldest first. Only read it.
    """

    def __init__(self) -> None:
        self.by_tenant: dict[str, dict[Any, None]] = {}
        # When each tenant's next turn starts, in turns of a tenant of weight 1.
        self._next_turn: dict[str, float] = {}
        self._now = 0.0

    def add(self, waiting: Hashable, tenant: str) -> None:
        queue = self.by_tenant.get(tenant)
        if queue is None:
            queue = self.by_tenant[tenant] = {}
            self._next_turn[tenant] = max(self._next_turn.get(tenant, 0.0), self._now)
        queue[waiting] = None

    def remove(self, waiting: Hashable, tenant: str) -> None:
        """Let something wait no longer; what does not wait is ignored."""
        queue = self.by_tenant.get(tenant)
        if queue is not None:
            queue.pop(waiting, None)
            if not queue:
                self._remove_tenant(tenant)

    def pop(self, weight_of: Callable[[str], float]) -> Any:
        """Remove what has the next turn and return it; something must wait.

        Args:
            weight_of: Returns the weight of a tenant, at least 1.
        """
        tenant = min(self.by_tenant, key=self._next_turn.__getitem__)
        queue = self.by_tenant[tenant]
        following = next(iter(queue))
        del queue[following]
        self._now = self._next_turn[tenant]
        self._next_turn[tenant] = self._now + 1 / weight_of(tenant)
        if not queue:
            self._remove_tenant(tenant)
        return following

    def _remove_tenant(self, tenant: str) -> None:
        del self.by_tenant[tenant]
        if not self.by_tenant:
            self._next_turn.clear()
            self._now = 0.0
        elif len(self._next_turn) > _FORGET_AT + len(self.by_tenant):
            self._next_turn = {
                name: start
                for name, start in self._next_turn.items()
                if name in self.by_tenant or start > self._now
            }


def equally(_tenant: str) -> float:
    """Return the weight of each tenant if all have the same."""
    return 1.0


class Turns:
    """What runs of several tenants, and what waits for one of it to end.

    Calls of one instance, and starts of a worker's processes. What waits ahead of all others has
    its turn before them; among equals the turns are fair between tenants.

    Attributes:
        max_running: How many may run at once, at least 1. May change at any time.
        weight_of: The weight of a tenant, at least 1. May change at any time.
    """

    def __init__(self, max_running: int, weight_of: Callable[[str], float] = equally) -> None:
        self.max_running = max_running
        self.weight_of = weight_of
        self._running: set[Hashable] = set()
        self._ahead = FairQueue()
        self._queue = FairQueue()

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> bool:
        """Whether anything waits."""
        return bool(self._queue.by_tenant or self._ahead.by_tenant)

    def add(self, entry: Hashable, tenant: str, *, ahead: bool = False) -> bool:
        """Add something; return whether it runs. Otherwise `start_next` returns it later."""
        if entry in self._running:
            return True
        if not self.waiting and len(self._running) < self.max_running:
            self._running.add(entry)
            return True
        (self._ahead if ahead else self._queue).add(entry, tenant)
        return False

    def remove(self, entry: Hashable, tenant: str) -> None:
        """Remove what has ended, running or waiting; what is unknown is ignored."""
        if entry in self._running:
            self._running.discard(entry)
        else:
            self._ahead.remove(entry, tenant)
            self._queue.remove(entry, tenant)

    def start_next(self) -> Any:
        """Start what has the next turn and return it; None if nothing may start."""
        queue = self._ahead if self._ahead.by_tenant else self._queue
        if not queue.by_tenant or len(self._running) >= self.max_running:
            return None
        entry = queue.pop(self.weight_of)
        self._running.add(entry)
        return entry
