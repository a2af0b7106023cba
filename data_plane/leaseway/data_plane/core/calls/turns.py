"""Fair turns between tenants for calls on an instance with `max_calls`. Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Final

_FORGET_AT: Final = 256
"""Idle tenants whose next turn is remembered."""


class CallTurns:
    """The running calls of one instance and the calls that wait for one of them to end.

    Start-time fair queuing, each call being one unit: the next turn goes to the tenant that has
    had the least work since it started to wait, divided by its weight. A tenant that sends a
    thousand calls at once gets one turn for each turn of another tenant of the same weight.

    Attributes:
        max_running: How many calls may run at once, at least 1. May change at any time.
        weight_of: The weight of a tenant, at least 1. May change at any time.
    """

    def __init__(self, max_running: int, weight_of: Callable[[str], float]) -> None:
        self.max_running = max_running
        self.weight_of = weight_of
        self._running: set[Hashable] = set()
        self._queues: dict[str, dict[Any, None]] = {}
        # When each tenant's next turn starts, in turns of a tenant of weight 1.
        self._next_turn: dict[str, float] = {}
        self._now = 0.0

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> bool:
        """Whether any call waits."""
        return bool(self._queues)

    def add(self, call: Hashable, tenant: str) -> bool:
        """Add a call; return whether it runs. Otherwise `start_next` returns it later."""
        if call in self._running:
            return True
        if not self._queues and len(self._running) < self.max_running:
            self._running.add(call)
            return True
        queue = self._queues.get(tenant)
        if queue is None:
            queue = self._queues[tenant] = {}
            self._next_turn[tenant] = max(self._next_turn.get(tenant, 0.0), self._now)
        queue[call] = None
        return False

    def remove(self, call: Hashable, tenant: str) -> None:
        """Remove a call that has ended, running or waiting; unknown calls are ignored."""
        if call in self._running:
            self._running.discard(call)
            return
        queue = self._queues.get(tenant)
        if queue is not None:
            queue.pop(call, None)
            if not queue:
                self._remove_queue(tenant)

    def start_next(self) -> Any:
        """Start the next waiting call and return it; None if none waits or the limit is reached."""
        if not self._queues or len(self._running) >= self.max_running:
            return None
        tenant = min(self._queues, key=self._next_turn.__getitem__)
        queue = self._queues[tenant]
        call = next(iter(queue))
        del queue[call]
        self._now = self._next_turn[tenant]
        self._next_turn[tenant] = self._now + 1 / self.weight_of(tenant)
        if not queue:
            self._remove_queue(tenant)
        self._running.add(call)
        return call

    def _remove_queue(self, tenant: str) -> None:
        del self._queues[tenant]
        if not self._queues:
            self._next_turn.clear()
            self._now = 0.0
        elif len(self._next_turn) > _FORGET_AT + len(self._queues):
            self._next_turn = {
                name: start
                for name, start in self._next_turn.items()
                if name in self._queues or start > self._now
            }
