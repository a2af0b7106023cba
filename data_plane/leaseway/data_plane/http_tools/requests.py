"""Builds a call's HTTP request from its arguments. Pure.

Whatever its text, an argument stays within its path segment, query value, header or body member. An
argument that can't be sent unchanged is rejected.
"""

from __future__ import annotations

import base64
import binascii
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import msgspec

from leaseway.spec.http_tools import HttpParameter, HttpTool
from leaseway.wire.errors import Fault, Reason

MAX_TARGET: Final = 64 * 1024
"""Maximum characters of a request's URL."""
MAX_HEADER_VALUE: Final = 8 * 1024

_JSON: Final = "application/json"
_FORM: Final = "application/x-www-form-urlencoded"
_SEPARATORS: Final = {"comma": ",", "space": " ", "pipe": "|", "repeat": ",", "spread": ","}
_UNSET: Final = object()


@dataclass(frozen=True)
class HttpRequest:
    """An HTTP request: its percent-encoded URL, and its headers without configured ones."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes | None


def build_request(tool: HttpTool, base_url: str, arguments: Mapping[str, Any]) -> HttpRequest:
    """Return the request of a call, whose arguments are valid by the tool's input schema.

    Raises:
        Fault: INVALID_ARGUMENTS: a value can't be sent.
    """
    values = _Values(tool, arguments)
    url = base_url.rstrip("/") + values.target()
    if len(url) > MAX_TARGET:
        text = f"the URL of the request has more than {MAX_TARGET} characters"
        raise _unsendable("", text)
    headers = values.headers()
    body, content_type = values.body()
    if content_type:
        is_own = tool.content_type and not content_type.startswith("multipart/")
        headers["Content-Type"] = tool.content_type if is_own else content_type
    return HttpRequest(tool.method, url, headers, body)


class _Values:
    """The values of a tool's parameters in one call."""

    def __init__(self, tool: HttpTool, arguments: Mapping[str, Any]) -> None:
        self._tool = tool
        self._values: list[tuple[HttpParameter, Any]] = []
        for parameter in tool.parameters:
            value = arguments.get(parameter.name, _UNSET)
            if value is _UNSET:
                value = parameter.parsed.get("default", _UNSET)
            if value is not _UNSET:
                self._values.append((parameter, value))

    def _at(self, position: str) -> Iterable[tuple[HttpParameter, Any]]:
        return ((each, value) for each, value in self._values if each.position == position)

    def target(self) -> str:
        """Return path and query."""
        path, _, fixed = self._tool.endpoint.partition("?")
        segments = {each.sent_as: _segment(each, value) for each, value in self._at("path")}
        parts: list[str] = []
        for part in path.split("{"):
            name, closed, rest = part.partition("}")
            if not closed:
                parts.append(part)
            elif name in segments:
                parts += [segments[name], rest]
            else:
                raise _unsendable(name, "is part of the path and is missing")
        target = "".join(parts)
        # Check whole segments: values have text around them, as in `/files/.{suffix}`.
        if any(_decode_dots(part) in (".", "..") for part in target.split("/")):
            raise _unsendable("", "a segment of the path would be '.' or '..', and lead elsewhere")
        query = "&".join(
            [*([fixed] if fixed else []), *(_pair(*pair) for pair in self._query_pairs())]
        )
        return f"{target}?{query}" if query else target

    def _query_pairs(self) -> Iterable[tuple[str, str]]:
        for parameter, value in self._at("query"):
            yield from _spread(parameter, value)

    def headers(self) -> dict[str, str]:
        headers: dict[str, str] = {}
        for parameter, value in self._at("header"):
            if value is not None:
                headers[parameter.sent_as] = _header(parameter, _join(parameter, value))
        return headers

    def body(self) -> tuple[bytes | None, str]:
        """Return the body and its content type, or None and an empty text."""
        values = list(self._at("body"))
        whole = next((pair for pair in values if pair[0].is_body), None)
        if not values:
            of_body = [each for each in self._tool.parameters if each.position == "body"]
            is_object = bool(of_body) and self._tool.body == "json"
            is_whole = any(each.is_body for each in of_body)
            return (b"{}", _JSON) if is_object and not is_whole else (None, "")
        match self._tool.body:
            case "form":
                spread = whole[1].items() if whole and isinstance(whole[1], dict) else None
                pairs = (
                    [(str(name), _text(value)) for name, value in spread]
                    if spread is not None
                    else [pair for each, value in values for pair in _spread(each, value)]
                )
                return "&".join(_pair(*pair) for pair in pairs).encode(), _FORM
            case "multipart":
                return _multipart(values)
            case "binary":
                parameter, value = values[0]
                return _bytes(parameter, value), _media_type(parameter, "application/octet-stream")
            case "text":
                parameter, value = values[0]
                kind = _media_type(parameter, "text/plain; charset=utf-8")
                return _text(value).encode("utf-8", "replace"), kind
        if whole is not None:
            return msgspec.json.encode(whole[1]), _JSON
        members = {each.sent_as: value for each, value in values}
        return msgspec.json.encode(members), _JSON


