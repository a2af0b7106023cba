"""This worker's shares of the limits that hold over the fleet (design.md#limits-over-the-fleet).

A call takes a permit of each limit that it counts against, or none. If this worker has none left of
some, it asks the control plane, unless that has said when there is one again. Without a control
plane each worker has an equal part of every limit; that part begins when the window ends that the
lost control plane has shared out, and its permits come one after the other: so in no time more
calls pass than the limit and one slice of it. A worker that has never had budgets is a fleet by
itself, and its permits may be used all at once.

Pure: time is a parameter.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from leaseway.spec.policy import OTHER_TENANTS
from leaseway.wire.bounds import MAX_BUDGETS
from leaseway.wire.sharing.limits import BudgetAsk, BudgetGrant, BudgetKey, LimitEntry

SLICE: Final = 0.5
"""Seconds of demand that a worker asks for at a time."""
PERMIT_WAIT: Final = 1.0
"""Seconds for which a call waits for the control plane's answer."""
_SLOT_RETRY: Final = 0.1
_ASK: Final = -1.0
_ROUNDING: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Fleet:
    """The workers that share the limits.

    Attributes:
        workers: Their number.
        position: This worker's place among them.
        lost_at: When the control plane was lost; None while it is connected.
        takes_back: Whether the control plane takes back permits of a window.
    """

    workers: int
    position: int
    lost_at: float | None = None
    takes_back: bool = False

    def share_of(self, limit: int) -> int:
        """Return this worker's part of a limit; the parts of all workers add up to it."""
        return limit // self.workers + (self.position < limit % self.workers)


_ALONE: Final = Fleet(1, 0, float("-inf"))


@dataclass(frozen=True, slots=True)
class Demand:
    """A limit that a call counts against.

    Attributes:
        period: Seconds; 0 for calls at once.
        of_others: Whether it is set for all tenants without an entry, for each of them.
    """

    key: BudgetKey
    limit: int
    period: float = 0.0
    of_others: bool = False

    @property
    def entry(self) -> LimitEntry:
        """The entry of the configuration that sets it."""
        key = self.key
        tenant = OTHER_TENANTS if self.of_others else key.tenant
        return LimitEntry(tenant, key.agent, key.server_id, key.tool)

    def ask(
        self,
        *,
        needed: int = 0,
        expected: int = 0,
        returned: int = 0,
        held: int = 0,
        renews_in: float = 0.0,
        leased: int = 0,
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
            leased=leased,
        )


class PermitNeeded(Exception):
    """A call has to wait for permits of limits."""

    def __init__(self, demands: Sequence[Demand]) -> None:
        super().__init__(f"permits for {[demand.key for demand in demands]} are needed")
        self.demands = demands


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


class Meter:
    """The limits that calls of one kind count against, and where this worker's shares of them are.

    Args:
        demands: The limits.
    """

    __slots__ = ("demands", "epoch", "shares")

    def __init__(self, demands: tuple[Demand, ...]) -> None:
        self.demands = demands
        self.epoch = 0  # of the shares; see `WorkerBudgets`
        self.shares: tuple[_Share, ...] = ()


