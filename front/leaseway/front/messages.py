"""JSON-RPC messages as bytes. Members that are only relayed stay unparsed. Pure."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, TypeVar

import msgspec
from mcp.shared.inbound import InboundLadderRejection, classify_inbound_request
from mcp_types.jsonrpc import INVALID_PARAMS, INVALID_REQUEST, PARSE_ERROR

from leaseway.front.handshake import BATCH_VERSION
from leaseway.wire import bounds
from leaseway.wire.mcp_client import McpClient
from leaseway.wire.messages.portable_json import has_many_values

_ID_BEGINS: Final = b'"-0123456789'
"""How the JSON of a request's id begins: a string or a number."""
ABSENT: Final = msgspec.Raw()
"""The value of a missing member."""

encode: Final = msgspec.json.encode
decode: Final = msgspec.json.decode

_MAX_REASON: Final = 256
"""Characters of a client's reason for a cancellation that are passed on."""

ParamsT = TypeVar("ParamsT", bound="ListParams")
ArgumentsT = TypeVar("ArgumentsT", bound=msgspec.Struct)


class JsonRpcError(Exception):
    """The error object of a JSON-RPC response.

    Args:
        code: Its code.
        message: What failed, where, why, and what to do.
        data: More about it, or None.
        request_id: The id of the failed request as JSON, if the message could not be read further.

    Attributes:
        needed_scope: The scopes that the caller's own token must have, or None.
    """

    needed_scope: str | None = None

    def __init__(
        self, code: int, message: str, data: Any = None, *, request_id: bytes = b""
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data
        self.request_id = request_id


class Message(msgspec.Struct, frozen=True, gc=False):
    """One message with unparsed members; `id` is JSON, so that the response repeats it exactly."""

    jsonrpc: Literal["2.0"]
    id: msgspec.Raw = ABSENT
    method: str | None = None
    params: msgspec.Raw = ABSENT
    result: msgspec.Raw = ABSENT
    error: msgspec.Raw = ABSENT

    @property
    def request_id(self) -> bytes:
        return bytes(self.id)


class ListParams(msgspec.Struct):
    """`_meta`, which every request may have, and the cursor of a list request."""

    meta: dict[str, Any] | None = msgspec.field(default=None, name="_meta")
    cursor: str | None = None


class ResumableParams(ListParams):
    """Params of a request that may answer an earlier `input_required` result."""

    responses: msgspec.Raw = msgspec.field(default=ABSENT, name="inputResponses")
    state: str | None = msgspec.field(default=None, name="requestState")


class CallParams(ResumableParams, kw_only=True):
    """Params of `tools/call`."""

    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")

    def arguments_json(self) -> bytes:
        """Return the arguments as one JSON object; raises `JsonRpcError` for another type."""
        arguments = bytes(self.arguments)
        if arguments == b"null":
            return b"{}"
        if not arguments.startswith(b"{"):
            raise JsonRpcError(INVALID_PARAMS, "The arguments of a tool must be one JSON object.")
        return arguments


class PromptParams(ResumableParams, kw_only=True):
    """Params of `prompts/get`."""

    name: str
    arguments: dict[str, str] | None = None


class ResourceParams(ResumableParams, kw_only=True):
    """Params of requests about one resource."""

    uri: str


class _CompletionReference(msgspec.Struct):
    type: str
    name: str | None = None
    uri: str | None = None


class _CompletionArgument(msgspec.Struct):
    name: str
    value: str


class _CompletionContext(msgspec.Struct):
    arguments: dict[str, str] | None = None


class CompleteParams(ListParams, kw_only=True):
    """Params of `completion/complete`."""

    ref: _CompletionReference
    argument: _CompletionArgument
    context: _CompletionContext | None = None


class SetLevelParams(ListParams, kw_only=True):
    """Params of `logging/setLevel`."""

    level: str


class ListenFilter(msgspec.Struct, rename="camel", omit_defaults=True):
    """The changes that a client subscribes to; encodes only those."""

    tools_list_changed: bool = False
    prompts_list_changed: bool = False
    resources_list_changed: bool = False
    resource_subscriptions: list[str] = []


class ListenParams(ListParams, kw_only=True):
    """Params of `subscriptions/listen`."""

    notifications: ListenFilter


class _Identified(msgspec.Struct):
    id: msgspec.Raw = ABSENT


_decode_message: Final = msgspec.json.Decoder(Message).decode
_decode_batch: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_TOO_MANY_VALUES: Final = (
    f"This has more than {bounds.MAX_VALUES} values and keys. Send fewer messages at once."
)
_decode_id: Final = msgspec.json.Decoder(_Identified).decode


@functools.cache
def _decoder(kind: type[ParamsT]) -> msgspec.json.Decoder[ParamsT]:
    return msgspec.json.Decoder(kind)


def parse_message(line: bytes | str) -> Message:
    """Decode one JSON-RPC message; raises `JsonRpcError` for anything else."""
    try:
        message = _decode_message(line)
    except msgspec.ValidationError as error:
        text = f"This is not a single JSON-RPC 2.0 message: {error}."
        raise JsonRpcError(INVALID_REQUEST, text, request_id=_id_in(line)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise JsonRpcError(PARSE_ERROR, "This is not JSON.") from None
    request_id = bytes(message.id)
    if request_id and request_id[:1] not in _ID_BEGINS:
        raise JsonRpcError(INVALID_REQUEST, "The id of a request must be a string or a number.")
    return message


def check_has_batches(version: str) -> None:
    """Raise `JsonRpcError` unless a protocol version has batches."""
    if version != BATCH_VERSION:
        raise JsonRpcError(
            INVALID_REQUEST,
            f"Protocol version {version} has no batches: send each message by itself.",
        )


def is_batch(line: bytes) -> bool:
    """Return whether a client sent an array, which is a batch of messages in 2025-03-26."""
    return line.lstrip()[:1] == b"["


def parse_batch(line: bytes) -> list[Message | JsonRpcError]:
    """Return the messages of a batch, with an error in the place of each that is none.

    Raises:
        JsonRpcError: The batch is empty, too long, or no JSON.
    """
    if len(line) > bounds.MAX_VALUES and has_many_values(line):
        raise JsonRpcError(INVALID_REQUEST, _TOO_MANY_VALUES)
    try:
        parts = _decode_batch(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise JsonRpcError(PARSE_ERROR, "This is not JSON.") from None
    if not 0 < len(parts) <= bounds.MAX_JSON_RPC_BATCH:
        text = f"A batch has 1 to {bounds.MAX_JSON_RPC_BATCH} messages, this one has {len(parts)}."
        raise JsonRpcError(INVALID_REQUEST, text)
    return [_parse_part(bytes(part)) for part in parts]


def _parse_part(line: bytes) -> Message | JsonRpcError:
    try:
        message = parse_message(line)
    except JsonRpcError as error:
        return error
    if message.method == "initialize":
        text = "`initialize` must not be part of a batch: send it alone, and first."
        return JsonRpcError(INVALID_REQUEST, text, request_id=message.request_id)
    if message.method is None and not message.request_id:
        return JsonRpcError(INVALID_REQUEST, "A message has a method, or the id of a request.")
    return message


def _is_id(request_id: bytes) -> bool:
    """Return whether JSON is missing, or a value that identifies a request."""
    return not request_id or request_id[:1] in _ID_BEGINS


def _id_in(line: bytes | str) -> bytes:
    """Return the id in a message that is invalid otherwise; empty if it has none."""
    try:
        request_id = bytes(_decode_id(line).id)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return b""
    return request_id if _is_id(request_id) else b""


def parse_params(message: Message, kind: type[ParamsT]) -> ParamsT:
    """Decode a message's params; raises `JsonRpcError` if they do not match the method's schema."""
    sent = message.params
    if len(sent) > bounds.MAX_VALUES:
        check_params(message)
    try:
        params: ParamsT = _decoder(kind).decode(sent or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        text = f"The params of {message.method} are wrong: {error}"
        raise JsonRpcError(INVALID_PARAMS, text) from None
    return params


class _NameAndMeta(msgspec.Struct):
    name: str | None = None
    meta: msgspec.Raw = msgspec.field(default=ABSENT, name="_meta")


_decode_name_and_meta: Final = msgspec.json.Decoder(_NameAndMeta).decode


def read_name_and_meta(message: Message) -> tuple[str | None, bytes]:
    """Return the `name` and `_meta` of a request's params."""
    try:
        params = _decode_name_and_meta(message.params)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None, b""  # the method's handler reports the error
    return params.name, bytes(params.meta)


def _has_many_values(params: msgspec.Raw) -> bool:
    return len(params) > bounds.MAX_VALUES and has_many_values(bytes(params))


def check_params(message: Message) -> None:
    """Raise `JsonRpcError` for params that would block the event loop if they were decoded."""
    if _has_many_values(message.params):
        raise JsonRpcError(
            INVALID_PARAMS,
            f"The params of {message.method} have more than {bounds.MAX_VALUES} values and keys. "
            "Pass large data by reference, or as one text.",
        )


def object_params(message: Message) -> dict[str, Any] | None:
    """Return a message's params if they are a JSON object of a permitted size, else None."""
    if _has_many_values(message.params):
        return None
    try:
        params = decode(message.params)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return params if isinstance(params, dict) else None


def modern_client(message: Message, headers: Mapping[str, str] | None = None) -> McpClient:
    """Return what a modern request's `_meta` declares about its client.

    Raises:
        JsonRpcError: The `_meta` is incomplete, does not match the headers, or has an unsupported
            protocol version; or the params have too many values.
    """
    check_params(message)
    request = {"method": message.method, "params": object_params(message)}
    route = classify_inbound_request(request, headers=headers)
    if isinstance(route, InboundLadderRejection):
        raise rejection_error(route)
    return McpClient(route.protocol_version, route.client_capabilities, route.client_info)


@functools.cache
def unknown_client(version: str) -> bytes:
    """Return what is known of a client without a session, by its version with `initialize`."""
    return McpClient(version, {}).encoded


def rejection_error(rejection: InboundLadderRejection) -> JsonRpcError:
    return JsonRpcError(rejection.code, rejection.message, rejection.data)


def result_message(request_id: bytes, result: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (request_id, result)


def error_message(request_id: bytes, error: JsonRpcError, *, modern: bool = False) -> bytes:
    """Return an error response; without an id it is null, and for modern clients left out."""
    body: dict[str, Any] = {"code": error.code, "message": error.message}
    if error.data is not None:
        body["data"] = error.data
    if modern and not request_id:
        return b'{"jsonrpc":"2.0","error":%b}' % encode(body)
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (request_id or b"null", encode(body))


def batch_message(responses: Iterable[bytes]) -> bytes:
    """Return the responses to the requests of a batch as one message."""
    return b"[%b]" % b",".join(responses)


def notification(method: str, params: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","method":%b,"params":%b}' % (encode(method), params)


def request_message(request_id: bytes, method: str, params: bytes) -> bytes:
    parts = (request_id, encode(method), params)
    return b'{"jsonrpc":"2.0","id":%b,"method":%b,"params":%b}' % parts


class _Cancelled(msgspec.Struct):
    id: msgspec.Raw = msgspec.field(default=ABSENT, name="requestId")
    reason: str | None = None


_cancelled: Final = msgspec.json.Decoder(_Cancelled).decode


def read_cancellation(message: Message) -> tuple[bytes, str]:
    """Return the JSON id and the reason in a `notifications/cancelled`; empty if missing."""
    try:
        params = _cancelled(message.params)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return b"", ""
    return bytes(params.id), (params.reason or "")[:_MAX_REASON]


def parse_arguments(tool: str, arguments: bytes, kind: type[ArgumentsT]) -> ArgumentsT:
    """Decode the arguments of one of the front's own tools; raises `JsonRpcError`."""
    try:
        return msgspec.json.decode(arguments, type=kind)
    except (ValueError, RecursionError) as error:
        known = ", ".join(field.encode_name for field in msgspec.structs.fields(kind))
        raise JsonRpcError(
            INVALID_PARAMS, f"The arguments of {tool} are wrong: {error}. It accepts {known}."
        ) from None


def structured_result(text: str, structured: dict[str, Any]) -> bytes:
    """Return a tool result with text content and structured content."""
    content = [{"type": "text", "text": text}]
    return encode({"content": content, "structuredContent": structured})
