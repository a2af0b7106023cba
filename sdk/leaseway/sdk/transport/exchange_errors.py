"""Faults of calls on an exchange stream."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from leaseway.wire.bounds import MAX_CALLS_IN_FLIGHT
from leaseway.wire.errors import Fault, Reason

_OF_CALLER: Final = frozenset(
    {
        Reason.UNAUTHENTICATED,
        Reason.PERMISSION_DENIED,
        Reason.INCOMPATIBLE_VERSION,
        Reason.INVALID_REQUEST,
    }
)
"""Reasons to end a stream that concern the caller, not the calls on it."""


def stream_failed(worker: str) -> Fault:
    """Return the fault of a stream that failed inside this client."""
    return Fault(
        Reason.INTERNAL,
        f"the stream to worker '{worker}' failed in this client; its log has the error",
        "unknown",
    )


def client_closed(sent: bool) -> Fault:
    """Return the fault of a call whose client was closed."""
    return Fault(Reason.CANCELLED, "The client was closed.", "unknown" if sent else "no")


def deadline_passed(worker: str, what: str, sent: bool) -> Fault:
    """Return the fault of a call whose deadline passed."""
    return Fault(
        Reason.DEADLINE_EXCEEDED,
        f"The timeout passed before worker '{worker}' returned a result for {what}. The call is "
        "cancelled at the server.",
        started="unknown" if sent else "no",
    )


def worker_draining(worker: str) -> Fault:
    """Return the fault of a call that a draining worker did not start."""
    return Fault(
        Reason.DRAINING,
        f"Worker '{worker}' is shutting down and accepts no more calls; this one was not started.",
        metadata={"worker": worker},
    )


def no_slot(worker: str) -> Fault:
    """Return the fault of a call whose deadline passed before it could be sent."""
    return Fault(
        Reason.DEADLINE_EXCEEDED,
        f"The timeout passed before the call could be sent: {MAX_CALLS_IN_FLIGHT} calls are in "
        f"flight to worker '{worker}'.",
    )


def result_too_large(worker: str, error: Exception) -> Fault:
    """Return the fault of a call whose result exceeds its limit."""
    return Fault(
        Reason.RESULT_TOO_LARGE,
        f"The result from worker '{worker}' is too large: {error}.",
        started="yes",
        metadata={"worker": worker},
    )


def incompatible_version(worker: str, package: str, version: int, own: int) -> Fault:
    """Return the fault of a stream to a worker with another protocol version."""
    return Fault(
        Reason.INCOMPATIBLE_VERSION,
        f"Worker '{worker}' ({package}) speaks protocol version {version}, this client {own}; "
        "upgrade the older one.",
    )


def stream_lost(worker: str, *, sent: bool, accepted: bool, cause: Fault | None) -> Fault:
    """Return the fault of a call whose stream ended.

    Args:
        worker: The worker's id.
        sent: Whether the call's frame may have been sent.
        accepted: Whether the worker had accepted the stream.
        cause: The error that ended the stream, or None if it ended normally.
    """
    # A worker that rejects the whole stream gives the reason, which holds for each call on it.
    # A lost connection is reported by gRPC, not by the worker, which may have run a sent call.
    broken = sent and cause is not None and cause.reason is Reason.WORKER_LOST
    rejected = not accepted and not broken and cause is not None and cause.started == "no"
    if cause is not None and (rejected or cause.reason in _OF_CALLER):
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
