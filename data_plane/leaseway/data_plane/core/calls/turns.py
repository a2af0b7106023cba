"""Whose call runs next on an instance that may run no more at once: tenants take turns. Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Final

_FORGET_AT: Final = 256
"""Tenants whose turns are remembered before those that are owed nothing are forgotten."""


class CallTurns:
    """The calls that run on one instance, and those that wait for one of them to end.

    The next turn is that of the tenant that has had the least work done since it began to wait,
    by its weight (start-time fair queuing, each call being one unit): so a tenant that sends a
    thousand calls at once has one turn where a tenant of the same weight that sends one has one.

    Attributes:
        most: How many may run at once, at least 1. It may be changed at any time.
        weight_of: How many turns a tenant has next to others, at least 1; likewise.
    """

    def __init__(self) -> None:
        self.most = 1
        self.weight_of: Callable[[str], float] = _one
        self._running: set[Hashable] = set()
        self._lines: dict[str, dict[Any, None]] = {}
        # When the next turn of each tenant begins, in turns of a tenant of weight 1.
        self._begins: dict[str, float] = {}
        self._now = 0.0

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> bool:
        """Whether anybody waits."""
        return bool(self._lines)

    def begin(self, call: Hashable, tenant: str) -> bool:
        """Take a call; return whether it runs at once. Otherwise `next` returns it later."""
        if not self._lines and len(self._running) < self.most:
            self._running.add(call)
            return True
        line = self._lines.get(tenant)
        if line is None:
            line = self._lines[tenant] = {}
            self._begins[tenant] = max(self._begins.get(tenant, 0.0), self._now)
        line[call] = None
        return False

    def end(self, call: Hashable, tenant: str) -> None:
        """Note that a call has ended, whether it ran or waited; one that is unknown is ignored."""
        if call in self._running:
            self._running.discard(call)
            return
        line = self._lines.get(tenant)
        if line is not None:
            line.pop(call, None)
            if not line:
                self._left(tenant)

    def next(self) -> Any:
        """Return the waiting call that runs now; None where none waits or as many as may run."""
        if not self._lines or len(self._running) >= self.most:
            return None
        tenant = min(self._lines, key=self._begins.__getitem__)
        line = self._lines[tenant]
        call = next(iter(line))
        del line[call]
        self._now = self._begins[tenant]
        self._begins[tenant] = self._now + 1 / self.weight_of(tenant)
        if not line:
            self._left(tenant)
        self._running.add(call)
        return call

    def _left(self, tenant: str) -> None:
        """Note that nobody of a tenant waits; what it had is remembered while it matters."""
        del self._lines[tenant]
        if not self._lines:
            self._begins.clear()
            self._now = 0.0
        elif len(self._begins) > _FORGET_AT + len(self._lines):
            self._begins = {
                name: begin
                for name, begin in self._begins.items()
                if name in self._lines or begin > self._now
            }


def _one(tenant: str) -> float:
    return 1
