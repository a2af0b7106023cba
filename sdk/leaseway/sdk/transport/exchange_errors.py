"""How calls fail on an exchange stream, in sentences; pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from leaseway.wire.bounds import MAX_CALLS_IN_FLIGHT
from leaseway.wire.errors import Fault, Reason

_REFUSALS: Final = frozenset(
    {
        Reason.UNAUTHENTICATED,
        Reason.PERMISSION_DENIED,
        Reason.INCOMPATIBLE_VERSION,
        Reason.INVALID_REQUEST,
    }
)
"""Ends of a stream that speak of the caller, not of the calls on it."""


def broken(worker: str) -> Fault:
    """Return why a stream ends that this side can't go on with."""
    return Fault(
        Reason.INTERNAL,
        f"this client failed to keep up its stream to worker '{worker}'; its log says why",
        "unknown",
    )


def closed(sent: bool) -> Fault:
    """Return why a call ends when its client is closed."""
    return Fault(Reason.CANCELLED, "The client was closed.", "unknown" if sent else "no")


def late(worker: str, what: str, sent: bool) -> Fault:
    """Return why a call ends at its deadline."""
    return Fault(
        Reason.DEADLINE_EXCEEDED,
        f"The timeout passed before worker '{worker}' had a result for {what}. The server is told "
        "that nobody waits any more.",
        started="unknown" if sent else "no",
    )


def left(worker: str) -> Fault:
    """Return why a call ends that a worker which leaves in order has not taken."""
    return Fault(
        Reason.DRAINING,
        f"Worker '{worker}' ends and takes no more calls; this one was not begun.",
        metadata={"worker": worker},
    )


def no_turn(worker: str) -> Fault:
    """Return why a call ends that never had its turn."""
    return Fault(
        Reason.DEADLINE_EXCEEDED,
        f"The timeout passed while the call waited for room: {MAX_CALLS_IN_FLIGHT} calls are in "
        f"flight to worker '{worker}'.",
    )


def too_large(worker: str, error: Exception) -> Fault:
    """Return why a call ends whose result exceeds its bound."""
    return Fault(
        Reason.RESULT_TOO_LARGE,
        f"The result from worker '{worker}' is too large: {error}.",
        started="yes",
        metadata={"worker": worker},
    )


def other_version(worker: str, package: str, theirs: int, ours: int) -> Fault:
    """Return why a stream ends between sides that do not understand each other."""
    return Fault(
        Reason.INCOMPATIBLE_VERSION,
        f"Worker '{worker}' ({package}) speaks protocol version {theirs}, this client {ours}; "
        "upgrade the older one.",
    )


def lost(worker: str, *, sent: bool, heard: bool, cause: Fault | None) -> Fault:
    """Return why a call ends with its stream.

    Args:
        worker: The worker's id.
        sent: Whether the call's frame may have left.
        heard: Whether the worker had taken the stream.
        cause: How the stream ended, or None where its end was an orderly one.
    """
    # A worker that refuses the stream as a whole says so of each call on it.
    # What gRPC says of a connection is no word of the worker's: it may have run what was sent.
    broken = sent and cause is not None and cause.reason is Reason.WORKER_LOST
    refused = not heard and not broken and cause is not None and cause.started == "no"
    if cause is not None and (refused or cause.reason in _REFUSALS):
        return replace(cause, started=cause.started if sent else "no")
    why = f" ({cause.message})" if cause is not None else ""
    if not sent:
        return Fault(
            Reason.WORKER_LOST,
            f"Worker '{worker}' could not be reached{why}; the call was not sent.",
            metadata={"worker": worker},
        )
    return Fault(
        Reason.FATE_UNKNOWN,
        f"The connection to worker '{worker}' was lost{why} after the call had been sent; the "
        "server may have run it.",
        started="unknown",
        metadata={"worker": worker},
    )
