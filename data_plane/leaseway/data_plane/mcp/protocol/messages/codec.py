"""JSON-RPC as bytes: decode a message without its result, encode a call by concatenation. Pure.

A result is a slice of its line, which `results` looks at.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import msgspec

from leaseway.data_plane.core.calls.call import ToolRequest
from leaseway.data_plane.mcp.protocol.messages.era import Era

RequestKey = int | str
_MAX_ID_DIGITS: Final = 20
"""Digits of our largest request id."""
_ABSENT: Final = msgspec.Raw()
"""What a member that a message lacks is; the decoder keeps this very object."""
_encode: Final = msgspec.json.encode


class JsonRpcMessage(msgspec.Struct, gc=False, frozen=True):
    """A JSON-RPC message with undecoded contents.

    Attributes:
        was_cut: Whether values that were nested too deeply to be read became null.
        jsonrpc: The version; None for what may also be a line of a log in JSON.
    """

    was_cut: ClassVar[bool] = False
    jsonrpc: str | float | None = None
    id: int | str | float | None = None
    method: str | None = None
    params: msgspec.Raw = _ABSENT
    result: msgspec.Raw = _ABSENT
    error: msgspec.Raw = _ABSENT

    @property
    def is_response(self) -> bool:
        """Whether it is a response: it has a result or an error.

        Some servers repeat the members of the request in it, its method included. Others write all
        members in each message: null beside a method is none.
        """
        if self.method is None:
            return self.result is not _ABSENT or self.error is not _ABSENT
        return not (_is_none(self.result) and _is_none(self.error))

    @property
    def is_none(self) -> bool:
        """Whether it is JSON, but no message."""
        return self.method is None and not self.is_response

    @property
    def has_error(self) -> bool:
        """Whether it is an error response; libraries of older JSON-RPC add null to results."""
        if self.error is _ABSENT:
            return False
        return bytes(self.error) != b"null" or self.result is _ABSENT


def _is_none(member: msgspec.Raw) -> bool:
    return bytes(memoryview(member)[:5]) in (b"", b"null")


class CutMessage(JsonRpcMessage, gc=False, frozen=True):
    """A message that was nested too deeply to be read whole."""

    was_cut: ClassVar[bool] = True


class ResponseError(msgspec.Struct, frozen=True):
    """The `error` of a response."""

    code: int = -32603
    message: str = ""
    data: msgspec.Raw = _ABSENT


def request_key(message_id: float | str | None) -> RequestKey | None:
    """Return the key of a request: servers may echo the id 7 as "7" or 7.0."""
    if isinstance(message_id, str):
        is_ours = len(message_id) <= _MAX_ID_DIGITS and message_id.isdecimal()
        return int(message_id) if is_ours else message_id
    if isinstance(message_id, float):
        return int(message_id) if message_id.is_integer() else None
    return message_id


def encode_call(call_id: int, request: ToolRequest, era: Era) -> bytes:
    """Return a `tools/call`, or another request of a caller, as one line."""
    if request.method:
        return _encode_other(call_id, request, era)
    arguments = request.arguments or b"{}"
    if b"\n" in arguments or b"\r" in arguments:
        # A newline would end the message on a pipe; in valid JSON it is only whitespace.
        arguments = msgspec.json.format(arguments, indent=-1)
    return b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{%b%b%b%b}}\n' % (
        call_id,
        request.params_head,
        arguments,
        _call_meta(call_id, request, era),
        request.continuation if era.modern else b"",
    )


def _encode_other(call_id: int, request: ToolRequest, era: Era) -> bytes:
    return b'{"jsonrpc":"2.0","id":%d,"method":%b,"params":{%b%b%b}}\n' % (
        call_id,
        _encode(request.method),
        request.arguments[1:-1],
        request.continuation if era.modern else b"",
        _call_meta(call_id, request, era),
    )


def _call_meta(call_id: int, request: ToolRequest, era: Era) -> bytes:
    parts = []
    caller = request.callbacks
    if era.meta:
        if caller.client is not None:
            parts.append(era.meta_for(caller.client))
        else:
            parts.append(era.answering[caller.answers] if caller.answers else era.meta)
    if request.meta:
        parts.append(_encode(request.meta)[1:-1])
    if caller.on_progress is not None:
        parts.append(b'"progressToken":%d' % call_id)
    if caller.on_log is not None and era.modern:
        parts.append(b'"io.modelcontextprotocol/logLevel":%b' % _encode(caller.log_level))
    return b',"_meta":{%b}' % b",".join(parts) if parts else b""


def encode_request(
    request_id: RequestKey, method: str, params: Mapping[str, Any] | None, era: Era | None = None
) -> bytes:
    """Return a request as one line, with the era's `_meta` if given."""
    if era is not None and era.meta:
        meta = msgspec.json.decode(b"{%b}" % era.own)
        params = {**(params or {}), "_meta": meta}
    message = {"jsonrpc": "2.0", "id": request_id, "method": method}
    return _encode({**message, "params": params} if params else message) + b"\n"


def encode_notification(method: str, params: Mapping[str, Any] | None) -> bytes:
    message = {"jsonrpc": "2.0", "method": method}
    return _encode({**message, "params": params} if params is not None else message) + b"\n"


def encode_result(request_id: float | str | None, result: Mapping[str, Any]) -> bytes:
    """Return the response to a server's request as one line."""
    return _encode({"jsonrpc": "2.0", "id": request_id, "result": result}) + b"\n"


def encode_answer(request_id: float | str | None, result: bytes) -> bytes:
    """Return the response to a server's request as one line, with an encoded result."""
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}\n' % (_encode(request_id), result)


def encode_error(
    request_id: float | str | None, code: int, message: str, data: bytes = b""
) -> bytes:
    """Return an error response to a server's request as one line; `data` are JSON on one line."""
    error: dict[str, Any] = {"code": code, "message": message}
    if data:
        error["data"] = msgspec.Raw(data)
    return _encode({"jsonrpc": "2.0", "id": request_id, "error": error}) + b"\n"
