"""Encodes the body of a request: a form, parts, bytes, text or JSON. Pure."""

from __future__ import annotations

import base64
import binascii
import secrets
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from leaseway.data_plane.kinds.http_api.serialization import as_is, joined, pairs, text_of
from leaseway.spec.kinds.http_tools import Body, HttpParameter, Style
from leaseway.wire.errors import Fault, Reason

Values = list[tuple[HttpParameter, Any]]
"""Body parameters with their values."""

_JSON: Final = "application/json"
_FORM: Final = "application/x-www-form-urlencoded"
_BYTES: Final = "application/octet-stream"
_JOINED: Final = ("comma", "space", "pipe")


def encode_body(body: Body, values: Values) -> tuple[bytes, str]:
    """Return a body and its content type.

    Args:
        body: The encoding.
        values: At least one.

    Raises:
        Fault: INVALID_ARGUMENTS: a value can't be sent.
    """
    parameter, value = values[0]
    match body:
        case "form":
            return "&".join(_form(values)).encode(), _FORM
        case "multipart":
            return _multipart(values)
        case "binary":
            return _bytes(parameter, value), parameter.media_type or _BYTES
        case "text":
            kind = parameter.media_type or "text/plain; charset=utf-8"
            return text_of(value).encode("utf-8", "replace"), kind
    if parameter.is_body:
        return msgspec.json.encode(value), _JSON
    return msgspec.json.encode({field.sent_as: item for field, item in values}), _JSON


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


def _bytes(parameter: HttpParameter, value: Any) -> bytes:
    """Decode a value; artifacts have been replaced by their bytes before."""
    if isinstance(value, bytes):
        return value
    try:
        return base64.b64decode(text_of(value), validate=True)
    except (binascii.Error, ValueError):
        raise unsendable(parameter.name, "is neither base64 nor an artifact's reference") from None


def _multipart(values: Values) -> tuple[bytes, str]:
    boundary = secrets.token_hex(24)
    parts: list[bytes] = []
    for parameter, value in values:
        for item in _parts(parameter, value):
            header, content = _part(parameter, item)
            parts.append(f"--{boundary}\r\n{header}\r\n\r\n".encode() + content + b"\r\n")
    parts.append(f"--{boundary}--\r\n".encode())
    return b"".join(parts), f"multipart/form-data; boundary={boundary}"


def _parts(parameter: HttpParameter, value: Any) -> Iterable[Any]:
    """Return the values that are a part each; null is none."""
    if isinstance(value, list) and parameter.style in _JOINED:
        return [joined(parameter, value, as_is)]
    items = value if isinstance(value, list) and parameter.style != "json" else [value]
    return [item for item in items if item is not None]


def _part(parameter: HttpParameter, item: Any) -> tuple[str, bytes]:
    """Return the header and the content of a part."""
    name = _quoted_name(parameter.sent_as)
    header = f'Content-Disposition: form-data; name="{name}"'
    if parameter.is_binary and isinstance(item, str | bytes):
        kind = parameter.media_type or _BYTES
        header += f'; filename="{name}"\r\nContent-Type: {kind}'
        return header, _bytes(parameter, item)
    is_object = isinstance(item, list | dict) or parameter.style == "json"
    own = "" if parameter.is_binary else parameter.media_type
    kind = own or (_JSON if is_object else "")
    if kind:
        header += f"\r\nContent-Type: {kind}"
    if is_object:
        return header, msgspec.json.encode(item)
    return header, text_of(item).encode("utf-8", "replace")


def _quoted_name(name: str) -> str:
    """Escape a part's name as browsers do."""
    return name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
