"""Faults of requests and calls: from a peer's own fault, a gRPC status, or the end of a stream."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import grpc

from leaseway.wire.advice import for_operators
from leaseway.wire.bounds import MAX_CALLS_IN_FLIGHT
from leaseway.wire.channels.tls import cause_in_tls, hint_at_tls
from leaseway.wire.errors import Fault, Reason, Started
from leaseway.wire.status import fault_from_rpc_error

_Code = grpc.StatusCode
_REASONS: Final = {
    _Code.UNAUTHENTICATED: Reason.UNAUTHENTICATED,
    _Code.PERMISSION_DENIED: Reason.PERMISSION_DENIED,
    _Code.DEADLINE_EXCEEDED: Reason.DEADLINE_EXCEEDED,
    _Code.CANCELLED: Reason.CANCELLED,
    _Code.UNIMPLEMENTED: Reason.INCOMPATIBLE_VERSION,
}
_NOT_CONNECTED: Final = "failed to connect"
"""How gRPC describes an RPC that was never sent; on a broken connection it may have been sent."""
_ENDED: Final = "Internal error from Core"
_DROPPED: Final = "CANCELLED"
"""gRPC's only detail for an RPC that the server dropped because its queue was full."""
_MEANINGS: Final = {
    Reason.WORKER_LOST: "It has exited, or this machine cannot reach it.",
    Reason.INCOMPATIBLE_VERSION: "It does not support this request.",
    Reason.DEADLINE_EXCEEDED: "The timeout passed first.",
    Reason.OVERLOADED: "Too many requests are waiting for it; this one was not started.",
}
_ADVICE: Final = {
    Reason.CONTROL_PLANE_UNAVAILABLE: "Check that it runs, and that the client's address (or "
    "LEASEWAY_ADDRESS) is its own, not the one for MCP clients.",
    Reason.WORKER_LOST: "See `leaseway workers`.",
    Reason.UNAUTHENTICATED: "Give the client its key, or set LEASEWAY_KEY or LEASEWAY_KEY_FILE.",
    Reason.INCOMPATIBLE_VERSION: "Upgrade the older side.",
}
_OF_CALLER: Final = frozenset(
    {
        Reason.UNAUTHENTICATED,
        Reason.PERMISSION_DENIED,
        Reason.INCOMPATIBLE_VERSION,
        Reason.INVALID_REQUEST,
    }
)
"""Reasons to end a stream that concern the caller, not the calls on it."""


def fault_of_control_plane(error: grpc.aio.AioRpcError, address: str) -> Fault:
    """Return the fault of a failed request to the control plane."""
    return _fault(error, f"The control plane at {address}", Reason.CONTROL_PLANE_UNAVAILABLE)


def fault_of_worker(error: grpc.aio.AioRpcError, worker: str) -> Fault:
    """Return the fault of a failed RPC to a worker."""
    return _fault(error, f"Worker '{worker}'", Reason.WORKER_LOST)


def fault_of_request(error: grpc.aio.AioRpcError, worker: str) -> Fault:
    """Return the fault of a failed unary RPC to a worker, which may have been sent."""
    fault = fault_of_worker(error, worker)
    sent = not (error.details() or "").lower().startswith(_NOT_CONNECTED)
    lost = fault.reason is Reason.WORKER_LOST
    return replace(fault, started="unknown") if lost and sent else fault


def silent_worker(worker: str, seconds: float) -> Fault:
    """Return the fault of a stream on which the worker sent nothing for too long."""
    return Fault(
        Reason.DEADLINE_EXCEEDED,
        f"Worker '{worker}' has sent nothing for {seconds:g} s.",
        metadata=for_operators("See `leaseway workers`."),
    )


def is_dropped(error: grpc.aio.AioRpcError) -> bool:
    """Return whether the server's gRPC dropped an RPC because its queue was full."""
    bare = error.code() is _Code.CANCELLED and error.details() == _DROPPED
    return bare and fault_from_rpc_error(error) is None


def _fault(error: grpc.aio.AioRpcError, peer: str, unavailable: Reason) -> Fault:
    sent = fault_from_rpc_error(error)
    if sent is not None:
        return sent
    code = error.code()
    # gRPC failed because the peer had just ended the RPC.
    ended = code is _Code.INTERNAL and (error.details() or "").startswith(_ENDED)
    if ended or code is _Code.UNAVAILABLE:
        reason = unavailable
    elif is_dropped(error):
        reason = Reason.OVERLOADED
    else:
        reason = _REASONS.get(code, Reason.INTERNAL)
    started: Started = "unknown" if reason in (Reason.INTERNAL, Reason.CANCELLED) else "no"
    meaning, advice = _MEANINGS.get(reason, ""), _ADVICE.get(reason, "")
    details = error.details() or "no details"
    status = "cannot be reached" if reason is unavailable else f"answered {code.name}"
    if reason is unavailable:
        meaning = cause_in_tls(details) or f"{meaning} {hint_at_tls(details)}".strip()
    message = f"{peer} {status}: {details}. {meaning}"
    return Fault(reason, message.strip(), started, for_operators(advice))


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
        f"Worker '{worker}' is shutting down and accepts no new calls; this one was not started.",
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
    # If a worker rejects the whole stream, its reason applies to each call on it.
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
