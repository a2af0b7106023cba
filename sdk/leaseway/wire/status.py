"""Encoding of faults for the wire.

A `Fault` is sent as a `google.rpc.Status` whose details are one `ErrorInfo` (domain `leaseway`),
one `CallFate`, and optionally a `RetryInfo` and a `BadRequest`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NoReturn

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc import code_pb2, error_details_pb2
from google.rpc.status_pb2 import Status

from leaseway.v1 import execution_pb2
from leaseway.wire.errors import Fault, Reason, Started
from leaseway.wire.secrets.redaction import redact
from leaseway.wire.timing.durations import duration, seconds

DOMAIN: Final = "leaseway"
_DETAILS_KEY: Final = "grpc-status-details-bin"
_MAX_DETAIL: Final = 6 * 1024  # gRPC limits metadata to 8 KiB, with the message and the keys


_Code = grpc.StatusCode
_CODES: Final[Mapping[Reason, grpc.StatusCode]] = {
    Reason.TOOL_NOT_FOUND: _Code.NOT_FOUND,
    Reason.SERVER_NOT_READY: _Code.UNAVAILABLE,
    Reason.INVALID_ARGUMENTS: _Code.INVALID_ARGUMENT,
    Reason.INVALID_REQUEST: _Code.INVALID_ARGUMENT,
    Reason.SERVER_ERROR: _Code.UNKNOWN,  # or by the JSON-RPC code, see `code_of`
    Reason.SERVER_LOST: _Code.UNAVAILABLE,
    Reason.FATE_UNKNOWN: _Code.UNAVAILABLE,
    Reason.WORKER_LOST: _Code.UNAVAILABLE,
    Reason.DRAINING: _Code.UNAVAILABLE,
    Reason.NOT_APPLIED: _Code.UNAVAILABLE,
    Reason.OVERLOADED: _Code.UNAVAILABLE,
    Reason.SYNCING: _Code.UNAVAILABLE,
    Reason.NOT_LEADER: _Code.UNAVAILABLE,
    Reason.CONTROL_PLANE_UNAVAILABLE: _Code.UNAVAILABLE,
    Reason.STORE_UNAVAILABLE: _Code.UNAVAILABLE,
    Reason.DEADLINE_EXCEEDED: _Code.DEADLINE_EXCEEDED,
    Reason.CANCELLED: _Code.CANCELLED,
    Reason.LEASE_EXPIRED: _Code.FAILED_PRECONDITION,
    Reason.LEASE_REVOKED: _Code.FAILED_PRECONDITION,
    Reason.LEASE_RELEASED: _Code.FAILED_PRECONDITION,
    Reason.LEASE_LOST: _Code.FAILED_PRECONDITION,
    Reason.NOT_LEASABLE: _Code.INVALID_ARGUMENT,
    Reason.SESSION_REQUIRED: _Code.INVALID_ARGUMENT,
    Reason.USER_REQUIRED: _Code.INVALID_ARGUMENT,
    Reason.RESULT_TOO_LARGE: _Code.RESOURCE_EXHAUSTED,
    Reason.TOOL_DIFFERS: _Code.FAILED_PRECONDITION,
    Reason.ARTIFACT_LOST: _Code.NOT_FOUND,
    Reason.UNAUTHENTICATED: _Code.UNAUTHENTICATED,
    Reason.PERMISSION_DENIED: _Code.PERMISSION_DENIED,
    Reason.CONFIRMATION_REQUIRED: _Code.FAILED_PRECONDITION,
    Reason.LOGIN_REQUIRED: _Code.FAILED_PRECONDITION,
    Reason.AUTHORIZATION_FAILED: _Code.UNAVAILABLE,
    Reason.RATE_LIMITED: _Code.RESOURCE_EXHAUSTED,
    Reason.CAPACITY: _Code.RESOURCE_EXHAUSTED,
    Reason.INPUT_REQUIRED: _Code.FAILED_PRECONDITION,
    Reason.INCOMPATIBLE_VERSION: _Code.FAILED_PRECONDITION,
    Reason.INTERNAL: _Code.INTERNAL,
}

# JSON-RPC and MCP codes with a similar gRPC code.
_JSONRPC_CODES: Final[Mapping[int, grpc.StatusCode]] = {
    -32700: _Code.INTERNAL,
    -32600: _Code.INVALID_ARGUMENT,
    -32601: _Code.UNIMPLEMENTED,
    -32602: _Code.INVALID_ARGUMENT,
    -32603: _Code.INTERNAL,
    -32002: _Code.NOT_FOUND,
}

_STARTED_TO_WIRE: Final = {
    "no": execution_pb2.STARTED_NO,
    "yes": execution_pb2.STARTED_YES,
    "unknown": execution_pb2.STARTED_UNKNOWN,
}
STARTED_FROM_WIRE: Final[Mapping[int, Started]] = {
    execution_pb2.STARTED_NO: "no",
    execution_pb2.STARTED_YES: "yes",
    execution_pb2.STARTED_UNKNOWN: "unknown",
}


def code_of(fault: Fault) -> grpc.StatusCode:
    """Return the gRPC status code of a fault."""
    if fault.reason is Reason.SERVER_ERROR:
        try:
            return _JSONRPC_CODES.get(int(fault.metadata.get("code", "")), _Code.UNKNOWN)
        except ValueError:
            return _Code.UNKNOWN
    return _CODES[fault.reason]


def status_from_fault(fault: Fault) -> Status:
    """Encode a fault as a `google.rpc.Status`, without this process's secrets."""
    status = Status(code=code_of(fault).value[0], message=redact(fault.message))
    details: list[AnyMessage] = [AnyMessage(), AnyMessage()]
    details[0].Pack(
        error_details_pb2.ErrorInfo(
            reason=fault.reason.value,
            domain=DOMAIN,
            metadata={name: redact(value) for name, value in fault.metadata.items()},
        )
    )
    details[1].Pack(execution_pb2.CallFate(started=_STARTED_TO_WIRE[fault.started]))
    if fault.retry_delay is not None:
        delay = duration(fault.retry_delay)
        details.append(AnyMessage())
        details[-1].Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    if fault.violations:
        request = error_details_pb2.BadRequest()
        for path, description in fault.violations:
            request.field_violations.add(field=path, description=redact(description))
        details.append(AnyMessage())
        details[-1].Pack(request)
    status.details.extend(details)
    return status


