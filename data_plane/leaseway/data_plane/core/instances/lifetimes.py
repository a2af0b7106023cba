"""The lifetimes of instances: maximum age, idle timeout, spares (design.md).

Pure functions of a policy, the instances' times and now, in seconds on a monotonic clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from leaseway.spec.model import InstancePolicy

_SPARE_SHARE: Final = 0.5
"""The part of `max_age` that an instance may spend as a spare; the lease gets the rest."""
_QUIET: Final = 0.05
"""Seconds without a lease of a spare, after which used spares are replaced."""
_LONGEST_PAUSE: Final = 1.0
"""Seconds after the first of several leases at which used spares are replaced in any case."""
_LEFT_KEPT: Final = 60.0
"""Seconds that further surplus spares wait for a lease: a client that gave up soon tries again."""


@dataclass(frozen=True, slots=True)
class InstanceTimes:
    """The times of one instance that decide when it ends.

    Attributes:
        up_since: When it had started.
        idle_since: When its last call ended, or it was assigned to a lease.
        calls: Calls in flight.
    """

    up_since: float
    idle_since: float
    calls: int = 0


@dataclass(frozen=True, slots=True)
class SparePlan:
    """The changes to make to the spares now.

    Attributes:
        close: Indexes of the spares to close.
        start: Whether to start another spare.
        check_at: When to plan again if nothing else happens; infinite for never.
    """

    close: tuple[int, ...]
    start: bool
    check_at: float


@dataclass(frozen=True, slots=True)
class RefillPause:
    """How long the start of new spares waits for leases that take the ready ones.

    Starting a process holds up the worker, and takes a core from all others, while callers wait for
    their leases: the spares of a burst are replaced after it.

    Attributes:
        until: When the next spare may start.
        limit: How long leases can put that off; the spares of a worker that is always busy are
            replaced beside its leases.
    """

    until: float = -math.inf
    limit: float = -math.inf

    def after_lease(self, now: float, *, was_complete: bool) -> RefillPause:
        """Return the pause after a lease has taken a spare.

        Args:
            now: The time.
            was_complete: Whether no spare was missing before. Only then another pause begins.
        """
        if now < self.until:
            return RefillPause(min(now + _QUIET, self.limit), self.limit)
        if was_complete:
            return RefillPause(now + _QUIET, now + _LONGEST_PAUSE)
        return self


def idle_deadline(policy: InstancePolicy, times: InstanceTimes, now: float) -> float:
    """Return the earliest time at which an instance exceeds its idle timeout."""
    if policy.idle_timeout is None:
        return math.inf
    return (now if times.calls else times.idle_since) + policy.idle_timeout


def age_deadline(policy: InstancePolicy, times: InstanceTimes) -> float:
    """Return when an instance exceeds its maximum age."""
    return math.inf if policy.max_age is None else times.up_since + policy.max_age


def spare_age_deadline(policy: InstancePolicy, times: InstanceTimes) -> float:
    """Return when a spare is too old to become the instance of a lease."""
    if policy.max_age is None:
        return math.inf
    return times.up_since + policy.max_age * _SPARE_SHARE


def target_spares(policy: InstancePolicy) -> int:
    """Return how many spares a leased server keeps if there is room."""
    return max(policy.warm, 1 if policy.start == "eager" else 0)


def plan_spares(
    policy: InstancePolicy,
    spares: Sequence[InstanceTimes],
    *,
    starting: int,
    room: int,
    now: float,
    failing: bool = False,
) -> SparePlan:
    """Plan the changes to the spares of one generation.

    An old spare is closed when there are enough young ones, or when a replacement needs its room.
    One surplus spare, from a probe, stays until its idle timeout; further ones, from starts that
    released leases left, for a minute. Leases come first: with negative room, spares are closed.

    Args:
        policy: The server's.
        spares: The spares that have started.
        starting: The number of spares that are starting.
        room: How many more instances `max_instances` allows; negative if there are too many.
        now: The time.
        failing: Whether the newest start failed. Leases are placed on other workers then, so only
            a spare can show that the server starts here again.
    """
    target = max(target_spares(policy), 1 if failing else 0)
    oldest_first = sorted(range(len(spares)), key=lambda index: spares[index].up_since)
    old = [index for index in oldest_first if now >= spare_age_deadline(policy, spares[index])]
    young = [index for index in oldest_first if index not in old]
    close = list(old) if len(young) >= target else []
    ends = {
        index: idle_deadline(policy, spares[index], now)
        for index in young[: max(0, len(young) - target)]
    }
    for index in young[: max(0, len(young) - max(target, 1))]:
        ends[index] = min(ends[index], spares[index].up_since + _LEFT_KEPT)
    close += [index for index, end in ends.items() if now >= end]
    kept = [index for index in (*old, *young) if index not in close]
    missing = target - len(young) - starting
    excess = max(0, -(room + len(close)))
    if missing > 0 and room + len(close) <= 0 and len(set(old) & set(kept)) > excess:
        excess += 1  # an old spare makes room for its replacement
    close += kept[:excess]
    start = missing > 0 and room + len(close) > 0
    deadlines = [math.inf]
    for index in young:
        if index not in close:
            deadlines.append(spare_age_deadline(policy, spares[index]))
            deadlines.append(ends.get(index, math.inf))
    return SparePlan(tuple(close), start, min(deadlines))
