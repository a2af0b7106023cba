"""This worker's shares of the limits that hold over the fleet (design.md#limits-over-the-fleet).

A call takes a permit that this worker has. If it has none left, it asks the control plane, unless
that has said when there is one again. Without a control plane each worker has an equal part of
every limit; that part begins when the window ends that the lost control plane has shared out.

Pure: time is a parameter.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from leaseway.wire.bounds import MAX_BUDGETS
from leaseway.wire.limits import BudgetAsk, BudgetGrant, BudgetKey

SLICE: Final = 0.5
"""Seconds of demand that a worker asks for at a time."""
PERMIT_WAIT: Final = 1.0
"""Seconds for which a call waits for the control plane's answer."""
_SLOT_RETRY: Final = 0.1
_ASK: Final = -1.0


@dataclass(frozen=True, slots=True)
class Fleet:
    """The workers that share the limits.

    Attributes:
        workers: Their number.
        position: This worker's place among them.
        lost_at: When the control plane was lost; None while it is connected.
    """

    workers: int
    position: int
    lost_at: float | None = None

    def share_of(self, limit: int) -> int:
        """Return this worker's part of a limit; the parts of all workers add up to it."""
        return limit // self.workers + (self.position < limit % self.workers)


@dataclass(frozen=True, slots=True)
class Demand:
    """A limit that a call counts against.

    Attributes:
        period: Seconds; 0 for calls at once.
    """

    key: BudgetKey
    limit: int
    period: float = 0.0

    def ask(
        self,
        *,
        needed: int = 0,
        expected: int = 0,
        returned: int = 0,
        held: int = 0,
        renews_in: float = 0.0,
    ) -> BudgetAsk:
        """Return a request to the control plane about this limit; see `BudgetAsk`."""
        return BudgetAsk(
            key=self.key,
            limit=self.limit,
            period=self.period,
            needed=needed,
            expected=expected,
            returned=returned,
            held=held,
            renews_in=renews_in,
        )


class PermitNeeded(Exception):
    """A call has to wait for permits of a limit."""

    def __init__(self, demand: Demand) -> None:
        super().__init__(f"a permit for {demand.key} is needed")
        self.demand = demand


class LimitReached(Exception):
    """A limit is used up.

    Attributes:
        demand: The limit.
        wait: Seconds until there may be a permit.
    """

    def __init__(self, demand: Demand, wait: float) -> None:
        super().__init__(f"the limit {demand.key} is used up")
        self.demand = demand
        self.wait = wait


@dataclass(slots=True)
class _Share:
    """What this worker has of one limit.

    Attributes:
        left: Permits that no call has taken.
        used: Permits that calls have taken in the window, or take now.
        peak: Of `used`, since slots were last returned.
        ends: When the window ends, or the last one has ended.
        blocked_until: Until when the control plane refuses more.
        taken: Permits taken since the last grant.
        remaining: What all workers had left at the last answer.
    """

    demand: Demand
    left: int = 0
    used: int = 0
    peak: int = 0
    ends: float = float("-inf")
    blocked_until: float = float("-inf")
    granted_at: float = float("-inf")
    taken: int = 0
    remaining: int = 0


class PermitsPort(Protocol):
    """Gets permits from the control plane.

    Attributes:
        budgets: What this worker has.
    """

    budgets: WorkerBudgets

    async def get(self, demand: Demand, until: float) -> None:
        """Wait for the answer to a request for permits, for which the caller then tries again.

        Args:
            demand: The limit.
            until: When to stop waiting, by the clock of the event loop.

        Raises:
            Fault: RATE_LIMITED: there is no answer.
        """


