"""Faults for failed RPCs: the peer's own fault, or one made from the gRPC status."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import grpc

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
_ADVICE: Final = {
    Reason.CONTROL_PLANE_UNAVAILABLE: "Check that it runs, and that the client's address (or "
    "LEASEWAY_ADDRESS) is correct.",
    Reason.WORKER_LOST: "It has exited, or this machine cannot reach it; see `leaseway workers`.",
    Reason.UNAUTHENTICATED: "Give the client its key, or set LEASEWAY_KEY.",
    Reason.INCOMPATIBLE_VERSION: "It does not support this request: upgrade the older side.",
    Reason.DEADLINE_EXCEEDED: "The timeout passed first.",
    Reason.OVERLOADED: "Too many requests are waiting for it; this one was not started.",
}


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
        f"Worker '{worker}' has sent nothing for {seconds:g} s; see `leaseway workers`.",
    )


def is_end(error: grpc.aio.AioRpcError) -> bool:
    """Return whether gRPC failed because the peer had just ended the RPC."""
    return error.code() is _Code.INTERNAL and (error.details() or "").startswith(_ENDED)


def is_dropped(error: grpc.aio.AioRpcError) -> bool:
    """Return whether the server's gRPC dropped an RPC because its queue was full."""
    bare = error.code() is _Code.CANCELLED and error.details() == _DROPPED
    return bare and fault_from_rpc_error(error) is None


def _fault(error: grpc.aio.AioRpcError, peer: str, unavailable: Reason) -> Fault:
    sent = fault_from_rpc_error(error)
    if sent is not None:
        return sent
    code = error.code()
    if is_end(error) or code is _Code.UNAVAILABLE:
        reason = unavailable
    elif is_dropped(error):
        reason = Reason.OVERLOADED
    else:
        reason = _REASONS.get(code, Reason.INTERNAL)
    started: Started = "unknown" if reason in (Reason.INTERNAL, Reason.CANCELLED) else "no"
    advice = _ADVICE.get(reason, "")
    status = "cannot be reached" if reason is unavailable else f"answered {code.name}"
    message = f"{peer} {status}: {error.details() or 'no details'}. {advice}"
    return Fault(reason, message.strip(), started)
