"""The envelope of a message: bytes in, and out a request, a notification, a response or a refusal.

Every message of a client is read here, over HTTP and stdio and of every protocol version. Whatever
is not exactly one message of JSON-RPC 2.0 as MCP has them is refused. Params and results stay
unread. Pure; imports nothing that takes long, for `stdio_handshake` answers before the rest is.
"""

from __future__ import annotations

import json
import re
from codecs import BOM_UTF8
from typing import Any, Final, Literal

import msgspec

from leaseway.front.protocol.empty_objects import empty_objects
from leaseway.wire import bounds
from leaseway.wire.messages.mcp import INVALID_PARAMS, INVALID_REQUEST, PARSE_ERROR
from leaseway.wire.messages.portable_json import has_many_values

ABSENT: Final = msgspec.Raw()
"""The value of a missing member."""
VERSION_KEY: Final = "io.modelcontextprotocol/protocolVersion"
"""The key of `_meta` with the version of a request; versions with `initialize` have none."""
BATCH_VERSION: Final = "2025-03-26"
"""The only version with batches of messages."""
MODERN_MARK: Final = VERSION_KEY.encode()
"""This key as most encoders write it."""
ESCAPE: Final = b"\\"
"""What stands in JSON whose strings may be written in other ways."""
LONG_TAIL: Final = 256
"""Bytes at the end of a message that is too long, in which its id may be."""
_QUOTE: Final = b'"'
_NULL: Final = b"null"
_QUOTES: Final = 12
"""Quotes around the params of a request whose id is a number: of four keys and two texts."""
_NULLABLE: Final = ("method", "params", "result", "error")
"""Members that are missing if they are null. The id is one only in what is a notification by its
method: a request would become one, and its client would wait for a response in vain."""
_NOTIFICATIONS: Final = b'"notifications/'
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class RequestMessage(msgspec.Struct, frozen=True, gc=False):
    """A request; `id` and `params` are JSON, so that the response repeats the id exactly.

    Attributes:
        id: A string or an integer.
        method: Its method.
        params: A JSON object, or empty if it has none.
    """

    id: bytes
    method: str
    params: bytes = b""


class Notification(msgspec.Struct, frozen=True, gc=False):
    """A message that gets no response; its members are those of `RequestMessage`."""

    method: str
    params: bytes = b""


class Response(msgspec.Struct, frozen=True, gc=False):
    """The response to a request of the front.

    Attributes:
        id: The id of the request as JSON; empty in an error that belongs to none.
        result: A JSON object, or empty if this is an error.
        error: A JSON object, or empty.
    """

    id: bytes
    result: bytes = b""
    error: bytes = b""


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """What is no message.

    Attributes:
        code: The code of the JSON-RPC error.
        text: What is wrong with it, in a sentence.
        id: The id of the refused request as JSON; empty if it has none that can be repeated.
        answers: The id of the front's request that it was to answer, or empty.
        status: The status of the HTTP response.
    """

    code: int
    text: str
    id: bytes = b""
    answers: bytes = b""
    status: int = 400


Message = RequestMessage | Notification | Response | Refusal