@dataclass(slots=True)
class _Share:
    """What this worker has of one limit.

    Attributes:
        left: Permits that no call has taken.
        used: Permits that calls have taken in the window, or take now.
        peak: Of `used`, since idle permits were last returned.
        seen: `used` of a window when idle permits were last returned; -1 after a grant.
        is_asked: Whether the control plane has been asked and has not answered.
        ends: When the window ends, or the last one has ended; slots never end.
        is_own: Whether this worker has opened the window without a control plane.
        full_at: When all permits of its own windows are there again.
        blocked_until: Until when the control plane refuses more.
        used_before: `used` at the last grant.
        pace: Calls a second at the end of the last window.
        remaining: What all workers had left at the last answer.
        given_back: Permits of an earlier limit, which go back to the control plane.
        excess: Slots of an earlier limit that calls use, and that go back as these end.
    """

    demand: Demand
    left: int = 0
    used: int = 0
    peak: int = 0
    seen: int = 0
    is_asked: bool = False
    ends: float = float("-inf")
    is_own: bool = False
    full_at: float = float("-inf")
    blocked_until: float = float("-inf")
    granted_at: float = float("-inf")
    used_before: int = 0
    pace: float = 0.0
    remaining: int = 0
    given_back: int = 0
    excess: int = 0

    def take(self) -> None:
        """Count a call."""
        self.left -= 1
        used = self.used = self.used + 1
        if used > self.peak:
            self.peak = used

    def empty(self) -> None:
        """Begin with a window of which this worker has nothing."""
        self.left = self.used = self.used_before = self.given_back = 0

    def taken_since_grant(self, until: float) -> float:
        """Return how many calls a second have come since the last grant."""
        return (self.used - self.used_before) / max(until - self.granted_at, SLICE / 4)

    def leased(self) -> int:
        """Return what all workers had of the open window at the last answer."""
        is_known = self.demand.period and not self.is_own
        return max(0, self.demand.limit - self.remaining) if is_known else 0

    def change(self, demand: Demand, now: float) -> None:
        """Begin with a limit that the configuration has changed.

        What the earlier one has left goes back, so that no worker keeps more than the new one
        allows; and a limit that was used up may have permits again.
        """
        self.demand = demand
        if demand.period:
            self.ends = min(self.ends, now + demand.period)
        else:
            self.excess = max(0, self.used + min(0, self.left))
        self.given_back += max(0, self.left)
        self.left = min(0, self.left)
        self.blocked_until = now

    def is_over(self, now: float) -> bool:
        """Return whether it counts nothing any more, and nothing is about to be granted."""
        if self.is_asked:
            return False
        if self.demand.period:
            return max(self.ends, self.full_at) <= now
        return not (self.used or self.left)


class PermitsPort(Protocol):
    """Gets permits from the control plane.

    Attributes:
        budgets: What this worker has.
    """

    budgets: WorkerBudgets

    async def get(self, demands: Sequence[Demand], until: float) -> None:
        """Wait for the answers to requests for permits, for which the caller then tries again.

        Args:
            demands: The limits.
            until: When to stop waiting, by the clock of the event loop.

        Raises:
            Fault: RATE_LIMITED: there is no answer.
        """


