"""Deadlines of calls: one timer of the event loop for all calls of a stream or worker.

Nearly every call ends long before its deadline, so separate timers would mostly be set and
cancelled. Here a deadline is pushed onto a heap. Deadlines of ended calls are dropped when they are
due, or all at once when they are the majority.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextvars import Context
from heapq import heapify, heappop, heappush
from typing import Final

_SLACK: Final = 1024
"""Deadlines of ended calls that the heap may contain before they are removed."""


class Deadlines:
    """The deadlines of many calls.

    Args:
        live: The ids of calls that have not ended; ids are never reused.
        expire: Called with the id of a live call whose deadline has passed; must end the call.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        live: Collection[int],
        expire: Callable[[int], None],
    ) -> None:
        self._loop = loop
        self._live = live
        self._expire = expire
        self._heap: list[tuple[float, int]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._wake_at = float("inf")
        self._limit = _SLACK
        self._context = Context()  # one timer after the other: not of the call that set the first

    def add(self, deadline: float, call_id: int) -> None:
        """Add the deadline of a live call, in the event loop's time."""
        heap = self._heap
        heappush(heap, (deadline, call_id))
        if deadline < self._wake_at:
            self._arm(deadline)
        if len(heap) > self._limit:
            self._drop_ended()

    def _drop_ended(self) -> None:
        live = self._live
        self._heap = [entry for entry in self._heap if entry[1] in live]
        heapify(self._heap)
        self._limit = 2 * len(self._heap) + _SLACK

    def close(self) -> None:
        self._heap.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._wake_at = when
        self._timer = self._loop.call_at(when, self._due, context=self._context)

    def _due(self) -> None:
        now = self._loop.time()
        self._timer = None
        self._wake_at = float("inf")
        while self._heap:
            deadline, call_id = self._heap[0]
            if call_id not in self._live:
                heappop(self._heap)
            elif deadline <= now:
                heappop(self._heap)
                self._expire(call_id)
            else:
                self._arm(deadline)
                return
