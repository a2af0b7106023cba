"""The stage that checks permissions and rules, in slices of time."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextvars import copy_context
from typing import Final

from leaseway.data_plane.calls.admission import check_rules
from leaseway.data_plane.calls.call import ActiveCall

SLICE: Final = 0.01
"""Seconds that rules may hold up everything else at a time."""


class RulesStage:
    """Evaluates the rules of calls that arrive together, one right after another.

    The CEL library is large: a call evaluated right after another takes a fifth of the time. What
    does not fit into a slice of time waits until other work has had its turn, and from then on
    tenants take turns. Usually everything fits, so the order of arrival is the order of a list.

    Args:
        slice_length: Seconds after which the next evaluation waits for other work.
    """

    def __init__(self, slice_length: float = SLICE) -> None:
        self._slice = slice_length
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()  # of no caller: one callback serves all of them
        self._arrived: list[ActiveCall] = []
        self._queues: dict[str, deque[ActiveCall]] = {}  # by tenant, the next one first
        self._is_scheduled = False

    def enter(self, active: ActiveCall) -> bool:
        """Keep a call until its rules are evaluated."""
        self._arrived.append(active)
        if not self._is_scheduled:
            self._schedule()
        return False

    def _schedule(self) -> None:
        self._is_scheduled = True
        self._loop.call_soon(self._evaluate, context=self._context)

    def _evaluate(self) -> None:
        """Evaluate for one slice of time, then send the calls that may run."""
        slice_end = time.perf_counter() + self._slice
        self._is_scheduled = False
        arrived, self._arrived = self._arrived, []
        passed: list[ActiveCall] = []
        if self._queues:
            self._enqueue(arrived)
            while self._queues:
                self._check(self._pop(), passed)
                if time.perf_counter() >= slice_end:
                    break
        else:
            for done, active in enumerate(arrived, start=1):
                self._check(active, passed)
                if time.perf_counter() >= slice_end:
                    self._enqueue(arrived[done:])
                    break
        if self._queues:
            self._schedule()
        for active in passed:  # only now, so that evaluations follow one another
            active.resume()

    def _check(self, active: ActiveCall, passed: list[ActiveCall]) -> None:
        if active.has_ended:
            return
        try:
            check_rules(active)
        except Exception as error:  # noqa: BLE001 - one call's fault ends that call alone
            active.fail_with(error)
        else:
            passed.append(active)

    def _enqueue(self, calls: list[ActiveCall]) -> None:
        for active in calls:
            self._queues.setdefault(active.call.tenant, deque()).append(active)

    def _pop(self) -> ActiveCall:
        """Return the oldest call of the next tenant, which is the last one afterwards."""
        tenant = next(iter(self._queues))
        queue = self._queues.pop(tenant)
        active = queue.popleft()
        if queue:
            self._queues[tenant] = queue
        return active