class _Request(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """What most messages are: a request with params."""

    jsonrpc: Literal["2.0"]
    id: msgspec.Raw
    method: str
    params: msgspec.Raw


class _Members(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """All members that a message may have."""

    jsonrpc: msgspec.Raw = ABSENT
    id: msgspec.Raw = ABSENT
    method: msgspec.Raw = ABSENT
    params: msgspec.Raw = ABSENT
    result: msgspec.Raw = ABSENT
    error: msgspec.Raw = ABSENT


class _Identified(msgspec.Struct):
    id: msgspec.Raw = ABSENT


class _Error(msgspec.Struct):
    code: int
    message: str


class _Meta(msgspec.Struct):
    version: msgspec.Raw = msgspec.field(default=ABSENT, name=VERSION_KEY)


class _Params(msgspec.Struct):
    meta: _Meta | None = msgspec.field(default=None, name="_meta")


_decode_request: Final = msgspec.json.Decoder(_Request).decode
_decode_members: Final = msgspec.json.Decoder(_Members).decode
_decode_identified: Final = msgspec.json.Decoder(_Identified).decode
_decode_text: Final = msgspec.json.Decoder(str).decode
_decode_error: Final = msgspec.json.Decoder(_Error).decode
_decode_params: Final = msgspec.json.Decoder(_Params).decode
_decode_value: Final = msgspec.json.Decoder(msgspec.Raw).decode
_decode_batch: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode

_ID: Final = rb'"id"\s*:\s*(-?[0-9]{1,32}|"[^"\\]{0,128}")\s*'
_VERSION: Final = rb'"jsonrpc"\s*:\s*"2\.0"\s*'
_request_start: Final = re.compile(
    rb'\s*\{\s*(?:%b,\s*)?(?:%b,\s*)?(?:%b,\s*)?"method"\s*:' % (_VERSION, _ID, _VERSION)
).match
_request_end: Final = re.compile(
    rb",\s*(?:%b,\s*%b|%b,\s*%b)\}\s*\Z" % (_VERSION, _ID, _ID, _VERSION)
).search

_NOT_JSON: Final = Refusal(PARSE_ERROR, "This is not JSON in UTF-8, or is nested too deeply.")
_NO_TEXT: Final = (
    "This is not JSON in UTF-8: a text in it has half of a character (an unpaired surrogate), or a "
    "number is NaN or infinite."
)
_NO_MESSAGE: Final = (
    "A message is one JSON object, with no other members than jsonrpc, id, method, params, result "
    "and error."
)
_TOO_MANY_VALUES: Final = (
    f"This has more than {bounds.MAX_VALUES} values and keys. Send fewer messages at once."
)


def read_message(line: bytes) -> Message:
    """Read one message; never raises."""
    try:
        if not line.isascii():
            line.decode()  # msgspec does not look at the bytes of texts that stay unread
        sent = _decode_request(line)
    except _UNREADABLE:
        return _read_other(line)
    request_id, params = bytes(sent.id), bytes(sent.params)
    if line.endswith(params, 0, -1):  # as most write it; counting is slow beside all else here
        quotes = line.count(b'"', 0, -1 - len(params))
    else:
        quotes = line.count(b'"') - params.count(b'"')
    # A second member of the same name would have further quotes.
    if params.startswith(b"{") and (
        request_id.isdigit()
        if quotes == _QUOTES
        else quotes == _QUOTES + 2 and request_id.startswith(b'"')
    ):
        return RequestMessage(request_id, sent.method, params)
    return _read_other(line)


def refuse_long(head: bytes, tail: bytes, limit: int) -> Refusal:
    """Refuse a message that is too long to be read.

    Without its id, a client over stdio would wait for its response in vain.

    Args:
        head: Its start.
        tail: Its end: `LONG_TAIL` bytes.
        limit: Maximum bytes of a message.
    """
    text = f"A message has at most {limit} bytes."
    start = _request_start(head)
    if start is None:  # the client would take the id of a response for that of a request of its own
        return Refusal(INVALID_REQUEST, text)
    end = None if start.group(1) else _request_end(tail)
    ids = (start.group(1), *(end.groups() if end is not None else ()))
    return Refusal(INVALID_REQUEST, text, next(filter(None, ids), b""))


def is_batch(line: bytes) -> bool:
    """Return whether a client sent an array, which is a batch of messages in 2025-03-26."""
    return line.lstrip()[:1] == b"["


def read_batch(line: bytes, version: str) -> list[Message] | Refusal:
    """Read the messages of a batch, or refuse it as a whole; never raises.

    Args:
        line: The batch.
        version: The protocol version of its client.
    """
    if version != BATCH_VERSION:
        text = f"Protocol version {version} has no batches: send each message by itself."
        return Refusal(INVALID_REQUEST, text)
    if len(line) > bounds.MAX_VALUES and has_many_values(line):
        return Refusal(INVALID_REQUEST, _TOO_MANY_VALUES)
    try:
        line.decode()
        parts = _decode_batch(line)
    except _UNREADABLE:
        return _NOT_JSON
    if not 0 < len(parts) <= bounds.MAX_JSON_RPC_BATCH:
        text = f"A batch has 1 to {bounds.MAX_JSON_RPC_BATCH} messages, this one has {len(parts)}."
        return Refusal(INVALID_REQUEST, text)
    return [_read_part(bytes(part)) for part in parts]


def names_version(message: RequestMessage | Notification) -> bool:
    """Return whether the `_meta` of a message names its version, as only modern clients do."""
    # `find` is faster than `in`, which first checks whether the mark is a number.
    params = message.params
    if params.find(MODERN_MARK) < 0 and params.find(ESCAPE) < 0:
        return False
    try:
        meta = _decode_params(params).meta
    except _UNREADABLE:
        return False  # the method's handler reports the error
    return meta is not None and bool(bytes(meta.version))


def _read_part(line: bytes) -> Message:
    message = read_message(line)
    if isinstance(message, RequestMessage) and message.method == "initialize":
        text = "`initialize` must not be part of a batch: send it alone, and first."
        return Refusal(INVALID_REQUEST, text, message.id)
    return message


def _read_other(line: bytes) -> Message:
    """Read a message that is no request with params, or say what is wrong with it."""
    line = line.removeprefix(BOM_UTF8)  # some writers on Windows begin their first line with it
    try:
        line.decode()
        members = _decode_members(line)
    except msgspec.ValidationError:
        return _refuse_value(line)
    except _UNREADABLE:
        return _refuse_unreadable(line)
    sent = {name: bytes(getattr(members, name)) for name in _Members.__struct_fields__}
    present = [value for value in sent.values() if value]
    request_id = sent["id"] if _is_id(sent["id"]) else b""
    is_response = sent["method"] in (b"", _NULL) and bool(sent["result"] or sent["error"])
    # Clients with one type for all messages write those that a message does not have as null.
    nullable = (*_NULLABLE, "id") if sent["method"].startswith(_NOTIFICATIONS) else _NULLABLE
    sent |= {name: b"" for name in nullable if sent[name] == _NULL}
    sent |= dict.fromkeys(empty_objects("message", sent), b"{}")

    def refuse(text: str, code: int = INVALID_REQUEST) -> Refusal:
        if is_response:  # the client would take its id for that of a request of its own
            return Refusal(code, text, answers=request_id)
        return Refusal(code, text, request_id)

    if _text(sent["jsonrpc"]) != "2.0":
        return refuse('A message has the member "jsonrpc": "2.0".')
    if line.count(_QUOTE) - sum(value.count(_QUOTE) for value in present) != 2 * len(present):
        return Refusal(INVALID_REQUEST, "A message has each member once.")
    if is_response:
        problem = _problem_of_response(sent, request_id)
        return refuse(problem) if problem else Response(request_id, sent["result"], sent["error"])
    if sent["result"] or sent["error"]:
        return refuse("A message with a method has neither result nor error.")
    if (method := _text(sent["method"])) is None:
        return refuse("A message has a method, which is a string, or a result or an error.")
    if sent["id"] and not request_id:
        return refuse("The id of a request is a string or an integer.")
    params = sent["params"]
    if params and not params.startswith(b"{"):
        return refuse("The params of a message are a JSON object.", INVALID_PARAMS)
    return (
        RequestMessage(request_id, method, params) if request_id else Notification(method, params)
    )


def _problem_of_response(sent: dict[str, bytes], request_id: bytes) -> str:
    """Return what is wrong with the members of a response, or empty."""
    if not sent["result"] and not sent["error"]:
        return "A response has a result, which is a JSON object, or an error."
    if sent["result"] and sent["error"]:
        return "A response has a result or an error, not both."
    if sent["params"]:
        return "A response has no params."
    if sent["result"]:
        if not request_id:
            return "A result has the id of its request: a string or an integer."
        return "" if sent["result"].startswith(b"{") else "A result is a JSON object."
    if not request_id and sent["id"] not in (b"", _NULL):
        return "The id of an error is a string or an integer, or null."
    try:
        _decode_error(sent["error"])
    except _UNREADABLE:
        return "An error is a JSON object with a code, an integer, and a message, a string."
    return ""


def _is_id(request_id: bytes) -> bool:
    """Return whether JSON is a value that identifies a request."""
    return request_id.startswith(_QUOTE) or request_id.removeprefix(b"-").isdigit()


def _text(value: bytes) -> str | None:
    """Return the string that JSON is, or None if it is missing or of another type."""
    try:
        return _decode_text(value)
    except _UNREADABLE:
        return None


def _refuse_value(line: bytes) -> Refusal:
    """Refuse what is no JSON object with the members of a message."""
    try:
        _decode_value(line)
    except _UNREADABLE:
        return _refuse_unreadable(line)
    try:
        request_id = bytes(_decode_identified(line).id)
    except _UNREADABLE:
        request_id = b""
    return Refusal(INVALID_REQUEST, _NO_MESSAGE, request_id if _is_id(request_id) else b"")


def _refuse_unreadable(line: bytes) -> Refusal:
    """Refuse what is no JSON in UTF-8, with its id if a more lenient parser reads it.

    That reads halves of characters, which JavaScript writes when a text is cut, and NaN, which
    Python writes.
    """
    if has_many_values(line):
        return _NOT_JSON
    try:
        members: Any = json.loads(line.decode(), object_pairs_hook=tuple)
        if not isinstance(members, tuple):
            return _NOT_JSON
        sent = dict(members)
        request_id = json.dumps(sent.get("id"), ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return _NOT_JSON
    is_certain = len(sent) == len(members) and sent.keys() <= set(_Members.__struct_fields__)
    if not is_certain or not _is_id(request_id):
        return _NOT_JSON
    if "method" in sent:
        return Refusal(PARSE_ERROR, _NO_TEXT, request_id)
    return Refusal(PARSE_ERROR, _NO_TEXT, answers=request_id)