def fault_from_status(status: Status) -> Fault:
    """Decode the fault of a status; without Leaseway's details it becomes INTERNAL."""
    info = error_details_pb2.ErrorInfo()
    fate = execution_pb2.CallFate()
    retry = error_details_pb2.RetryInfo()
    request = error_details_pb2.BadRequest()
    has_info = has_retry = False
    for detail in status.details:
        if detail.Is(info.DESCRIPTOR):
            has_info = detail.Unpack(info)
        elif detail.Is(fate.DESCRIPTOR):
            detail.Unpack(fate)
        elif detail.Is(retry.DESCRIPTOR):
            has_retry = detail.Unpack(retry)
        elif detail.Is(request.DESCRIPTOR):
            detail.Unpack(request)
    if not has_info or info.domain != DOMAIN or info.reason not in Reason.__members__:
        known = status.code and status.code in code_pb2.Code.values()
        name = code_pb2.Code.Name(status.code) if known else f"UNKNOWN ({status.code})"
        return Fault(Reason.INTERNAL, status.message or f"The peer failed with {name}.", "unknown")
    return Fault(
        reason=Reason(info.reason),
        message=status.message,
        started=STARTED_FROM_WIRE.get(fate.started, "unknown"),
        metadata=dict(info.metadata),
        retry_delay=seconds(retry.retry_delay) if has_retry else None,
        violations=tuple((v.field, v.description) for v in request.field_violations),
    )


async def abort(context: grpc.aio.ServicerContext, fault: Fault) -> NoReturn:  # type: ignore[type-arg]
    """Abort an RPC with a fault; never returns."""
    details = status_from_fault(fault).SerializeToString()
    if len(details) > _MAX_DETAIL:
        message = redact(fault.message)[:1024]
        slim = Fault(fault.reason, message, fault.started, retry_delay=fault.retry_delay)
        details = status_from_fault(slim).SerializeToString()
    context.set_trailing_metadata(((_DETAILS_KEY, details),))
    await context.abort(code_of(fault), redact(fault.message)[:1024])


def fault_from_rpc_error(error: grpc.aio.AioRpcError) -> Fault | None:
    """Return the fault that the peer sent, or None.

    None means that the transport failed (unreachable, reset, timed out), not the service.
    """
    for key, value in error.trailing_metadata() or ():
        if key == _DETAILS_KEY and isinstance(value, bytes):
            return fault_from_status(Status.FromString(value))
    return None