class WorkerBudgets:
    """All shares of this worker.

    Attributes:
        fleet: The workers that share the limits, or None: then they hold on this worker alone.
    """

    def __init__(self) -> None:
        self.fleet: Fleet | None = None
        self._is_sharing = False  # with a control plane, which grants what this worker may take
        self._shares: OrderedDict[BudgetKey, _Share] = OrderedDict()
        self._epoch = 1  # another one begins when meters must look for their shares again

    def join(self, fleet: Fleet | None, now: float) -> list[BudgetAsk]:
        """Begin with a control plane that has welcomed this worker; return what to tell it.

        Args:
            fleet: The workers, or None if that control plane leases no budgets.
            now: The time.
        """
        self.set_fleet(fleet)
        told = []
        for share in self._shares.values():
            share.blocked_until = now
            share.is_asked = False
            share.given_back = share.excess = 0
            if not share.demand.period:
                share.left = 0
            elif share.ends <= now:
                continue
            held, leased = share.used + share.left, share.leased()
            if held or leased:
                renews_in = share.ends - now if share.demand.period else 0.0
                told.append(share.demand.ask(held=held, renews_in=renews_in, leased=leased))
        return told

    def lose(self, now: float) -> None:
        """Note that the control plane is lost."""
        if self.fleet is not None and self.fleet.lost_at is None:
            self.set_fleet(replace(self.fleet, lost_at=now))

    def set_fleet(self, fleet: Fleet | None) -> None:
        """Note the workers that share the limits now; None if no control plane leases any."""
        self.fleet = fleet
        self._is_sharing = fleet is not None and fleet.lost_at is None
        self._epoch += 1

    def take(self, demands: Sequence[Demand], now: float) -> None:
        """Take a permit of each limit, or none.

        Raises:
            LimitReached: One is used up; of some, the one for which to wait longest.
            PermitNeeded: The control plane must be asked.
        """
        known = len(self._shares)
        shares = [self._open(demand, now) for demand in demands]
        if len(self._shares) > known:
            self._forget(shares, now)
        needed = []
        longest, reached = 0.0, None
        for share in shares:
            wait = self._wait(share, now)
            if wait > longest:
                longest, reached = wait, share.demand
            elif wait < 0:
                needed.append(share.demand)
        if reached is not None:
            raise LimitReached(reached, longest)
        if needed:
            raise PermitNeeded(needed)
        for share in shares:
            self._take_one(share, now)

    def take_granted(self, meter: Meter, now: float) -> bool:
        """Take a permit of each limit if this worker has one of each: what most calls do."""
        if meter.epoch != self._epoch and not self._find_shares(meter):
            return False
        for share in meter.shares:
            if share.left <= 0 or share.ends <= now:
                _put_back(meter.shares, share)
                return False
            share.left -= 1  # `_Share.take`, without a function call
            used = share.used = share.used + 1
            if used > share.peak:
                share.peak = used
        return True

    def _find_shares(self, meter: Meter) -> bool:
        """Let a meter know its shares; return False if this worker does not have all of them."""
        if not self._is_sharing:
            return False
        shares = []
        for demand in meter.demands:
            share = self._shares.get(demand.key)
            if share is None or share.demand is not demand:
                return False
            shares.append(share)
        meter.shares, meter.epoch = tuple(shares), self._epoch
        return True

    def end_call(self, slots: Iterable[BudgetKey]) -> None:
        """Free the slots of a call that has ended."""
        for key in slots:
            share = self._shares.get(key)
            if share is not None and share.used:
                share.used -= 1
                if share.excess:
                    share.excess -= 1
                    share.given_back += 1
                else:
                    share.left += 1

    def remaining(self, key: BudgetKey) -> int:
        """Return what all workers had left when the control plane last answered; 0 without one."""
        share, fleet = self._shares.get(key), self.fleet
        is_shared = share is not None and fleet is not None and fleet.lost_at is None
        return share.remaining if share is not None and is_shared else 0

    def slots_in_use(self) -> Iterator[tuple[BudgetKey, int]]:
        """Return how many calls each limit of calls at once counts now."""
        for key, share in self._shares.items():
            if not share.demand.period and share.used:
                yield key, share.used

    def ask(self, demand: Demand, waiting: int, now: float) -> BudgetAsk:
        """Return the request for permits of the calls that wait, and of those to come soon.

        Args:
            demand: The limit.
            waiting: Calls that wait for a permit.
            now: The time.
        """
        share = self._open(demand, now)
        share.is_asked = True
        needed = waiting + max(0, -share.left)
        expected = 0
        if demand.period:
            pace = share.taken_since_grant(now)
            if share.ends <= now < share.ends + SLICE:  # a window begins as the last one ended
                pace = max(pace, share.pace)
            expected = int(pace * SLICE)
        returned, renews_in = self._given_back(share, now)
        return demand.ask(needed=needed, expected=expected, returned=returned, renews_in=renews_in)

    def _given_back(self, share: _Share, now: float) -> tuple[int, float]:
        """Return what goes back of an earlier limit, and the time to the end of its window."""
        returned, share.given_back = share.given_back, 0
        if not share.demand.period:
            return returned, 0.0
        renews_in = share.ends - now
        is_taken = self.fleet is not None and self.fleet.takes_back and renews_in > 0
        return (returned, renews_in) if returned and is_taken else (0, 0.0)

    def handle_grant(self, grant: BudgetGrant, now: float) -> None:
        """Add permits that the control plane has granted."""
        share = self._shares.get(grant.key)
        if share is None:
            return  # forgotten meanwhile
        if share.demand.period:
            ends = now + grant.renews_in
            if share.ends <= now or ends > share.ends + share.demand.period / 2:
                share.empty()  # another window
            share.ends, share.is_own = ends, False
        share.is_asked = False
        share.left += grant.granted
        share.seen = -1
        share.remaining = grant.remaining
        share.blocked_until = now + grant.retry_in
        share.granted_at = now
        share.used_before = share.used

    def idle_permits(self, now: float) -> Iterator[BudgetAsk]:
        """Return what gives back the permits that no call has used since the last time."""
        fleet = self.fleet
        if fleet is None or fleet.lost_at is not None:
            return
        for share in self._shares.values():
            if share.demand.period:
                idle = share.left if share.seen == share.used else 0
                share.seen = share.used
            else:
                idle = share.left - (share.peak - share.used)
                share.peak = share.used
            if idle > 0 and (fleet.takes_back or not share.demand.period):
                share.left -= idle
                share.given_back += idle
            if share.given_back:
                returned, renews_in = self._given_back(share, now)
                if returned:
                    yield share.demand.ask(returned=returned, renews_in=renews_in)

    def _open(self, demand: Demand, now: float) -> _Share:
        """Return the share of a limit in the open window."""
        share = self._shares.get(demand.key)
        if share is None:
            ends = float("-inf") if demand.period else float("inf")
            share = self._shares[demand.key] = _Share(demand, ends=ends)
        elif share.demand is not demand:
            self._epoch += 1
            if share.demand == demand:
                share.demand = demand  # of another policy, or of a configuration read again
            else:
                share.change(demand, now)
        if demand.period and share.ends <= now:
            if share.used:
                share.pace = share.taken_since_grant(share.ends)
            share.empty()
            share.is_own = False
        return share

    def _forget(self, needed: Sequence[_Share], now: float) -> None:
        """Drop shares that count nothing, and others if there are too many.

        Those in use go to the end: slots or a long window must neither keep ended ones behind
        them, nor be dropped because they are old.
        """
        for _ in range(min(2 * len(needed), len(self._shares))):
            key, share = self._shares.popitem(last=False)
            if not share.is_over(now) or any(share is other for other in needed):
                self._shares[key] = share
            else:
                self._epoch += 1
        while len(self._shares) > MAX_BUDGETS:
            key, share = self._shares.popitem(last=False)
            if any(share is other for other in needed):
                self._shares[key] = share
            else:
                self._epoch += 1

    def _wait(self, share: _Share, now: float) -> float:
        """Return the seconds until there may be a permit: 0 if there is one, -1 if one must ask."""
        fleet = self.fleet or _ALONE
        if fleet.lost_at is not None:
            return _wait_alone(share, fleet, fleet.lost_at, now)
        if share.left > 0:
            return 0.0
        return share.blocked_until - now if share.blocked_until > now else _ASK

    def _take_one(self, share: _Share, now: float) -> None:
        """Take a permit for which there is nothing to wait."""
        fleet, demand = self.fleet or _ALONE, share.demand
        share.take()
        if fleet.lost_at is not None and demand.period and (share.is_own or share.ends <= now):
            if share.ends <= now:
                share.ends, share.is_own = now + demand.period, True
            part = fleet.share_of(demand.limit)
            share.full_at = max(share.full_at, now) + demand.period / part
            share.left += 1  # it is of this worker's own


def _put_back(shares: Iterable[_Share], lacking: _Share) -> None:
    """Put back the permits that a call has taken before it reached a limit that lacks one.

    The peak stays, as if a call had ended at once: it only delays the return of a slot.
    """
    for share in shares:
        if share is lacking:
            return
        share.left += 1
        share.used -= 1


def _wait_alone(share: _Share, fleet: Fleet, lost_at: float, now: float) -> float:
    """Return the seconds until a worker without a control plane has a permit; 0 if it has one."""
    demand = share.demand
    part = fleet.share_of(demand.limit)
    if not demand.period:
        return 0.0 if share.used < part else _SLOT_RETRY
    if share.ends > now and not share.is_own:  # the control plane has shared out this window
        return 0.0 if share.left > 0 else share.ends - now
    # Others may have used all of a window that this worker does not know.
    begins = share.ends if share.ends > lost_at else lost_at + demand.period
    if begins > now and not share.is_own:
        return begins - now
    if not part:
        return demand.period
    interval = demand.period / part
    at_once = demand.period if fleet is _ALONE else max(interval, min(SLICE, demand.period))
    wait = max(share.full_at, now) + interval - now - at_once
    return wait if wait > interval * _ROUNDING else 0.0
