"""What messages contain: params by method, and responses as bytes.

Members that are only relayed stay unparsed. Pure; `envelope` reads the messages themselves.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from leaseway.front.protocol.clients import (
    WrongDeclarationError,
    initialize_in,
    meta_capabilities_in,
)
from leaseway.front.protocol.empty_objects import empty_objects, is_empty_list
from leaseway.front.protocol.envelope import (
    ABSENT,
    VERSION_KEY,
    Notification,
    Refusal,
    RequestMessage,
)
from leaseway.front.protocol.handshake import CAPABILITIES_KEY, INFO_KEY
from leaseway.wire.bounds import MAX_VALUES
from leaseway.wire.clients.mcp_client import McpClient
from leaseway.wire.clients.mcp_headers import VERSION_HEADER, request_mismatch
from leaseway.wire.messages.mcp import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    MODERN_VERSIONS,
    UNSUPPORTED_VERSION,
)
from leaseway.wire.messages.portable_json import has_many_values

encode: Final = msgspec.json.encode
decode: Final = msgspec.json.decode

_MAX_VERSION: Final = 64
"""Characters of an unknown protocol version that an error repeats."""
_REQUIRED: Final = (VERSION_KEY, CAPABILITIES_KEY)
"""What the `_meta` of each modern request has."""
_MAX_REASON: Final = 256
"""Characters of a client's reason for a cancellation that are passed on."""

UNAVAILABLE: Final = -32010
"""The code of failures that have none of their own; `data.reason` tells them apart. JSON-RPC leaves
-32000 to -32019 to implementations, but official clients use -32000 and -32001 for a connection
that was closed and for a timeout of their own. Frameworks connect anew and repeat such calls."""

ParamsT = TypeVar("ParamsT", bound="ListParams")
ArgumentsT = TypeVar("ArgumentsT", bound=msgspec.Struct)


class JsonRpcError(Exception):
    """The error object of a JSON-RPC response.

    Args:
        code: Its code.
        message: What failed, where, why, and what to do.
        data: More about it, or None.

    Attributes:
        needed_scope: The scopes that the caller's own token must have, or None.
    """

    needed_scope: str | None = None

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


def internal_error() -> JsonRpcError:
    """Return the error of a request that failed by a fault of the front."""
    return JsonRpcError(INTERNAL_ERROR, "The front failed; see its log.")


CUT_OFF: Final = JsonRpcError(
    INTERNAL_ERROR,
    "The request was cancelled before it had finished, because this front ends or accepts the "
    "credential no longer. What it was to do may have happened: look before you repeat it.",
    {"reason": "CANCELLED", "started": "unknown"},
)
"""The error of a request that ends with its front."""

SESSION_ENDED: Final = JsonRpcError(
    INTERNAL_ERROR,
    "The session of this request was ended before the request had finished. What it was to do may "
    "have happened: look before you repeat it in a new session.",
    {"reason": "CANCELLED", "started": "unknown"},
)
"""The error of a request that ends with its session."""


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
        if arguments.startswith(b"{"):
            return arguments
        if arguments in (b"null", b'""') or is_empty_list(arguments):
            return b"{}"
        if arguments.startswith(b'"'):  # hosts that pass on the text which their model writes
            with contextlib.suppress(ValueError, RecursionError):
                held = msgspec.json.decode(arguments, type=str).strip().encode()
                msgspec.json.decode(held, type=msgspec.Raw)  # JSON, of however many values
                if held.startswith(b"{"):
                    return held
        raise JsonRpcError(INVALID_PARAMS, "The arguments of a tool must be one JSON object.")


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


@functools.cache
def _decoder(kind: type[ParamsT]) -> msgspec.json.Decoder[ParamsT]:
    return msgspec.json.Decoder(kind)


def parse_params(message: RequestMessage, kind: type[ParamsT]) -> ParamsT:
    """Decode a message's params; raises `JsonRpcError` if they do not match the method's schema."""
    sent = message.params
    if len(sent) > MAX_VALUES:
        check_params(message)
    sent, decoder = sent or b"{}", _decoder(kind)
    try:
        try:
            params: ParamsT = decoder.decode(sent)
        except msgspec.ValidationError:
            params = decoder.decode(_with_objects(sent))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        text = f"The params of {message.method} are wrong: {error}"
        raise JsonRpcError(INVALID_PARAMS, text) from None
    return params


