"""Results and errors, converted to what the client's protocol version expects. Pure.

Most results pass through in the server's bytes. A result is only decoded, at its top level, if it
may contain members that belong to the connection between worker and server.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from leaseway.front.protocol.handshake import CACHE_HINTS, SERVER_META
from leaseway.front.protocol.messages import UNAVAILABLE, JsonRpcError, encode
from leaseway.sdk import (
    AuthorizationFailed,
    ConfirmationRequired,
    InputRequired,
    InvalidArguments,
    LeaseError,
    LeasewayError,
    LoginRequired,
    ServerError,
    Tool,
    ToolNotFound,
)
from leaseway.wire.advice import Reader, advice_for
from leaseway.wire.clients.mcp_client import CAPABILITIES
from leaseway.wire.errors import Reason
from leaseway.wire.messages.admin import ADMIN_TOOLSET, LOGIN_TOOL
from leaseway.wire.messages.mcp import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    MISSING_CAPABILITY,
    UNFIT_KEY,
    UNSUPPORTED_VERSION,
)
from leaseway.wire.messages.portable_json import has_many_values

_RESERVED: Final = "io.modelcontextprotocol/"
_TYPE_MARK: Final = b"resultType"
_OWN_MARK: Final = b"io.modelcontextprotocol"
_ESCAPE: Final = b"\\u"
"""A result that contains one of these is decoded; an escape may hide the others."""
_META_MARK: Final = b'"_meta"'
_PARSING: Final = frozenset({"gemini-cli-mcp-client"})
"""Programs that make structured content of a text."""
_UNFIT_MARK: Final = f'"{UNFIT_KEY}"'.encode()
_CACHE_MARKS: Final = tuple(f'"{name}"'.encode() for name in CACHE_HINTS)
_MODERN: Final = encode({"resultType": "complete", "_meta": SERVER_META})[:-1]
"""How modern results begin that are not decoded."""

RESOURCE_NOT_FOUND: Final = -32002
"""No server has a resource, before 2026-07-28 (2025-11-25, server/resources); since then it is
-32602."""
_OLDER_CODES: Final = {
    HEADER_MISMATCH: INVALID_REQUEST,
    MISSING_CAPABILITY: UNAVAILABLE,
    UNSUPPORTED_VERSION: INVALID_PARAMS,
}
"""Codes that came with 2026-07-28, and what a client of an older era gets for each. Unsupported
versions were invalid params (2025-11-25, lifecycle); the others had no code of their own."""
_CALL_AGAIN: Final = "Call again: the next call gets the server without that state."
_says_missing: Final = re.compile(r"\b(not found|unknown resource|no such)\b", re.IGNORECASE).search
_INSUFFICIENT_SCOPE: Final = "insufficient_scope"
_MAX_SCOPES: Final = 2_048
_INTERNAL: Final = frozenset({Reason.INTERNAL, Reason.INCOMPATIBLE_VERSION})
_INVALID: Final = frozenset({Reason.INVALID_REQUEST, Reason.INVALID_ARGUMENTS})
_OF_LOGIN: Final = ("url", "tenant", "user")

_MAX_ITEMS: Final = 1_000
"""Items of content that are looked at."""
_COMPLETE: Final = msgspec.Raw(b'"complete"')
_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class _Said(msgspec.Struct):
    text: str = ""


def adapt_result(payload: bytes, *, modern: bool, cached: bool = False) -> bytes:
    """Return a server's result in the form of the client's protocol version.

    Args:
        payload: The server's result: a JSON object, or no bytes for an empty one.
        modern: Whether the client speaks 2026-07-28 or newer, where results have a type.
        cached: Whether the result carries cache hints in that version.
    """
    payload = payload or b"{}"
    find = payload.find
    # Without a loop: nearly every result is searched for all three.
    if find(_TYPE_MARK) >= 0 or find(_OWN_MARK) >= 0 or find(_ESCAPE) >= 0:
        return _rewritten(payload, modern, cached)
    if not modern:
        if cached and any(mark in payload for mark in _CACHE_MARKS):
            return _rewritten(payload, modern, cached)
        return payload
    if cached or find(_META_MARK) >= 0:
        return _rewritten(payload, modern, cached)
    rest = payload.lstrip()[1:].lstrip()
    return _MODERN + (b"}" if rest == b"}" else b"," + rest)


def fitting_result(payload: bytes) -> bytes:
    """Return a tool's result in a form that official clients take, whatever its schema says.

    They throw away a whole result whose structured content does not fit the output schema, but
    read an error without any: its texts then have the structured content, and why it is an error.
    """
    if payload.find(_UNFIT_MARK) < 0:
        return payload
    try:
        members: dict[str, Any] = dict(_members(payload))
        why = msgspec.json.decode(_members(members["_meta"])[UNFIT_KEY], type=str)
        content = msgspec.json.decode(members.get("content", b"[]"), type=list[msgspec.Raw])
    except (ValueError, KeyError, TypeError, RecursionError):  # the mark is somewhere else
        return payload
    structured = bytes(members.pop("structuredContent", b"null"))
    if structured != b"null" and not _is_said(content, structured):
        content.append(_text(structured.decode()))
    if bytes(members.get("isError", b"")) != b"true":
        content.append(
            _text(
                "The tool has run, and this is its result. It is marked as an error because "
                f"clients reject results that do not fit the tool's output schema: {why}"
            )
        )
    return encode({**members, "content": content, "isError": True})


def result_for_program(payload: bytes, program: object) -> bytes:
    """Return a tool's result that its client's program does not reject.

    Gemini CLI (since 0.43) takes the first text of a result without structured content for that,
    if it is JSON, and rejects the result if it is no object then. So a list becomes a member.

    Args:
        payload: The result for a client of a version before 2026-07-28.
        program: The name in `clientInfo`.
    """
    if program not in _PARSING or payload.find(b'"structuredContent"') >= 0:
        return payload
    try:
        members = _members(payload)
        first = msgspec.json.decode(members["content"], type=list[msgspec.Raw])[0]
        value = msgspec.json.decode(first, type=_Said).text.strip(" \t\r\n")
        msgspec.json.decode(value, type=msgspec.Raw)  # it is JSON
    except (ValueError, KeyError, IndexError, RecursionError):
        return payload
    if value.startswith("{"):
        return payload
    return encode({**members, "structuredContent": msgspec.Raw(b'{"result":%b}' % value.encode())})


def _text(text: str) -> msgspec.Raw:
    return msgspec.Raw(encode({"type": "text", "text": text}))


def _is_said(content: list[msgspec.Raw], value: bytes) -> bool:
    """Return whether an item of content is a text with a JSON value; not looked for in much."""
    if len(content) > _MAX_ITEMS or has_many_values(value):
        return False
    try:
        wanted = msgspec.json.decode(value)
        return any(_is_text_of(item, wanted) for item in content)
    except (ValueError, RecursionError):
        return False


def _is_text_of(item: msgspec.Raw, wanted: Any) -> bool:
    try:
        said = msgspec.json.decode(item, type=_Said).text.encode()
        return not has_many_values(said) and bool(msgspec.json.decode(said) == wanted)
    except (ValueError, RecursionError):
        return False


def strip_meta(meta: dict[str, Any]) -> dict[str, Any]:
    """Return a `_meta` without the protocol's own keys, which belong to one connection."""
    return {key: value for key, value in meta.items() if not key.startswith(_RESERVED)}


