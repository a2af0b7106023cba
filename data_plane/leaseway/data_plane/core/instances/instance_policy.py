"""How long instances live unused, how old they get, and how many spares there are (DESIGN §§2, 5).

Pure: functions of a policy, the instances' times and now; times are seconds on a monotonic clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from leaseway.spec.model import InstancePolicy

SPARE_SHARE: Final = 0.5
"""The part of `max_age` that an instance may spend as a spare; the lease gets the rest."""


@dataclass(frozen=True, slots=True)
class Times:
    """What of one instance's past decides about its end.

    Attributes:
        up_since: When it came up.
        idle_since: When its last call ended, or it was taken into use.
        calls: Calls in flight.
    """

    up_since: float
    idle_since: float
    calls: int = 0


@dataclass(frozen=True, slots=True)
class SpareChange:
    """What is to be done about spares now.

    Attributes:
        close: Positions of those that are to end.
        start: Whether another one is to be started.
        look_at: When to look again if nothing else happens; infinite for never.
    """

    close: tuple[int, ...]
    start: bool
    look_at: float


def idle_at(policy: InstancePolicy, times: Times, now: float) -> float:
    """Return when an instance will have been idle for too long, at the earliest."""
    if policy.idle_timeout is None:
        return math.inf
    return (now if times.calls else times.idle_since) + policy.idle_timeout


def old_at(policy: InstancePolicy, times: Times) -> float:
    """Return when an instance gets too old."""
    return math.inf if policy.max_age is None else times.up_since + policy.max_age


def spare_old_at(policy: InstancePolicy, times: Times) -> float:
    """Return when a spare is replaced, so that a lease gets a good part of an instance's life."""
    if policy.max_age is None:
        return math.inf
    return times.up_since + policy.max_age * SPARE_SHARE


def spares_wanted(policy: InstancePolicy) -> int:
    """Return how many spares a leased server keeps ready where there is room."""
    return max(policy.warm, 1 if policy.start == "eager" else 0)


def plan_spares(
    policy: InstancePolicy,
    spares: Sequence[Times],
    *,
    starting: int,
    room: int,
    now: float,
    failing: bool = False,
) -> SpareChange:
    """Decide about the spares of one generation.

    A spare that is too old goes when there are enough others, or where only its room lets
    another one start. One more than is wanted, a probe's, stays until it has been idle for too
    long. Leases come first: where the room is less than nothing, spares go.

    Args:
        policy: The server's.
        spares: Those that are up.
        starting: How many more are on their way up.
        room: How many more instances `max_instances` allows; negative where there are too many.
        now: The time.
        failing: Whether the newest start failed. Leases go to other workers then, so that only a
            spare can show that the server starts here again.
    """
    wanted = max(spares_wanted(policy), 1 if failing else 0)
    oldest_first = sorted(range(len(spares)), key=lambda at: spares[at].up_since)
    old = [at for at in oldest_first if now >= spare_old_at(policy, spares[at])]
    young = [at for at in oldest_first if at not in old]
    close = list(old) if len(young) >= wanted else []
    surplus = young[: max(0, len(young) - wanted)]
    close += [at for at in surplus if now >= idle_at(policy, spares[at], now)]
    kept = [at for at in (*old, *young) if at not in close]
    missing = wanted - len(young) - starting
    too_many = max(0, -(room + len(close)))
    if missing > 0 and room + len(close) <= 0 and len(set(old) & set(kept)) > too_many:
        too_many += 1  # an old one makes room for the one that replaces it
    close += kept[:too_many]
    start = missing > 0 and room + len(close) > 0
    left = [at for at in young if at not in close]
    return SpareChange(tuple(close), start, _next_look(policy, spares, left, surplus, now))


def _next_look(
    policy: InstancePolicy,
    spares: Sequence[Times],
    left: Sequence[int],
    surplus: Sequence[int],
    now: float,
) -> float:
    due = [spare_old_at(policy, spares[at]) for at in left]
    due += [idle_at(policy, spares[at], now) for at in left if at in surplus]
    return min(due, default=math.inf)
