"""Errors of the SDK as MCP clients see them. Pure."""

from __future__ import annotations

from typing import Any, Final

from mcp_types.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
)

from leaseway.front.messages import RpcError, encode
from leaseway.sdk.errors import (
    ConfirmationRequired,
    InputRequired,
    InvalidArguments,
    LeasewayError,
    ServerError,
    ToolNotFound,
)
from leaseway.wire.errors import Reason
from leaseway.wire.messages.mcp import ELICIT, ROOTS, SAMPLE

_UNAVAILABLE: Final = -32000
"""JSON-RPC leaves -32000 to -32019 to implementations; `data.reason` tells them apart."""
_INTERNAL: Final = frozenset({Reason.INTERNAL, Reason.INCOMPATIBLE_VERSION})
_OF_THE_REQUEST: Final = frozenset({Reason.INVALID_REQUEST, Reason.INVALID_ARGUMENTS})
_CAPABILITIES: Final = {ELICIT: "elicitation", SAMPLE: "sampling", ROOTS: "roots"}


def rpc_error(error: LeasewayError, uri: str = "") -> RpcError:
    """Return the JSON-RPC error for a failure of the system, or the server's own as it was.

    Args:
        error: What happened.
        uri: The resource that was asked for, if one was; clients find it in the error's data.
    """
    data: dict[str, Any]
    if isinstance(error, ServerError) and error.code is not None:
        return RpcError(error.code, error.metadata.get("message", error.message), error.data)
    if isinstance(error, InputRequired) and error.method in _CAPABILITIES:
        needed: dict[str, Any] = {"requiredCapabilities": {_CAPABILITIES[error.method]: {}}}
        data = {**needed, "reason": str(error.reason), "started": error.started}
        return RpcError(MISSING_REQUIRED_CLIENT_CAPABILITY, error.message, data)
    data = {"reason": str(error.reason), "started": error.started}
    if uri:
        data["uri"] = uri
    if error.retry_after is not None:
        data["retryAfter"] = error.retry_after
    if isinstance(error, ConfirmationRequired):
        data["confirmationId"] = error.confirmation_id
    if server := error.metadata.get("server"):
        data["server"] = server
    return RpcError(_code(error), str(error), data)


def failed_call(error: LeasewayError) -> bytes | None:
    """Return a tool's result that tells a model what to correct; None where it can't."""
    if not isinstance(error, InvalidArguments):
        return None
    return encode({"content": [{"type": "text", "text": str(error)}], "isError": True})


def _code(error: LeasewayError) -> int:
    if isinstance(error, ToolNotFound) or error.reason in _OF_THE_REQUEST:
        return INVALID_PARAMS
    return INTERNAL_ERROR if error.reason in _INTERNAL else _UNAVAILABLE
