"""The stage in which calls of a server with `max_calls` wait for their turn."""

from __future__ import annotations

import asyncio
import sys
from contextvars import copy_context

from leaseway.data_plane.calls.call import ActiveCall
from leaseway.data_plane.core.calls.turns import Turns
from leaseway.wire.signals import Signal


class TurnStage:
    """Lets as many calls at a time pass to an instance as its server takes; tenants take turns.

    Args:
        reconfigured: Announces that the limits of servers may have changed.
    """

    def __init__(self, reconfigured: Signal[()]) -> None:
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()  # of no caller: one call's end gives another its turn
        self._waiting: dict[ActiveCall, None] = {}  # the newest last
        reconfigured.connect(self._apply_limits)

    def __len__(self) -> int:
        """Return how many calls wait."""
        return len(self._waiting)

    def enter(self, active: ActiveCall) -> bool:
        """Let a call pass if it may run now."""
        if _turns_of(active).add(active, active.call.tenant):
            return True
        self._waiting[active] = None
        active.event("waiting for its turn")
        return False

    def leave(self, active: ActiveCall, turns: Turns) -> None:
        """End the turn of a call that has ended, or its wait for one."""
        self._waiting.pop(active, None)
        turns.remove(active, active.call.tenant)
        self._start_next_soon(turns)

    def _apply_limits(self) -> None:
        """Let the calls that wait run as far as the newest limits allow."""
        for turns in {_turns_of(active) for active in self._waiting}:
            self._start_next_soon(turns)

    def _start_next_soon(self, turns: Turns) -> None:
        if turns.waiting:
            self._loop.call_soon(self._start_next, turns, context=self._context)

    def _start_next(self, turns: Turns) -> None:
        while (active := turns.start_next()) is not None:
            self._waiting.pop(active, None)
            active.mark("its turn has come")
            active.resume()


def _turns_of(active: ActiveCall) -> Turns:
    """Return the turns on a call's instance, by the newest configuration of its server."""
    live, spec = active.live, active.generation.variant.spec
    assert live is not None
    return live.limit_calls(spec.max_calls or sys.maxsize, spec.policy.weight_of)
