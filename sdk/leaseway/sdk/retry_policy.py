"""Whether, when and where to retry a failed call: one pure function (docs/design.md#calls)."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from leaseway.wire.errors import OF_ONE_WORKER, SETTLING, Fault, Reason, Started
from leaseway.wire.timing.backoff import RECONNECT

MAX_TRIES: Final = 5
"""Tries of one call, the first included."""
_MAX_SYNCING_TRIES: Final = 12
"""Enough for the 3 s in which a control plane settles or a lost worker is replaced."""
_SYNCING_DELAY: Final = 0.5

_WORKER_FAULTS: Final = OF_ONE_WORKER | {Reason.TOOL_DIFFERS}
"""Reasons that concern one worker: another worker may succeed."""
UNREADY: Final = frozenset({Reason.WORKER_LOST, Reason.OVERLOADED, Reason.NOT_APPLIED})
"""Reasons of a slow or unreachable worker, which may have capacity and is tried again later."""
_DOWN: Final = UNREADY | {Reason.SERVER_NOT_READY, Reason.SERVER_LOST}
"""Reasons that explain a failed call better than the lack of capacity on the other workers."""
_OUT_OF_DATE: Final = frozenset({Reason.TOOL_NOT_FOUND, Reason.ARTIFACT_LOST})
"""Reasons of a name that is resolved as it was before: the worker with an artifact may be new."""
_BUSY: Final = frozenset({Reason.SERVER_ERROR, Reason.RATE_LIMITED, Reason.AUTHORIZATION_FAILED})
"""Reasons with which a server or worker may ask the caller to retry later (HTTP 429, 503)."""
_ROOM: Final = 0.25
"""Seconds that must be left after a wait for a limit to renew, if half of the time would be more:
with less, the call would end by its timeout, which says less about why."""
_STARTED_RANK: Final[dict[Started, int]] = {"no": 0, "unknown": 1, "yes": 2}
"""If any try of a call has started, the call has: the highest rank of all tries counts."""


@dataclass(frozen=True)
class FailedTry:
    """The state of a call after a failed try.

    Attributes:
        tries: The number of tries, including the failed one.
        remaining: Seconds until the deadline.
        repeatable: Whether the tool is annotated as idempotent or read-only.
        repeated: Whether a try that may have started was followed by another one.
        cached: Whether the name was resolved from the cache, which may be out of date.
        pinned: Whether the call's lease binds it to one worker.
        leased: Whether the server is leased, as last resolved.
        placing: Whether the try had to acquire a lease; if so, another worker may have capacity.
        elsewhere: Whether another worker can be tried.
        slow: Whether some of the avoided workers are slow or unreachable rather than full.
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
class Retry:
    """How to retry a call.

    Attributes:
        delay: Seconds to wait first.
        avoid_worker: Whether to prefer other workers to the one that failed.
        return_to_slow: Whether to stop avoiding slow and unreachable workers.
        resolve: Whether to resolve the name again at the control plane first.
        repeats: Whether the failed try may have started.
    """

    delay: float = 0.0
    avoid_worker: bool = False
    return_to_slow: bool = False
    resolve: bool = False
    repeats: bool = False


def decide(
    fault: Fault, state: FailedTry, uniform: Callable[[float, float], float] = random.uniform
) -> Retry | None:
    """Return how to retry a call, or None if its failure is final.

    A call that did not start is tried `MAX_TRIES` times, or until a lost worker has had time to be
    replaced. A call that may have started is repeated once, and only if its tool is annotated as
    idempotent or read-only. Rejections are final.

    Args:
        fault: How the try failed.
        state: The state of the call.
        uniform: Draws the jitter of the delay.
    """
    if fault.reason in _OUT_OF_DATE:
        return Retry(resolve=True) if state.cached and fault.started == "no" else None
    if fault.reason is Reason.NOT_LEASABLE:  # the server has become shared since it was resolved
        return Retry(resolve=True) if state.leased and state.tries < MAX_TRIES else None
    if fault.reason is Reason.CAPACITY and state.slow and not state.elsewhere:
        # All other workers are full; a slow one may have capacity.
        delay = RECONNECT.delay(state.tries - 1, uniform)
        in_time = state.tries < MAX_TRIES and delay < state.remaining
        return Retry(delay, return_to_slow=True) if in_time else None
    transient = fault.reason in _WORKER_FAULTS or fault.reason in SETTLING
    full = fault.reason is Reason.CAPACITY and state.placing and state.elsewhere
    down = fault.reason is Reason.SERVER_NOT_READY and fault.started == "no" and state.elsewhere
    busy = _is_busy(fault)
    if not (transient or full or down or busy) or state.tries >= _limit(fault.reason, state):
        return None
    repeats = fault.started != "no"
    if repeats and (not state.repeatable or state.repeated):
        return None
    delay = _delay(fault, state, uniform)
    room = min(_ROOM, state.remaining / 2) if busy and delay else 0.0
    if delay >= state.remaining - room:
        return None
    avoid = fault.reason not in SETTLING and not state.pinned and not busy
    resolve = avoid and not state.elsewhere
    return Retry(delay, avoid_worker=avoid, resolve=resolve, repeats=repeats)


def more_informative(known: Fault | None, fault: Fault) -> Fault:
    """Return the fault that describes the whole call better.

    Args:
        known: The fault of the previous tries, or None if there were none.
        fault: The fault of the newest try.
    """
    if known is None:
        return fault
    if _STARTED_RANK[known.started] > _STARTED_RANK[fault.started]:
        return known
    if fault.reason is Reason.DEADLINE_EXCEEDED and known.reason is not fault.reason:
        return replace(fault, message=f"{fault.message} An earlier try failed: {known.message}")
    hides_cause = known.reason in _DOWN and fault.reason is Reason.CAPACITY
    return known if hides_cause and known.started == fault.started else fault


def _is_busy(fault: Fault) -> bool:
    """Return whether a server or worker rejected the call for now, and said when to retry."""
    rejected = fault.reason in _BUSY and fault.started == "no"
    return rejected and fault.retry_delay is not None


def _limit(reason: Reason, state: FailedTry) -> int:
    replaced = reason is Reason.WORKER_LOST and not state.pinned
    return _MAX_SYNCING_TRIES if replaced or reason in SETTLING else MAX_TRIES


def _delay(fault: Fault, state: FailedTry, uniform: Callable[[float, float], float]) -> float:
    busy = _is_busy(fault)
    if state.elsewhere and not state.pinned and not busy and fault.reason not in SETTLING:
        return 0.0
    if fault.retry_delay is not None and not (busy and fault.retry_delay == 0):
        return fault.retry_delay
    if fault.reason in SETTLING:
        return _SYNCING_DELAY * uniform(0.5, 1.0)
    return RECONNECT.delay(state.tries - 1, uniform)