def _segment(parameter: HttpParameter, value: Any) -> str:
    """Return a value as a segment of a path."""
    text = _join(parameter, value)
    if value is None or not text:
        raise _unsendable(parameter.name, "is part of the path and may not be empty")
    return _quote(parameter, text)


def _decode_dots(part: str) -> str:
    return part.replace("%2E", ".").replace("%2e", ".")


def _pair(name: str, value: str) -> str:
    return f"{quote(name, safe='', errors='replace')}={quote(value, safe='', errors='replace')}"


def _quote(parameter: HttpParameter, text: str) -> str:
    try:
        return quote(text, safe="")
    except UnicodeEncodeError:
        raise _unsendable(parameter.name, "contains an unpaired surrogate") from None


def _spread(parameter: HttpParameter, value: Any) -> Iterable[tuple[str, str]]:
    """Return the name-value pairs of a value in a query or form."""
    name, style = parameter.sent_as, parameter.style
    if value is None:
        return
    if style == "deep":
        yield from _deep(name, value)
    elif isinstance(value, list) and style in ("repeat", "spread"):
        for item in value:
            yield name, _text(item)
    elif isinstance(value, dict) and style == "spread":
        for key, item in value.items():
            yield key, _text(item)
    else:
        yield name, _join(parameter, value)


def _deep(name: str, value: Any) -> Iterable[tuple[str, str]]:
    """Return pairs such as `name[key][0]` and its text for all members of a value."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _deep(f"{name}[{key}]", item)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _deep(f"{name}[{index}]", item)
    elif value is not None:
        yield name, _text(value)


def _join(parameter: HttpParameter, value: Any) -> str:
    separator = _SEPARATORS.get(parameter.style)
    is_flat = isinstance(value, list) and not any(isinstance(i, list | dict) for i in value)
    return separator.join(map(_text, value)) if separator and is_flat else _text(value)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()


def _header(parameter: HttpParameter, text: str) -> str:
    """Return a header's value, unless HTTP would change it."""
    if len(text) > MAX_HEADER_VALUE:
        raise _unsendable(parameter.name, f"is longer than {MAX_HEADER_VALUE} characters")
    if text != text.strip():
        raise _unsendable(parameter.name, "starts or ends with white space, which no header may")
    if not text.isprintable():
        raise _unsendable(parameter.name, "contains a character that no header may contain")
    return text


def _bytes(parameter: HttpParameter, value: Any) -> bytes:
    """Decode a value; artifacts have been replaced by their bytes before."""
    if isinstance(value, bytes):
        return value
    text = _text(value)
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise _unsendable(parameter.name, "is neither base64 nor an artifact's reference") from None


def _media_type(parameter: HttpParameter, otherwise: str) -> str:
    kind = parameter.parsed.get("contentMediaType")
    return kind if isinstance(kind, str) and kind.isprintable() else otherwise


def _multipart(values: Iterable[tuple[HttpParameter, Any]]) -> tuple[bytes, str]:
    boundary = secrets.token_hex(24)
    parts: list[bytes] = []
    for parameter, value in values:
        items = value if isinstance(value, list) and parameter.style == "repeat" else [value]
        for item in items:
            name = _quoted_name(parameter.sent_as)
            header = f'Content-Disposition: form-data; name="{name}"'
            if parameter.is_binary:
                kind = _media_type(parameter, "application/octet-stream")
                header += f'; filename="{name}"\r\nContent-Type: {kind}'
                content = _bytes(parameter, item)
            elif isinstance(item, str):
                content = item.encode("utf-8", "replace")
            else:
                if isinstance(item, list | dict):
                    header += f"\r\nContent-Type: {_JSON}"
                content = _text(item).encode()
            parts.append(f"--{boundary}\r\n{header}\r\n\r\n".encode() + content + b"\r\n")
    parts.append(f"--{boundary}--\r\n".encode())
    return b"".join(parts), f"multipart/form-data; boundary={boundary}"


def _quoted_name(name: str) -> str:
    """Escape a part's name as browsers do."""
    return name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")


def _unsendable(name: str, problem: str) -> Fault:
    subject = f"{name} {problem}" if name else problem
    violations = ((name, problem),) if name else ()
    return Fault(
        Reason.INVALID_ARGUMENTS,
        f"The arguments cannot be sent: {subject}.",
        violations=violations,
    )
