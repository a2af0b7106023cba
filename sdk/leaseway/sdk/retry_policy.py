"""Whether, when and where to try again after a failure: one pure function (DESIGN §6, fate)."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from leaseway.wire.errors import OF_ONE_WORKER, SETTLING, Fault, Reason, Started
from leaseway.wire.timing.backoff import Backoff

MAX_TRIES: Final = 5
"""Tries of one call, the first included."""
_MAX_SYNCING_TRIES: Final = 12
"""A control plane settles for 3 s, and a worker is replaced in as many; these tries outlast it."""
_SYNCING_DELAY: Final = 0.5
_BACKOFF: Final = Backoff(initial=0.1, maximum=2.0)

_ELSEWHERE: Final = OF_ONE_WORKER | {Reason.TOOL_DIFFERS}
"""Why another worker may be tried."""
UNREADY: Final = frozenset({Reason.WORKER_LOST, Reason.OVERLOADED, Reason.NOT_APPLIED})
"""How a worker fails that was slow or out of reach: it may have room, and be asked again."""
_DOWN: Final = UNREADY | {Reason.SERVER_NOT_READY, Reason.SERVER_LOST}
"""A server that does not run on one worker, or a worker that did not answer: that no other worker
has room says less."""
_SAYS: Final[dict[Started, int]] = {"no": 0, "unknown": 1, "yes": 2}
"""How much a fate says of a whole call: that one try never began says nothing of the others."""


@dataclass(frozen=True)
class Tried:
    """What is known when a try has failed.

    Attributes:
        tries: Tries so far, the failed one included.
        remaining: Seconds until the deadline.
        repeatable: Whether the tool is annotated idempotent or read-only.
        repeated: Whether a call that may have started was repeated before.
        cached: Whether the name came from the cache, so that it may have moved.
        pinned: Whether the call is bound to one worker by its lease.
        leased: Whether a call took its server for one that is leased.
        placing: Whether a lease was to be acquired, so that a full worker is not the end.
        elsewhere: Whether another worker could be tried.
        slow: Whether workers are avoided that did not say that they are full.
    """

    tries: int
    remaining: float
    repeatable: bool = False
    repeated: bool = False
    cached: bool = False
    pinned: bool = False
    leased: bool = False
    placing: bool = False
    elsewhere: bool = False
    slow: bool = False


@dataclass(frozen=True)
class Again:
    """Try again.

    Attributes:
        delay: Seconds to wait first.
        avoid_worker: Whether to prefer other workers than the one that failed.
        return_to_slow: Whether to avoid those no longer that were slow or out of reach.
        resolve: Whether to ask the control plane first where the name leads by now.
        repeats: Whether the call may be running already.
    """

    delay: float = 0.0
    avoid_worker: bool = False
    return_to_slow: bool = False
    resolve: bool = False
    repeats: bool = False


_BUSY = frozenset({Reason.SERVER_ERROR, Reason.RATE_LIMITED})


def decide(
    fault: Fault, tried: Tried, uniform: Callable[[float, float], float] = random.uniform
) -> Again | None:
    """Return how to try again, or None where the failure is final.

    What certainly did not start is tried again, at most `MAX_TRIES` times, or until a worker that
    was lost has had time to be replaced. What may have started
    is repeated once, and only where the tool says that this changes nothing. Rejections are final.

    Args:
        fault: Why the try failed.
        tried: What was tried, and what is left.
        uniform: Draws the delay's jitter.
    """
    if fault.reason is Reason.TOOL_NOT_FOUND:  # a name in the cache may have moved since
        return Again(resolve=True) if tried.cached and fault.started == "no" else None
    if fault.reason is Reason.NOT_LEASABLE:  # the server has become shared since it was resolved
        return Again(resolve=True) if tried.leased and tried.tries < MAX_TRIES else None
    if fault.reason is Reason.CAPACITY and tried.slow and not tried.elsewhere:
        # No other worker has room; one that was slow may have some.
        delay = _BACKOFF.delay(tried.tries - 1, uniform)
        in_time = tried.tries < MAX_TRIES and delay < tried.remaining
        return Again(delay, return_to_slow=True) if in_time else None
    transient = fault.reason in _ELSEWHERE or fault.reason in SETTLING
    full = fault.reason is Reason.CAPACITY and tried.placing and tried.elsewhere
    down = fault.reason is Reason.SERVER_NOT_READY and fault.started == "no" and tried.elsewhere
    busy = _is_busy(fault)
    if not (transient or full or down or busy) or tried.tries >= _limit(fault.reason, tried):
        return None
    repeats = fault.started != "no"
    if repeats and (not tried.repeatable or tried.repeated):
        return None
    delay = _delay(fault, tried, uniform)
    if delay >= tried.remaining:
        return None
    avoid = fault.reason not in SETTLING and not tried.pinned and not busy
    resolve = avoid and not tried.elsewhere
    return Again(delay, avoid_worker=avoid, resolve=resolve, repeats=repeats)


def more_informative(known: Fault | None, fault: Fault) -> Fault:
    """Return which of two tries' failures says more of what became of their call.

    Args:
        known: What the tries before say, or None where there were none.
        fault: What the newest try says.
    """
    if known is not None and _SAYS[known.started] > _SAYS[fault.started]:
        return known
    if known is not None and known.reason in _DOWN and fault.reason is Reason.CAPACITY:
        return known if known.started == fault.started else fault  # it had room and no server
    return fault


def _is_busy(fault: Fault) -> bool:
    """Return whether a call was not taken, and told when to come back.

    By an MCP server (429, 503), or by a worker whose limits are reached.
    """
    refused = fault.reason in _BUSY and fault.started == "no"
    return refused and fault.retry_delay is not None


def _limit(reason: Reason, tried: Tried) -> int:
    replaced = reason is Reason.WORKER_LOST and not tried.pinned
    return _MAX_SYNCING_TRIES if replaced or reason in SETTLING else MAX_TRIES


def _delay(fault: Fault, tried: Tried, uniform: Callable[[float, float], float]) -> float:
    busy = _is_busy(fault)
    if tried.elsewhere and not tried.pinned and not busy and fault.reason not in SETTLING:
        return 0.0
    if fault.retry_delay is not None and not (busy and fault.retry_delay == 0):
        return fault.retry_delay
    if fault.reason in SETTLING:
        return _SYNCING_DELAY * uniform(0.5, 1.0)
    return _BACKOFF.delay(tried.tries - 1, uniform)