def _rewritten(payload: bytes, modern: bool, cached: bool) -> bytes:
    members: dict[str, Any] = dict(_members(payload))
    result_type = members.pop("resultType", None)
    own = bytes(members.pop("_meta", b""))
    meta = strip_meta(dict(_members(own))) if own.startswith(b"{") else {}
    if modern:
        meta |= SERVER_META
        members["resultType"] = result_type if result_type is not None else "complete"
    if meta:
        members["_meta"] = meta
    if cached:
        # Hints are members of complete results of this era. Grants and the session decide what is
        # read, so no shared cache may keep it, whatever the server says about its own callers.
        hints = {name: members.pop(name, None) for name in CACHE_HINTS}
        if modern and result_type in (None, _COMPLETE):
            ttl = hints["ttlMs"]
            known = {"ttlMs": ttl} if ttl is not None and _is_duration(ttl) else {}
            members = {**members, **CACHE_HINTS, **known}
    return encode(members)


def _is_duration(value: msgspec.Raw) -> bool:
    """Return whether a JSON value is a whole number of milliseconds."""
    return bytes(value).isdigit()


def rpc_error(error: LeasewayError, uri: str = "", *, modern: bool) -> JsonRpcError:
    """Return the JSON-RPC error for an SDK error, by a code that the client's era has.

    A server's own error keeps its message and data.

    Args:
        error: The SDK's error.
        uri: The URI of the requested resource, for the error's data; empty for other requests.
        modern: Whether the client speaks 2026-07-28 or newer.
    """
    converted = _converted(error, uri)
    if not modern:
        converted.code = _OLDER_CODES.get(converted.code, converted.code)
    return converted


