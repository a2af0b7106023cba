"""Results and errors, converted to what the client's protocol version expects. Pure.

Most results pass through in the server's bytes. A result is only decoded, at its top level, if it
may contain members that belong to the connection between worker and server.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from mcp_types.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
)

from leaseway.front.handshake import CACHE_HINTS
from leaseway.front.messages import JsonRpcError, encode
from leaseway.sdk import (
    ConfirmationRequired,
    InputRequired,
    InvalidArguments,
    LeasewayError,
    ServerError,
    ToolNotFound,
)
from leaseway.wire.errors import Reason
from leaseway.wire.messages.mcp import ELICIT, ROOTS, SAMPLE

_RESERVED: Final = "io.modelcontextprotocol/"
_REWRITE_MARKS: Final = (b"resultType", b"io.modelcontextprotocol", b"\\u")
"""A result that contains one of these is decoded; an escape may hide the others."""
_TYPED: Final = b'{"resultType":"complete"'

_UNAVAILABLE: Final = -32000
"""JSON-RPC leaves -32000 to -32019 to implementations; `data.reason` tells them apart."""
_INTERNAL: Final = frozenset({Reason.INTERNAL, Reason.INCOMPATIBLE_VERSION})
_INVALID: Final = frozenset({Reason.INVALID_REQUEST, Reason.INVALID_ARGUMENTS})
_CAPABILITIES: Final = {ELICIT: "elicitation", SAMPLE: "sampling", ROOTS: "roots"}

_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def adapt_result(payload: bytes, *, modern: bool, cached: bool = False) -> bytes:
    """Return a server's result in the form of the client's protocol version.

    Args:
        payload: The server's result: a JSON object, or no bytes for an empty one.
        modern: Whether the client speaks 2026-07-28 or newer, where results have a type.
        cached: Whether the result carries cache hints in that version.
    """
    payload = payload or b"{}"
    for mark in _REWRITE_MARKS:
        if mark in payload:
            return _rewritten(payload, modern, cached)
    if modern and cached:
        return _rewritten(payload, modern, cached)
    if not modern:
        return payload
    rest = payload.lstrip()[1:].lstrip()
    return _TYPED + (b"}" if rest == b"}" else b"," + rest)


def strip_meta(meta: dict[str, Any]) -> dict[str, Any]:
    """Return a `_meta` without the protocol's own keys, which belong to one connection."""
    return {key: value for key, value in meta.items() if not key.startswith(_RESERVED)}


def _rewritten(payload: bytes, modern: bool, cached: bool) -> bytes:
    members: dict[str, Any] = dict(_members(payload))
    result_type = members.pop("resultType", None)
    if "_meta" in members:
        meta = msgspec.json.decode(members["_meta"])
        stripped = strip_meta(meta) if isinstance(meta, dict) else {}
        if stripped:
            members["_meta"] = stripped
        else:
            del members["_meta"]
    if modern:
        members["resultType"] = result_type if result_type is not None else "complete"
        if cached:
            # Grants and the session decide what is read, so no shared cache may keep it, whatever
            # the server says about its own callers.
            ttl = members.pop("ttlMs", None)
            known = {"ttlMs": ttl} if ttl is not None and _is_duration(ttl) else {}
            members = {**members, **CACHE_HINTS, **known}
    return encode(members)


def _is_duration(value: msgspec.Raw) -> bool:
    """Return whether a JSON value is a whole number of milliseconds."""
    return bytes(value).isdigit()


def rpc_error(error: LeasewayError, uri: str = "") -> JsonRpcError:
    """Return the JSON-RPC error for an SDK error; a server's own error stays unchanged.

    Args:
        error: The SDK's error.
        uri: The URI of the requested resource, for the error's data; empty for other requests.
    """
    data: dict[str, Any]
    if isinstance(error, ServerError) and error.code is not None:
        return JsonRpcError(error.code, error.metadata.get("message", error.message), error.data)
    if isinstance(error, InputRequired) and error.method in _CAPABILITIES:
        required: dict[str, Any] = {"requiredCapabilities": {_CAPABILITIES[error.method]: {}}}
        data = {**required, "reason": str(error.reason), "started": error.started}
        return JsonRpcError(MISSING_REQUIRED_CLIENT_CAPABILITY, error.message, data)
    data = {"reason": str(error.reason), "started": error.started}
    if uri:
        data["uri"] = uri
    if error.retry_after is not None:
        data["retryAfter"] = error.retry_after
    if isinstance(error, ConfirmationRequired):
        data["confirmationId"] = error.confirmation_id
    if server := error.metadata.get("server"):
        data["server"] = server
    return JsonRpcError(_code(error), str(error), data)


def error_result(error: LeasewayError) -> bytes | None:
    """Return a tool result with `isError` for an error that a model can correct, else None."""
    if not isinstance(error, InvalidArguments):
        return None
    return tool_error(str(error))


def tool_error(text: str) -> bytes:
    """Return a tool result with `isError`, which models read."""
    return encode({"content": [{"type": "text", "text": text}], "isError": True})


def _code(error: LeasewayError) -> int:
    if isinstance(error, ToolNotFound) or error.reason in _INVALID:
        return INVALID_PARAMS
    return INTERNAL_ERROR if error.reason in _INTERNAL else _UNAVAILABLE
