"""Leases the budgets of limits to workers, so that a limit holds over the fleet. Pure.

A budget of calls per time is a window: it begins with the first request after the previous one has
ended, and all that is left of it, wherever it lies, ends with it. So the share of a lost worker
returns within one period, without any message. A budget of concurrent calls is a number of slots,
which workers return; those of a lost worker are free at once.

The budgets die with the control plane. Workers tell the next one what they have, and it waits until
all of the earlier fleet have told, for a bounded time, instead of leasing out what may be spent. If
some do not return, what the others know of the whole fleet's window stands for them
(design.md#limits-over-the-fleet).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from leaseway.wire.bounds import MAX_BUDGETS
from leaseway.wire.sharing.limits import BudgetAsk, BudgetGrant, BudgetKey

RESTORE_TIME: Final = 3.0
"""Seconds for which workers of an earlier control plane are waited for, to tell what they have."""
_TOLD_RETRY: Final = 0.5
_FREE_SLOT_RETRY: Final = 0.1
_ENDING: Final = 1.0
_ENDING_PART: Final = 0.1
"""A window of which fewer seconds, or a smaller part of its period, are left is not taken over from
a worker: here it may have ended already, and would be followed by two."""
_SPREAD: Final = 8
"""What a worker expects to need is leased up to the rest of the budget, divided by this and by the
number of workers: so that the last permits are not where no calls are."""
_LOOKED_AT: Final = 2
"""Budgets that are looked at for each new one, so that they go faster than new ones come."""


@dataclass(frozen=True, slots=True)
class BudgetUse:
    """What is left of a limit that is in use.

    Attributes:
        limit: The permits of a window, or the slots.
        period: Seconds of a window; 0 means slots.
        remaining: What no worker has.
        renews_in: Seconds to the end of the window; 0 for slots.
    """

    key: BudgetKey
    limit: int
    period: float
    remaining: int
    renews_in: float


class _Budget:
    """What workers have of one limit.

    Args:
        ends: When the window ends; slots never end.

    Attributes:
        ends: As given.
        limit: The permits of the window, or the slots, as last asked for.
        period: The seconds of the window, likewise.
        held: The permits of each worker that has some.
        leased: Their sum, kept because each request needs it.
        known: What the fleet had of the window before this control plane and has got from it, as
            far as workers know; 0 if none has told.
        checked: The generation of the fleet when lost workers were last looked for.
    """

    __slots__ = ("checked", "ends", "held", "known", "leased", "limit", "period")

    def __init__(self, ends: float) -> None:
        self.ends = ends
        self.limit = 0
        self.period = 0.0
        self.held: dict[str, int] = {}
        self.leased = 0
        self.known = 0
        self.checked = -1

    def set(self, worker_id: str, count: int) -> None:
        """Set what a worker has."""
        count = max(0, count)
        self.leased += count - self.held.pop(worker_id, 0)
        if count:
            self.held[worker_id] = count

    def add(self, worker_id: str, count: int) -> None:
        """Change what a worker has."""
        self.set(worker_id, self.held.get(worker_id, 0) + count)
        if self.known:
            self.known = max(0, self.known + count)

    def is_over(self, now: float) -> bool:
        """Return whether it counts nothing any more."""
        return not self.leased if math.isinf(self.ends) else self.ends <= now


class Budgets:
    """The budgets of all limits.

    Args:
        now: The time of the start.
    """

    def __init__(self, now: float) -> None:
        self._restored_at = now + RESTORE_TIME
        self._restores = False
        self._returning: set[str] = set()
        self._told: set[str] = set()
        self._fleet = 0
        self._budgets: OrderedDict[BudgetKey, _Budget] = OrderedDict()

    def handle_joined(self, worker_id: str, *, had_leader: bool) -> None:
        """Free the slots of a worker that joins anew: it tells which it still uses.

        Args:
            had_leader: Whether an earlier control plane may have leased budget to it.
        """
        if had_leader:
            self._restores = True
            self._returning.add(worker_id)
        for budget in self._budgets.values():
            if math.isinf(budget.ends):
                budget.set(worker_id, 0)

    def handle_told(self, worker_id: str, workers: int) -> None:
        """Note that a worker has told what it has of all limits since it joined.

        Args:
            workers: The workers that shared the limits before, as it knows.
        """
        if worker_id in self._returning:
            self._returning.remove(worker_id)
            self._told.add(worker_id)
            self._fleet = max(self._fleet, workers)

    @property
    def _is_whole(self) -> bool:
        """Whether all workers of the earlier fleet have told what they have."""
        return not self._returning and 0 < self._fleet <= len(self._told)

    def ask(
        self,
        worker_id: str,
        ask: BudgetAsk,
        workers: Collection[str],
        generation: int,
        now: float,
    ) -> BudgetGrant:
        """Take back what a worker returns, and grant what it asks for, as far as it is left.

        Args:
            workers: All workers that are not lost.
            generation: A number that changes when the workers do.
            now: The time.
        """
        if ask.returned:
            self._take_back(worker_id, ask, now)
        budget = self._find(ask, now)
        if ask.held or ask.leased:
            self._restore(budget, worker_id, ask, now)
        if ask.period:
            retry_in = budget.ends - now
        else:
            retry_in = _FREE_SLOT_RETRY
            if budget.checked != generation:
                budget.checked = generation
                for lost in [holder for holder in budget.held if holder not in workers]:
                    budget.set(lost, 0)
        left = max(0, ask.limit - self._leased(budget))
        restoring = self._restored_at - now if self._restores else 0.0
        if restoring > 0 and not self._is_whole:
            left, retry_in = 0, min(restoring, retry_in, _TOLD_RETRY)
        granted = min(ask.needed, left)
        left -= granted
        granted_early = min(ask.expected, left // (_SPREAD * max(1, len(workers))))
        if granted + granted_early:
            budget.add(worker_id, granted + granted_early)
        return BudgetGrant(
            key=ask.key,
            granted=granted + granted_early,
            remaining=left - granted_early,
            renews_in=budget.ends - now if ask.period else 0.0,
            retry_in=retry_in if granted < ask.needed else 0.0,
        )

    def _leased(self, budget: _Budget) -> int:
        """Return what workers have of a budget, also those of which only others know."""
        return (
            max(budget.leased, budget.known)
            if self._restores and not self._is_whole
            else (budget.leased)
        )

    def _take_back(self, worker_id: str, ask: BudgetAsk, now: float) -> None:
        budget = self._budgets.get(ask.key)
        if budget is None:
            return
        is_same_window = abs(budget.ends - now - ask.renews_in) < ask.period / 2
        if is_same_window or not ask.period:
            budget.add(worker_id, -ask.returned)

    def _find(self, ask: BudgetAsk, now: float) -> _Budget:
        budget = self._budgets.get(ask.key)
        ends = now + ask.period if ask.period else math.inf
        if budget is None or budget.ends <= now or math.isinf(budget.ends) != math.isinf(ends):
            budget = self._budgets[ask.key] = _Budget(ends)
            self._budgets.move_to_end(ask.key)
            self._forget(now)
        budget.limit, budget.period = ask.limit, ask.period
        # A period that the configuration has made shorter holds for the open window too.
        budget.ends = min(budget.ends, ends)
        return budget

    def _forget(self, now: float) -> None:
        """Drop budgets that count nothing, and another one if there are too many.

        Those in use go to the end: slots or a long window must neither keep ended ones behind
        them, nor be dropped because they are old.
        """
        for _ in range(min(_LOOKED_AT, len(self._budgets) - 1)):
            key, budget = self._budgets.popitem(last=False)
            if not budget.is_over(now):
                self._budgets[key] = budget
        while len(self._budgets) > MAX_BUDGETS:
            self._budgets.popitem(last=False)

    def _restore(self, budget: _Budget, worker_id: str, ask: BudgetAsk, now: float) -> None:
        if ask.period:
            renews_in = min(ask.renews_in, ask.period)
            if renews_in < min(_ENDING, _ENDING_PART * ask.period):
                return
            ends = budget.ends if budget.held or budget.known else now
            budget.ends = max(ends, now + renews_in)
            budget.known = max(budget.known, ask.leased)
        budget.set(worker_id, max(budget.held.get(worker_id, 0), ask.held))

    def uses(self, now: float) -> Iterator[BudgetUse]:
        """Return what is left of each limit of which a worker has something."""
        for key, budget in self._budgets.items():
            leased = self._leased(budget)
            if leased and budget.ends > now:
                left = max(0, budget.limit - leased)
                renews_in = budget.ends - now if budget.period else 0.0
                yield BudgetUse(
                    key=key,
                    limit=budget.limit,
                    period=budget.period,
                    remaining=left,
                    renews_in=renews_in,
                )

    def __len__(self) -> int:
        return len(self._budgets)