_decode_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def _with_objects(params: bytes) -> bytes:
    """Return params with `{}` for each member that is `[]`, as PHP writes an empty object."""
    members = _decode_members(params)
    empty = empty_objects("params", members)
    return encode(members | {name: {} for name in empty}) if empty else params


class _NameAndMeta(msgspec.Struct):
    name: str | None = None
    meta: msgspec.Raw = msgspec.field(default=ABSENT, name="_meta")


_decode_name_and_meta: Final = msgspec.json.Decoder(_NameAndMeta).decode


def read_name_and_meta(message: RequestMessage) -> tuple[str | None, bytes]:
    """Return the `name` and `_meta` of a request's params."""
    try:
        params = _decode_name_and_meta(message.params)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None, b""  # the method's handler reports the error
    return params.name, bytes(params.meta)


def check_params(message: RequestMessage) -> None:
    """Raise `JsonRpcError` for params that would block the event loop if they were decoded."""
    if has_many_values(message.params):
        raise JsonRpcError(
            INVALID_PARAMS,
            f"The params of {message.method} have more than {MAX_VALUES} values and keys. "
            "Pass large data by reference, or as one text.",
        )


def object_params(message: RequestMessage) -> dict[str, Any] | None:
    """Return a message's params if they are a JSON object of a permitted size, else None."""
    if has_many_values(message.params):
        return None
    try:
        params = decode(message.params)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return params if isinstance(params, dict) else None


def initialize_params(message: RequestMessage) -> dict[str, Any]:
    """Return the params of `initialize`; raises `JsonRpcError` if what they declare is wrong."""
    check_params(message)
    params = object_params(message)
    if params is None:
        raise JsonRpcError(INVALID_PARAMS, "The params of initialize must be a JSON object.")
    try:
        return initialize_in(params)
    except WrongDeclarationError as problem:
        text = f"The params of initialize are wrong: {problem}"
        raise JsonRpcError(INVALID_PARAMS, text) from None


def modern_client(message: RequestMessage, headers: Mapping[str, str] | None = None) -> McpClient:
    """Return what a modern request's `_meta` declares about its client.

    Raises:
        JsonRpcError: The `_meta` is incomplete or wrong, does not match the headers, or has an
            unsupported protocol version; or the params have too many values.
    """
    check_params(message)
    params = object_params(message) or {}
    sent = params.get("_meta")
    meta: dict[str, Any] = sent if isinstance(sent, dict) else {}
    if missing := [key for key in _REQUIRED if key not in meta]:
        if headers is not None:  # the version may be one that has other keys
            check_version(headers.get(VERSION_HEADER, MODERN_VERSIONS[-1]))
        text = f"`_meta` in the params of {message.method} lacks {' and '.join(missing)}."
        raise JsonRpcError(INVALID_PARAMS, text)
    version = meta[VERSION_KEY]
    if headers is not None:
        if headers.get(VERSION_HEADER) != version:
            text = f"The header {VERSION_HEADER} must be the version in `_meta`."
            raise JsonRpcError(HEADER_MISMATCH, text)
        if problem := request_mismatch(message.method, params, headers):
            raise JsonRpcError(HEADER_MISMATCH, problem)
    if not isinstance(version, str):
        raise JsonRpcError(INVALID_PARAMS, f"{VERSION_KEY} in `_meta` must be text.")
    check_version(version)
    info = meta.get(INFO_KEY)
    try:
        capabilities = meta_capabilities_in(meta[CAPABILITIES_KEY], info)
    except WrongDeclarationError as problem:
        text = f"What `_meta` declares is wrong: {problem}"
        raise JsonRpcError(INVALID_PARAMS, text) from None
    return McpClient(version, capabilities, info)


def check_version(version: str) -> None:
    """Raise `JsonRpcError` unless a protocol version without sessions is supported."""
    if version not in MODERN_VERSIONS:
        data = {"supported": MODERN_VERSIONS, "requested": version[:_MAX_VERSION]}
        raise JsonRpcError(UNSUPPORTED_VERSION, "Unsupported protocol version", data)


@functools.cache
def unknown_client(version: str) -> bytes:
    """Return what is known of a client without a session, by its version with `initialize`."""
    return McpClient(version, {}).encoded


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


def refusal_message(refusal: Refusal, *, modern: bool = False) -> bytes:
    """Return the response to what is no message."""
    return error_message(refusal.id, JsonRpcError(refusal.code, refusal.text), modern=modern)


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


def read_cancellation(message: Notification) -> tuple[bytes, str]:
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