class WorkerBudgets:
    """All shares of this worker.

    Attributes:
        fleet: The workers that share the limits, or None: then there are no budgets.
    """

    def __init__(self) -> None:
        self.fleet: Fleet | None = None
        self._shares: OrderedDict[BudgetKey, _Share] = OrderedDict()

    def join(self, fleet: Fleet | None, now: float) -> list[BudgetAsk]:
        """Begin with a control plane that has welcomed this worker; return what to tell it.

        Args:
            fleet: The workers, or None if that control plane leases no budgets.
            now: The time.
        """
        self.fleet = fleet
        told = []
        for share in self._shares.values():
            share.blocked_until = now
            if not share.demand.period:
                share.left = 0
            elif share.ends <= now:
                continue
            elif share.granted_at < share.ends - share.demand.period:
                share.left = 0  # this worker has opened the window alone
            held = share.used + share.left
            if held:
                renews_in = share.ends - now if share.demand.period else 0.0
                told.append(share.demand.ask(held=held, renews_in=renews_in))
        return told

    def lose(self, now: float) -> None:
        """Note that the control plane is lost."""
        if self.fleet is not None and self.fleet.lost_at is None:
            self.fleet = Fleet(self.fleet.workers, self.fleet.position, now)

    def update_fleet(self, fleet: Fleet) -> None:
        """Note the workers that share the limits now."""
        self.fleet = fleet

    def take(self, demands: list[Demand], now: float) -> None:
        """Take a permit of each limit, or none.

        Raises:
            LimitReached: One is used up.
            PermitNeeded: The control plane must be asked.
        """
        shares = [self._open(demand, now) for demand in demands]
        needed = None
        for share in shares:
            wait = self._wait(share, now)
            if wait > 0:
                raise LimitReached(share.demand, wait)
            if wait < 0:
                needed = needed or share.demand
        if needed is not None:
            raise PermitNeeded(needed)
        for share in shares:
            share.left -= 1
            share.used += 1
            share.taken += 1
            share.peak = max(share.peak, share.used)

    def end_call(self, tenant: str) -> None:
        """Free the slot of a call that has ended."""
        share = self._shares.get(BudgetKey(tenant, "concurrent"))
        if share is not None and share.used:
            share.used -= 1
            share.left += 1

    def remaining(self, key: BudgetKey) -> int:
        """Return what all workers had left when the control plane last answered."""
        share = self._shares.get(key)
        return share.remaining if share is not None else 0

    def ask(self, demand: Demand, waiting: int, now: float) -> BudgetAsk:
        """Return the request for permits of the calls that wait, and of those to come soon.

        Args:
            demand: The limit.
            waiting: Calls that wait for a permit.
            now: The time.
        """
        share = self._open(demand, now)
        needed = waiting + max(0, -share.left)
        expected = 0
        if demand.period:
            expected = int(share.taken * SLICE / max(now - share.granted_at, SLICE / 4))
        return demand.ask(needed=needed, expected=expected)

    def handle_grant(self, grant: BudgetGrant, now: float) -> None:
        """Add permits that the control plane has granted."""
        share = self._shares.get(grant.key)
        if share is None:
            return  # forgotten meanwhile
        if share.demand.period:
            ends = now + grant.renews_in
            if share.ends <= now or ends > share.ends + share.demand.period / 2:
                share.left = share.used = 0  # another window
            share.ends = ends
        share.left += grant.granted
        share.remaining = grant.remaining
        share.blocked_until = now + grant.retry_in
        share.granted_at = now
        share.taken = 0

    def idle_slots(self) -> Iterator[BudgetAsk]:
        """Return the slots that no call has used since the last time."""
        if self.fleet is None or self.fleet.lost_at is not None:
            return
        for share in self._shares.values():
            if share.demand.period:
                continue
            idle = share.left - (share.peak - share.used)
            share.peak = share.used
            if idle > 0:
                share.left -= idle
                yield share.demand.ask(returned=idle)

    def _open(self, demand: Demand, now: float) -> _Share:
        """Return the share of a limit in the open window."""
        share = self._shares.get(demand.key)
        if share is None:
            share = self._shares[demand.key] = _Share(demand)
            self._forget(now)
        elif share.demand != demand:
            if demand.period:
                share.left = min(share.left, max(0, demand.limit - share.used))
            share.demand = demand
        if demand.period and share.ends <= now:
            share.left = share.used = 0
        return share

    def _forget(self, now: float) -> None:
        """Drop the oldest shares while they count nothing, or while there are too many."""
        while len(self._shares) > 1:
            key, share = next(iter(self._shares.items()))
            is_idle = share.ends <= now if share.demand.period else not (share.used or share.left)
            if not is_idle and len(self._shares) <= MAX_BUDGETS:
                return
            del self._shares[key]

    def _wait(self, share: _Share, now: float) -> float:
        """Return the seconds until there may be a permit: 0 if there is one, -1 if one must ask."""
        fleet = self.fleet
        assert fleet is not None
        if fleet.lost_at is not None:
            return self._wait_alone(share, fleet, fleet.lost_at, now)
        if share.left > 0:
            return 0.0
        return share.blocked_until - now if share.blocked_until > now else _ASK

    def _wait_alone(self, share: _Share, fleet: Fleet, lost_at: float, now: float) -> float:
        demand = share.demand
        part = fleet.share_of(demand.limit)
        if not demand.period:
            return 0.0 if share.used < part else _SLOT_RETRY
        if share.ends > now:
            return 0.0 if share.left > 0 else share.ends - now
        # Others may have used all of a window that this worker does not know.
        begins = share.ends if share.ends > lost_at else lost_at + demand.period
        if begins > now:
            return begins - now
        share.ends = now + demand.period
        share.left = part
        return 0.0 if part else demand.period
