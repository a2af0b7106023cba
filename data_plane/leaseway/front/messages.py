"""JSON-RPC messages as bytes: read without parsing what is passed on, written by joining. Pure."""

from __future__ import annotations

from typing import Any, Final, NoReturn, TypeVar

import msgspec
from mcp_types.jsonrpc import INVALID_PARAMS, INVALID_REQUEST, PARSE_ERROR

ABSENT: Final = msgspec.Raw()
"""A member that a message does not have."""

encode: Final = msgspec.json.encode
"""Write any plain value as JSON."""

decode: Final = msgspec.json.decode
"""Read any JSON."""

ParamsT = TypeVar("ParamsT", bound="ListParams")
ArgumentsT = TypeVar("ArgumentsT", bound=msgspec.Struct)


class RpcError(Exception):
    """What a request is answered with instead of a result."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


class Message(msgspec.Struct, frozen=True, gc=False):
    """One message, its contents unparsed; `id` is JSON, so that it goes back as it came."""

    id: msgspec.Raw = ABSENT
    method: str | None = None
    params: msgspec.Raw = ABSENT
    result: msgspec.Raw = ABSENT
    error: msgspec.Raw = ABSENT

    @property
    def request_id(self) -> bytes:
        return bytes(self.id)


class ListParams(msgspec.Struct):
    """What every request may have, and a list's cursor."""

    meta: dict[str, Any] | None = msgspec.field(default=None, name="_meta")
    cursor: str | None = None


class Continued(ListParams):
    """A request that may go on from an `input_required` result."""

    responses: msgspec.Raw = msgspec.field(default=ABSENT, name="inputResponses")
    state: str | None = msgspec.field(default=None, name="requestState")


class CallParams(Continued, kw_only=True):
    """Params of `tools/call`."""

    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")

    def arguments_json(self) -> bytes:
        """Return the arguments as one JSON object.

        Raises:
            RpcError: They are something else.
        """
        arguments = bytes(self.arguments)
        if arguments == b"null":
            return b"{}"
        if not arguments.startswith(b"{"):
            raise RpcError(INVALID_PARAMS, "The arguments of a tool are one JSON object.")
        return arguments


class PromptParams(Continued, kw_only=True):
    """Params of `prompts/get`."""

    name: str
    arguments: dict[str, str] | None = None


class ResourceParams(Continued, kw_only=True):
    """Params of the requests about one resource."""

    uri: str


class _Reference(msgspec.Struct):
    type: str
    name: str | None = None
    uri: str | None = None


class _Argument(msgspec.Struct):
    name: str
    value: str


class _Context(msgspec.Struct):
    arguments: dict[str, str] | None = None


class CompleteParams(ListParams, kw_only=True):
    """Params of `completion/complete`."""

    ref: _Reference
    argument: _Argument
    context: _Context | None = None


class SetLevelParams(ListParams, kw_only=True):
    """Params of `logging/setLevel`."""

    level: str


class ListenFilter(msgspec.Struct, rename="camel"):
    """What a client wants to hear of."""

    tools_list_changed: bool = False
    prompts_list_changed: bool = False
    resources_list_changed: bool = False
    resource_subscriptions: list[str] = []


class ListenParams(ListParams, kw_only=True):
    """Params of `subscriptions/listen`."""

    notifications: ListenFilter


_split: Final = msgspec.json.Decoder(Message).decode
_decoders: Final[dict[type, msgspec.json.Decoder[Any]]] = {
    kind: msgspec.json.Decoder(kind)
    for kind in (
        ListParams,
        CallParams,
        PromptParams,
        ResourceParams,
        CompleteParams,
        SetLevelParams,
        ListenParams,
    )
}


def read_message(line: bytes | str) -> Message:
    """Split one message.

    Raises:
        RpcError: It is no JSON, or no single JSON-RPC message.
    """
    try:
        message = _split(line)
    except msgspec.ValidationError:
        raise RpcError(INVALID_REQUEST, "This is no single JSON-RPC message.") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise RpcError(PARSE_ERROR, "This is no JSON.") from None
    first = bytes(message.id)[:1]
    if first and first not in b'"-0123456789':
        raise RpcError(INVALID_REQUEST, "The id of a request is a text or a number.")
    return message


def params_of(message: Message, kind: type[ParamsT]) -> ParamsT:
    """Return a message's params.

    Raises:
        RpcError: They have not the shape that the method wants.
    """
    try:
        params: ParamsT = _decoders[kind].decode(message.params or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        _refuse(message, error)
    return params


def _refuse(message: Message, error: Exception) -> NoReturn:
    raise RpcError(INVALID_PARAMS, f"The params of {message.method} are wrong: {error}") from None


def result_message(request_id: bytes, result: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (request_id, result)


def error_message(request_id: bytes, error: RpcError) -> bytes:
    """Return the response to a request that failed; without an id it names none."""
    body: dict[str, Any] = {"code": error.code, "message": error.message}
    if error.data is not None:
        body["data"] = error.data
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (request_id or b"null", encode(body))


def notification(method: str, params: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","method":%b,"params":%b}' % (encode(method), params)


def request_message(request_id: bytes, method: str, params: bytes) -> bytes:
    parts = (request_id, encode(method), params)
    return b'{"jsonrpc":"2.0","id":%b,"method":%b,"params":%b}' % parts


class _Cancelled(msgspec.Struct):
    id: msgspec.Raw = msgspec.field(default=ABSENT, name="requestId")


_cancelled: Final = msgspec.json.Decoder(_Cancelled).decode


def cancelled_request(message: Message) -> bytes:
    """Return the id, as JSON, of the request that a client cancels; empty where it names none."""
    try:
        return bytes(_cancelled(message.params).id)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return b""


def read_arguments(tool: str, arguments: bytes, kind: type[ArgumentsT]) -> ArgumentsT:
    """Return the arguments of one of the front's own tools.

    Raises:
        RpcError: They do not fit.
    """
    try:
        return msgspec.json.decode(arguments, type=kind)
    except (ValueError, RecursionError) as error:
        known = ", ".join(field.encode_name for field in msgspec.structs.fields(kind))
        raise RpcError(
            INVALID_PARAMS, f"The arguments of {tool} are wrong: {error}. It knows {known}."
        ) from None


def structured_result(text: str, structured: dict[str, Any]) -> bytes:
    """Return a tool's result as text and as data."""
    content = [{"type": "text", "text": text}]
    return encode({"content": content, "structuredContent": structured})
