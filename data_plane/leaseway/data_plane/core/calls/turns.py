"""Fair turns between tenants: a queue, and the calls on an instance with `max_calls`. Pure."""

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


class CallTurns:
    """The running calls of one instance and the calls that wait for one of them to end.

    Attributes:
        max_running: How many calls may run at once, at least 1. May change at any time.
        weight_of: The weight of a tenant, at least 1. May change at any time.
    """

    def __init__(self, max_running: int, weight_of: Callable[[str], float]) -> None:
        self.max_running = max_running
        self.weight_of = weight_of
        self._running: set[Hashable] = set()
        self._queue = FairQueue()

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> bool:
        """Whether any call waits."""
        return bool(self._queue.by_tenant)

    def add(self, call: Hashable, tenant: str) -> bool:
        """Add a call; return whether it runs. Otherwise `start_next` returns it later."""
        if call in self._running:
            return True
        if not self._queue.by_tenant and len(self._running) < self.max_running:
            self._running.add(call)
            return True
        self._queue.add(call, tenant)
        return False

    def remove(self, call: Hashable, tenant: str) -> None:
        """Remove a call that has ended, running or waiting; unknown calls are ignored."""
        if call in self._running:
            self._running.discard(call)
        else:
            self._queue.remove(call, tenant)

    def start_next(self) -> Any:
        """Start the next waiting call and return it; None if none waits or the limit is reached."""
        if not self._queue.by_tenant or len(self._running) >= self.max_running:
            return None
        call = self._queue.pop(self.weight_of)
        self._running.add(call)
        return call
