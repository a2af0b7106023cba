"""Encodes the body of a request: a form, parts, bytes, text, lines of JSON or JSON. Pure."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from typing import Any, Final, assert_never

import msgspec

from leaseway.data_plane.kinds.http_api.files import File, body_type, file_name, file_of, file_type
from leaseway.data_plane.kinds.http_api.serialization import as_is, joined, pairs, text_of
from leaseway.spec.kinds.http_tools import JOINED_STYLES, Body, HttpParameter, Style
from leaseway.wire.errors import Fault, Reason

Values = list[tuple[HttpParameter, Any]]
"""Body parameters with their values."""

_JSON: Final = "application/json"
_FORM: Final = "application/x-www-form-urlencoded"
_FORM_DATA: Final = "multipart/form-data"
_TEXT: Final = "text/plain; charset=utf-8"
_LINES: Final = "application/jsonl"
_SEQUENCE: Final = "json-seq"
_BEFORE_RECORD: Final = b"\x1e"
"""Begins each record of a JSON text sequence (RFC 7464)."""


def encode_body(body: Body, values: Values, kind: str = "") -> tuple[bytes, str]:
    """Return a body and its content type.

    Args:
        body: The encoding.
        values: At least one.
        kind: The content type that the tool has; empty if the encoding determines it.

    Raises:
        Fault: INVALID_ARGUMENTS: a value can't be sent.
    """
    parameter, value = values[0]
    match body:
        case "form":
            return "&".join(_form(values)).encode(), kind or _FORM
        case "multipart":
            return _multipart(values, kind or _FORM_DATA)
        case "binary":
            file = _file(parameter, value)
            return file.content, kind or body_type(parameter.media_type, file)
        case "text":
            kind = kind or parameter.media_type or _TEXT
            return text_of(value).encode("utf-8", "replace"), kind
        case "lines":
            return _lines(value, kind or _LINES), kind or _LINES
        case "json":
            whole = {field.sent_as: item for field, item in values}
            return msgspec.json.encode(value if parameter.is_body else whole), kind or _JSON
    assert_never(body)


def unsendable(name: str, problem: str) -> Fault:
    """Return the fault of an argument; an empty name means the request as a whole."""
    subject = f"{name} {problem}" if name else problem
    violations = ((name, problem),) if name else ()
    return Fault(
        Reason.INVALID_ARGUMENTS,
        f"The arguments cannot be sent: {subject}.",
        violations=violations,
    )


def _form(values: Values) -> Iterator[str]:
    for parameter, value in values:
        if parameter.is_body and isinstance(value, dict):
            style: Style = "deep" if parameter.style == "deep" else "repeat"
            for name, item in value.items():
                yield from pairs(HttpParameter(str(name), "body", style=style), item)
        else:
            yield from pairs(parameter, value)


def _file(parameter: HttpParameter, value: Any) -> File:
    """Decode a value; artifacts have been replaced by their bytes before."""
    if isinstance(value, bytes):
        return File(value)
    try:
        return file_of(text_of(value))
    except ValueError:
        text = "is neither base64, a data: URL nor an artifact's reference"
        raise unsendable(parameter.name, text) from None


def _lines(value: Any, kind: str) -> bytes:
    """Return each item of a list, or a value that is none, as JSON on a line of its own."""
    before = _BEFORE_RECORD if kind.partition(";")[0].strip().endswith(_SEQUENCE) else b""
    items = value if isinstance(value, list) else [value]
    return b"".join(before + msgspec.json.encode(item) + b"\n" for item in items)


def _multipart(values: Values, kind: str) -> tuple[bytes, str]:
    """Return the parts of a body; only those of a form have names, others have their places."""
    boundary = secrets.token_hex(24)
    has_names = kind.partition(";")[0].strip().lower() == _FORM_DATA
    parts: list[bytes] = []
    for parameter, value in _members(values):
        for item in _parts(parameter, value):
            own, content, name = _part(parameter, item)
            if has_names:
                lines = [_disposition(parameter, name)]
                lines += [f"Content-Type: {own}"] if own else []
            else:
                lines = [f"Content-Type: {own or _TEXT}"]
            header = "\r\n".join(lines)
            parts.append(f"--{boundary}\r\n{header}\r\n\r\n".encode() + content + b"\r\n")
    parts.append(f"--{boundary}--\r\n".encode())
    return b"".join(parts), f"{kind}; boundary={boundary}"


def _members(values: Values) -> Iterator[tuple[HttpParameter, Any]]:
    """Yield the values that have parts of their own: members of a whole body, or all."""
    for parameter, value in values:
        if not parameter.is_body or not isinstance(value, dict):
            yield parameter, value
            continue
        known, other = (parameter.parsed.get(key) for key in ("properties", "additionalProperties"))
        for name, item in value.items():
            schema = known.get(name, other) if isinstance(known, dict) else other
            text = msgspec.json.encode(schema if isinstance(schema, dict) else {}).decode()
            yield HttpParameter(str(name), "body", text), item


def _parts(parameter: HttpParameter, value: Any) -> Iterable[Any]:
    """Return the values that are a part each; null is none."""
    if isinstance(value, list) and parameter.style in JOINED_STYLES:
        return [joined(parameter, value, as_is)]
    items = value if isinstance(value, list) and parameter.style != "json" else [value]
    return [item for item in items if item is not None]


def _part(parameter: HttpParameter, item: Any) -> tuple[str, bytes, str]:
    """Return the content type of a part, its content and the name of its file.

    The type of plain text is empty, and so is the name of what is no file.
    """
    if parameter.is_binary and isinstance(item, str | bytes):
        file = _file(parameter, item)
        kind = file_type(parameter.media_type, file)
        return kind, file.content, file.name or file_name(parameter.sent_as, kind)
    is_object = isinstance(item, list | dict) or parameter.style == "json"
    own = "" if parameter.is_binary else parameter.media_type
    if is_object:
        return own or _JSON, msgspec.json.encode(item), ""
    return own, text_of(item).encode("utf-8", "replace"), ""


def _disposition(parameter: HttpParameter, file: str) -> str:
    """Return the header with the name of a part, and of its file if it is one."""
    header = f'Content-Disposition: form-data; name="{_quoted_name(parameter.sent_as)}"'
    return f'{header}; filename="{_quoted_name(file)}"' if file else header


def _quoted_name(name: str) -> str:
    """Escape a part's name as browsers do."""
    return name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