def _converted(error: LeasewayError, uri: str) -> JsonRpcError:
    data: dict[str, Any]
    if isinstance(error, ServerError) and error.code is not None:
        return JsonRpcError(error.code, error.metadata.get("message", error.message), error.data)
    if isinstance(error, InputRequired) and error.method in CAPABILITIES:
        capability = error.metadata.get("capability", CAPABILITIES[error.method])
        required: dict[str, Any] = {}
        for part in reversed(capability.split(".")):  # such as `elicitation.url`
            required = {part: required}
        data = {
            "requiredCapabilities": required,
            "reason": str(error.reason),
            "started": error.started,
        }
        return JsonRpcError(MISSING_CAPABILITY, error.message, data)
    data = {"reason": str(error.reason), "started": error.started}
    if uri:
        data["uri"] = uri
    if error.retry_after is not None:
        data["retryAfter"] = error.retry_after
    if isinstance(error, ConfirmationRequired):
        data["confirmationId"] = error.confirmation_id
    if isinstance(error, LoginRequired):
        data |= {name: error.metadata[name] for name in _OF_LOGIN if name in error.metadata}
    if server := error.metadata.get("server"):
        data["server"] = server
    message = f"{error}{advice_for(Reader.MODEL, error.metadata)}"
    if isinstance(error, LeaseError):
        message = f"{message} {_CALL_AGAIN}"
    converted = JsonRpcError(_code(error), message, data)
    if isinstance(error, AuthorizationFailed) and error.oauth_error == _INSUFFICIENT_SCOPE:
        converted.needed_scope = data["scope"] = _scopes_in(error.metadata.get("scope", ""))
    return converted


def _scopes_in(text: str) -> str:
    """Return a server's list of scopes for a header: those that may be in one (RFC 6749, 3.3)."""
    scopes = text[:_MAX_SCOPES].split()
    return " ".join(
        scope for scope in scopes if all("!" <= c <= "~" and c not in '"\\' for c in scope)
    )


def resource_error(error: LeasewayError, uri: str, *, modern: bool, at_server: str) -> JsonRpcError:
    """Return the JSON-RPC error for a request about one resource.

    That no server has it is said by another code in each era, whatever the era of the server.

    Args:
        error: The SDK's error.
        uri: The URI by which the client knows the resource.
        modern: Whether the client speaks 2026-07-28 or newer.
        at_server: The URI by which its server knows it.
    """
    converted = rpc_error(error, uri, modern=modern)
    is_missing = _is_missing_resource(error, converted, at_server)
    if isinstance(converted.data, dict) and converted.data.get("uri") == at_server:
        converted.data = {**converted.data, "uri": uri}
    if not is_missing:
        return converted
    converted.code = INVALID_PARAMS if modern else RESOURCE_NOT_FOUND
    if converted.data is None:
        converted.data = {"uri": uri}
    return converted


def _is_missing_resource(error: LeasewayError, converted: JsonRpcError, uri: str) -> bool:
    if not isinstance(error, ServerError):
        return isinstance(error, ToolNotFound)
    if converted.code == RESOURCE_NOT_FOUND:
        return True
    # Since 2026-07-28 the code also means other invalid params; the data name the resource.
    data = converted.data
    names_it = isinstance(data, dict) and data.get("uri") == uri
    return converted.code == INVALID_PARAMS and (
        names_it or _says_missing(converted.message) is not None
    )


def error_result(error: LeasewayError, tool: Tool | None) -> bytes | None:
    """Return a tool result with `isError` for an error that a model can correct, else None.

    One that has only to tell its person where to log in is the answer of the tool for that: many
    clients show models nothing but results.
    """
    if isinstance(error, InvalidArguments):
        return tool_error(str(error))
    if isinstance(error, LoginRequired) and error.url and is_login(tool):
        return tool_error(f"{error}{advice_for(Reader.MODEL, error.metadata)}")
    return None


def is_login(tool: Tool | None) -> bool:
    """Return whether a tool is Leaseway's own for logins."""
    return tool is not None and tool.server_id == ADMIN_TOOLSET and tool.original_name == LOGIN_TOOL


def tool_error(text: str) -> bytes:
    """Return a tool result with `isError`, which models read."""
    return encode({"content": [{"type": "text", "text": text}], "isError": True})


def _code(error: LeasewayError) -> int:
    is_hidden = error.metadata.get("offered") == "no"  # the server knows no such tool of its client
    if isinstance(error, ToolNotFound) or error.reason in _INVALID or is_hidden:
        return INVALID_PARAMS
    return INTERNAL_ERROR if error.reason in _INTERNAL else UNAVAILABLE
