"""What failures of gRPC itself mean to a caller, by which peer failed."""

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
"""What gRPC says of an RPC that was never sent; a connection that broke may have carried it."""
_ENDED: Final = "Internal error from Core"
_TURNED_AWAY: Final = "CANCELLED"
"""All that gRPC says of an RPC that it ends before a handler has seen it: too many wait."""
_ADVICE: Final = {
    Reason.CONTROL_PLANE_UNAVAILABLE: "Check that it runs, and that the address that the client "
    "was given (or LEASEWAY_ADDRESS) is its own.",
    Reason.WORKER_LOST: "It has ended, or nothing leads there from this machine; look at "
    "`leaseway workers`.",
    Reason.UNAUTHENTICATED: "Give the client its key, or set LEASEWAY_KEY.",
    Reason.INCOMPATIBLE_VERSION: "It does not know this request: upgrade the older side.",
    Reason.DEADLINE_EXCEEDED: "The timeout passed first.",
    Reason.OVERLOADED: "More requests wait for it than it takes; this one was not begun.",
}


def fault_of_control_plane(error: grpc.aio.AioRpcError, address: str) -> Fault:
    """Return why a request to the control plane failed."""
    return _fault(error, f"The control plane at {address}", Reason.CONTROL_PLANE_UNAVAILABLE)


def fault_of_worker(error: grpc.aio.AioRpcError, worker: str) -> Fault:
    """Return why an RPC to a worker failed."""
    return _fault(error, f"Worker '{worker}'", Reason.WORKER_LOST)


def fault_of_request(error: grpc.aio.AioRpcError, worker: str) -> Fault:
    """Return why a unary RPC to a worker failed: a connection that broke may have carried it."""
    fault = fault_of_worker(error, worker)
    sent = not (error.details() or "").lower().startswith(_NOT_CONNECTED)
    lost = fault.reason is Reason.WORKER_LOST
    return replace(fault, started="unknown") if lost and sent else fault


def silent_worker(worker: str, seconds: float) -> Fault:
    """Return the fault of a worker that has sent nothing for too long."""
    return Fault(
        Reason.DEADLINE_EXCEEDED,
        f"Worker '{worker}' has sent nothing for {seconds:g} s; look at `leaseway workers`.",
    )


def is_end(error: grpc.aio.AioRpcError) -> bool:
    """Return whether gRPC reports that it wrote to an RPC which the peer had just ended."""
    return error.code() is _Code.INTERNAL and (error.details() or "").startswith(_ENDED)


def is_turned_away(error: grpc.aio.AioRpcError) -> bool:
    """Return whether gRPC ended an RPC as too many waited; nobody here cancelled it."""
    bare = error.code() is _Code.CANCELLED and error.details() == _TURNED_AWAY
    return bare and fault_from_rpc_error(error) is None


def _fault(error: grpc.aio.AioRpcError, peer: str, unavailable: Reason) -> Fault:
    told = fault_from_rpc_error(error)
    if told is not None:
        return told
    code = error.code()
    if is_end(error) or code is _Code.UNAVAILABLE:
        reason = unavailable
    elif is_turned_away(error):
        reason = Reason.OVERLOADED
    else:
        reason = _REASONS.get(code, Reason.INTERNAL)
    started: Started = "unknown" if reason in (Reason.INTERNAL, Reason.CANCELLED) else "no"
    advice = _ADVICE.get(reason, "")
    said = "cannot be reached" if reason is unavailable else f"answered {code.name}"
    message = f"{peer} {said}: {error.details() or 'without a word'}. {advice}"
    return Fault(reason, message.strip(), started)
