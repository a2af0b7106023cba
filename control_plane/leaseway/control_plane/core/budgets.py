"""Leases the budgets of limits to workers, so that a limit holds over the fleet. Pure.

A budget of calls per time is a window: it begins with the first request after the previous one has
ended, and all that is left of it, wherever it lies, ends with it. So the share of a lost worker
returns within one period, without any message. A budget of concurrent calls is a number of slots,
which workers return; those of a lost worker are free at once.

The budgets die with the control plane. Workers tell the next one what they have, and for a moment
after its start it waits for that instead of leasing out what may be spent
(design.md#limits-over-the-fleet).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from leaseway.wire.bounds import MAX_BUDGETS
from leaseway.wire.limits import BudgetKey

RESTORE_TIME: Final = 3.0
"""Seconds in which the workers of an earlier control plane tell this one what they have."""
_FREE_SLOT_RETRY: Final = 0.1
_SPREAD: Final = 8
"""What a worker expects to need is leased up to the rest of the budget, divided by this and by the
number of workers: so that the last permits are not where no calls are."""


@dataclass(frozen=True, slots=True)
class BudgetAsk:
    """A worker's request.

    Attributes:
        limit: The permits of a window, or the slots.
        period: Seconds of a window; 0 means slots.
        needed: Permits for calls that wait.
        expected: Further permits that the worker expects to use soon.
        returned: Slots that it returns.
        held: What it has of the window or of the slots, told to a control plane that may not know.
        renews_in: Seconds to the end of the window that `held` belongs to.
    """

    key: BudgetKey
    limit: int
    period: float
    needed: int = 0
    expected: int = 0
    returned: int = 0
    held: int = 0
    renews_in: float = 0.0


@dataclass(frozen=True, slots=True)
class BudgetGrant:
    """The answer.

    Attributes:
        granted: Permits, at most those that were needed and expected.
        remaining: What is left for all workers.
        renews_in: Seconds to the end of the window; 0 for slots.
        retry_in: Seconds in which to ask for no more; 0 means none.
    """

    key: BudgetKey
    granted: int
    remaining: int
    renews_in: float
    retry_in: float


@dataclass(slots=True)
class _Budget:
    """What workers have of one limit; slots never end."""

    ends: float
    held: dict[str, int] = field(default_factory=dict)

    @property
    def leased(self) -> int:
        return sum(self.held.values())


class Budgets:
    """The budgets of all limits.

    Args:
        now: The time of the start.
    """

    def __init__(self, now: float) -> None:
        self._restored_at = now + RESTORE_TIME
        self._restores = False
        self._budgets: OrderedDict[BudgetKey, _Budget] = OrderedDict()

    def handle_joined(self, worker_id: str, *, had_leader: bool) -> None:
        """Free the slots of a worker that joins anew: it tells which it still uses.

        Args:
            worker_id: The worker.
            had_leader: Whether an earlier control plane may have leased budget to it.
        """
        self._restores = self._restores or had_leader
        for budget in self._budgets.values():
            if math.isinf(budget.ends):
                budget.held.pop(worker_id, None)

    def ask(
        self, worker_id: str, ask: BudgetAsk, workers: Collection[str], now: float
    ) -> BudgetGrant:
        """Grant what a worker asks for, as far as it is left.

        Args:
            worker_id: The worker.
            ask: What it asks for.
            workers: All workers that are not lost.
            now: The time.
        """
        budget = self._find(ask, now)
        if ask.held:
            self._restore(budget, worker_id, ask, now)
        if ask.period:
            retry_in = budget.ends - now
        else:
            retry_in = _FREE_SLOT_RETRY
            self._free(budget, worker_id, ask.returned, workers)
        left = max(0, ask.limit - budget.leased)
        restoring = self._restored_at - now if self._restores else 0.0
        if restoring > 0:
            left, retry_in = 0, min(restoring, retry_in)
        granted = min(ask.needed, left)
        left -= granted
        granted_early = min(ask.expected, left // (_SPREAD * max(1, len(workers))))
        if granted + granted_early:
            budget.held[worker_id] = budget.held.get(worker_id, 0) + granted + granted_early
        return BudgetGrant(
            key=ask.key,
            granted=granted + granted_early,
            remaining=left - granted_early,
            renews_in=budget.ends - now if ask.period else 0.0,
            retry_in=retry_in if granted < ask.needed else 0.0,
        )

    def _find(self, ask: BudgetAsk, now: float) -> _Budget:
        budget = self._budgets.get(ask.key)
        ends = now + ask.period if ask.period else math.inf
        if budget is None or budget.ends <= now or math.isinf(budget.ends) != math.isinf(ends):
            budget = self._budgets[ask.key] = _Budget(ends)
            self._budgets.move_to_end(ask.key)
            self._forget(now)
        # A period that the configuration has made shorter holds for the open window too.
        budget.ends = min(budget.ends, ends)
        return budget

    def _forget(self, now: float) -> None:
        """Drop the oldest windows that have ended, and the oldest budget if there are too many."""
        while len(self._budgets) > MAX_BUDGETS or next(iter(self._budgets.values())).ends <= now:
            self._budgets.popitem(last=False)

    def _restore(self, budget: _Budget, worker_id: str, ask: BudgetAsk, now: float) -> None:
        if ask.period and not budget.held:
            budget.ends = now + min(ask.renews_in, ask.period)
        elif ask.period:
            budget.ends = max(budget.ends, now + min(ask.renews_in, ask.period))
        budget.held[worker_id] = max(budget.held.get(worker_id, 0), ask.held)

    def _free(
        self, budget: _Budget, worker_id: str, returned: int, workers: Collection[str]
    ) -> None:
        left = budget.held.get(worker_id, 0) - returned
        budget.held[worker_id] = max(0, left)
        for holder in [
            name for name, held in budget.held.items() if not held or name not in workers
        ]:
            del budget.held[holder]

    def __len__(self) -> int:
        return len(self._budgets)
