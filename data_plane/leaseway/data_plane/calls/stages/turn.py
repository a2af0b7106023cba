"""The stage in which calls of a server with `max_calls` wait for their turn."""

from __future__ import annotations

import asyncio
from contextvars import copy_context

from leaseway.data_plane.calls.call import ActiveCall
from leaseway.data_plane.core.calls.turns import CallTurns


class TurnStage:
    """Lets as many calls at a time pass to an instance as its server takes; tenants take turns."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()  # of no caller: one call's end gives another its turn
        self._waiting: set[ActiveCall] = set()

    def __len__(self) -> int:
        """Return how many calls wait."""
        return len(self._waiting)

    def enter(self, active: ActiveCall) -> bool:
        """Let a call pass if it may run now."""
        live, spec = active.live, active.generation.variant.spec
        assert live is not None
        turns = live.limit_calls(spec.max_calls or 1, spec.policy.weight_of)
        if turns.add(active, active.call.tenant):
            return True
        self._waiting.add(active)
        active.event("waiting for its turn")
        return False

    def leave(self, active: ActiveCall, turns: CallTurns) -> None:
        """End the turn of a call that has ended, or its wait for one."""
        self._waiting.discard(active)
        turns.remove(active, active.call.tenant)
        if turns.waiting:
            self._loop.call_soon(self._start_next, turns, context=self._context)

    def _start_next(self, turns: CallTurns) -> None:
        while (active := turns.start_next()) is not None:
            self._waiting.discard(active)
            active.mark("its turn has come")
            active.resume()
