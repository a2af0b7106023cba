"""JSON-RPC as bytes: split a message without parsing its result, build a call by joining.

Pure. A result is found as a slice of the line it came in; only its flags are read from it, by a
second decode that skips all else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from leaseway.data_plane.core.calls.call import ToolRequest
from leaseway.data_plane.mcp.protocol.messages.era import Era

RequestKey = int | str
_LONGEST_KEY: Final = 20
"""Digits of the largest id that a request of ours has."""
_ABSENT: Final = msgspec.Raw()
_encode: Final = msgspec.json.encode


class Envelope(msgspec.Struct, gc=False, frozen=True):
    """One JSON-RPC message, its contents unparsed."""

    id: int | str | float | None = None
    method: str | None = None
    params: msgspec.Raw = _ABSENT
    result: msgspec.Raw = _ABSENT
    error: msgspec.Raw = _ABSENT

    @property
    def is_response(self) -> bool:
        """Whether it answers a request: it has no method, but a result or an error."""
        return self.method is None and bool(memoryview(self.result) or memoryview(self.error))


class RpcError(msgspec.Struct, frozen=True):
    """The `error` of a response."""

    code: int = -32603
    message: str = ""
    data: msgspec.Raw = _ABSENT


class Flags(msgspec.Struct, gc=False, frozen=True):
    """What is read of a result, whatever else it holds."""

    isError: bool | None = None  # noqa: N815 - MCP's name
    resultType: Any = None  # noqa: N815 - MCP's name


decode: Final = msgspec.json.Decoder(Envelope).decode
"""Split one message. Raises `msgspec.DecodeError` where it is none."""

read_flags: Final = msgspec.json.Decoder(Flags).decode
"""Read what a result says of itself. Raises `msgspec.DecodeError` where it is not an object, or
its `isError` not a boolean."""


def request_key(message_id: float | str | None) -> RequestKey | None:
    """Return what a request is known by: servers may echo the id 7 as "7" or 7.0."""
    if isinstance(message_id, str):
        is_ours = len(message_id) <= _LONGEST_KEY and message_id.isdecimal()
        return int(message_id) if is_ours else message_id
    if isinstance(message_id, float):
        return int(message_id) if message_id.is_integer() else None
    return message_id


def encode_call(call_id: int, request: ToolRequest, era: Era) -> bytes:
    """Return a `tools/call`, or what else a caller asks for, as one line."""
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
    if era.meta:
        parts.append(era.answering[request.answers] if request.answers else era.meta)
    if request.meta:
        parts.append(_encode(request.meta)[1:-1])
    if request.on_progress is not None:
        parts.append(b'"progressToken":%d' % call_id)
    if request.on_log is not None and era.modern:
        parts.append(b'"io.modelcontextprotocol/logLevel":%b' % _encode(request.log_level))
    return b',"_meta":{%b}' % b",".join(parts) if parts else b""


def encode_request(
    request_id: RequestKey, method: str, params: Mapping[str, Any] | None, era: Era | None = None
) -> bytes:
    """Return any other request as one line, with the era's `_meta` where one is given."""
    if era is not None and era.meta:
        meta = msgspec.json.decode(b"{%b}" % era.meta)
        params = {**(params or {}), "_meta": meta}
    message = {"jsonrpc": "2.0", "id": request_id, "method": method}
    return _encode({**message, "params": params} if params else message) + b"\n"


def encode_notification(method: str, params: Mapping[str, Any] | None) -> bytes:
    message = {"jsonrpc": "2.0", "method": method}
    return _encode({**message, "params": params} if params is not None else message) + b"\n"


def encode_result(request_id: float | str | None, result: Mapping[str, Any]) -> bytes:
    """Return the answer to a server's request as one line."""
    return _encode({"jsonrpc": "2.0", "id": request_id, "result": result}) + b"\n"


def encode_answer(request_id: float | str | None, result: bytes) -> bytes:
    """Return the answer to a server's request as one line, with the result as it came."""
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}\n' % (_encode(request_id), result)


def encode_error(request_id: float | str | None, code: int, message: str) -> bytes:
    """Return the refusal of a server's request as one line."""
    error = {"code": code, "message": message}
    return _encode({"jsonrpc": "2.0", "id": request_id, "error": error}) + b"\n"
