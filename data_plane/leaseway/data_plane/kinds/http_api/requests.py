"""Builds a call's HTTP request from its arguments. Pure.

Whatever its text, an argument stays within its path segment, query value, header or body member. An
argument that can't be sent unchanged is rejected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from leaseway.data_plane.kinds.http_api.bodies import Values, encode_body, unsendable
from leaseway.data_plane.kinds.http_api.serialization import (
    as_is,
    is_undefined,
    joined,
    pairs,
    path_text,
)
from leaseway.spec.kinds.http_tools import HttpParameter, HttpTool, accepts_null

MAX_TARGET: Final = 64 * 1024
"""Maximum characters of a request's URL."""
MAX_HEADER_VALUE: Final = 8 * 1024

_UNSET: Final = object()
_IN_ADDRESSES: Final = "".join(map(chr, range(0x21, 0x7F)))
_IN_COOKIES: Final = "!#$&'()*+./:<=>?@[]^_`{|}~-"
"""What stays as it is in the value of a cookie; nothing of it ends the value."""


@dataclass(frozen=True)
class HttpRequest:
    """An HTTP request: its percent-encoded URL, and its headers without configured ones."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes | None


def build_request(
    tool: HttpTool, base_url: str, arguments: Mapping[str, Any], *, has_nulls: bool = True
) -> HttpRequest:
    """Return the request of a call, whose arguments are valid by the tool's input schema.

    Args:
        tool: The tool.
        base_url: The address that its endpoint is below.
        arguments: The call's arguments.
        has_nulls: False if the arguments are known to contain no null.

    Raises:
        Fault: INVALID_ARGUMENTS: a value can't be sent.
    """
    values = _Values(tool, arguments, has_nulls)
    url = base_url.rstrip("/") + values.target()
    if not url.isascii():  # what the endpoint has beside its values
        url = quote(url, safe=_IN_ADDRESSES, errors="replace")
    if len(url) > MAX_TARGET:
        text = f"the URL of the request has more than {MAX_TARGET} characters"
        raise unsendable("", text)
    headers = values.headers()
    body, content_type = values.body()
    if content_type:
        headers["Content-Type"] = content_type
    return HttpRequest(tool.method, url, headers, body)


class _Values:
    """The values of a tool's parameters in one call.

    A parameter that the call leaves out has its default, if the tool was written with one; the
    defaults of OpenAPI documents are texts
    (design.md#configuration). Null for a parameter that does not accept
    null means that it is left out, as models send null for what they omit.
    """

    def __init__(self, tool: HttpTool, arguments: Mapping[str, Any], has_nulls: bool) -> None:
        self._tool = tool
        self._values: Values = []
        for parameter in tool.parameters:
            value = arguments.get(parameter.name, _UNSET)
            if value is _UNSET or (value is None and not parameter.accepts_null):
                value = parameter.parsed.get("default")
                if value is None:
                    continue
            elif has_nulls and isinstance(value, dict | list):
                value = _without_nulls(value, parameter.parsed)
            self._values.append((parameter, value))

    def _at(self, position: str) -> Iterable[tuple[HttpParameter, Any]]:
        return (
            (parameter, value)
            for parameter, value in self._values
            if parameter.position == position
        )

    def target(self) -> str:
        """Return path and query."""
        path, _, fixed = self._tool.endpoint.partition("?")
        segments = {
            parameter.sent_as: _segment(parameter, value) for parameter, value in self._at("path")
        }
        parts: list[str] = []
        for part in path.split("{"):
            name, closed, rest = part.partition("}")
            if not closed:
                parts.append(part)
            elif name in segments:
                parts += [segments[name], rest]
            else:
                raise unsendable(name, "is part of the path and is missing")
        target = "".join(parts)
        # Check whole segments: values have text around them, as in `/files/.{suffix}`.
        if any(_decode_dots(part) in (".", "..") for part in target.split("/")):
            raise unsendable("", "a segment of the path would be '.' or '..', and lead elsewhere")
        query = "&".join([*([fixed] if fixed else []), *self._query_pairs()])
        return f"{target}?{query}" if query else target

    def _query_pairs(self) -> Iterable[str]:
        for parameter, value in self._at("query"):
            yield from pairs(parameter, value)

    def headers(self) -> dict[str, str]:
        headers: dict[str, str] = {}
        for parameter, value in self._at("header"):
            if not is_undefined(parameter, value):
                headers[parameter.sent_as] = _header(parameter, joined(parameter, value, as_is))
        cookies = [
            f"{parameter.sent_as}={joined(parameter, value, _cookie_quoted)}"
            for parameter, value in self._at("cookie")
            if not is_undefined(parameter, value)
        ]
        if cookies:
            headers["Cookie"] = "; ".join(cookies)
            if len(headers["Cookie"]) > MAX_HEADER_VALUE:
                text = f"the cookies have more than {MAX_HEADER_VALUE} characters"
                raise unsendable("", text)
        return headers

    def body(self) -> tuple[bytes | None, str]:
        """Return the body and its content type, or None and an empty text."""
        values = list(self._at("body"))
        if values:
            return encode_body(self._tool.body, values, self._tool.content_type)
        # An object of which nothing is given is sent, unless the method needs no body.
        of_body = [parameter for parameter in self._tool.parameters if parameter.position == "body"]
        is_object = bool(of_body) and self._tool.body == "json" and self._tool.method != "GET"
        is_whole = any(parameter.is_body for parameter in of_body)
        kind = self._tool.content_type or "application/json"
        return (b"{}", kind) if is_object and not is_whole else (None, "")


def _without_nulls(value: Any, schema: Any) -> Any:
    """Return a value without nulls for optional members that do not accept null."""
    if not isinstance(schema, dict):
        return value
    if isinstance(value, list):
        return [_without_nulls(item, schema.get("items")) for item in value]
    properties = schema.get("properties")
    if not isinstance(value, dict) or not isinstance(properties, dict):
        return value
    return {
        name: _without_nulls(item, properties.get(name))
        for name, item in value.items()
        if item is not None or accepts_null(properties.get(name, {}))
    }


def _segment(parameter: HttpParameter, value: Any) -> str:
    """Return a value as a segment of a path."""

    def quoted(text: str) -> str:
        try:
            return quote(text, safe="")
        except UnicodeEncodeError:
            raise unsendable(parameter.name, "contains an unpaired surrogate") from None

    if value is None or value in ("", [], {}):
        raise unsendable(parameter.name, "is part of the path and may not be empty")
    text = path_text(parameter, value, quoted)
    if not text:
        raise unsendable(parameter.name, "is part of the path and may not be empty")
    return text


def _decode_dots(part: str) -> str:
    return part.replace("%2E", ".").replace("%2e", ".")


def _cookie_quoted(text: str) -> str:
    return quote(text, safe=_IN_COOKIES, errors="replace")


def _header(parameter: HttpParameter, text: str) -> str:
    """Return a header's value, unless HTTP would change it."""
    if len(text) > MAX_HEADER_VALUE:
        raise unsendable(parameter.name, f"is longer than {MAX_HEADER_VALUE} characters")
    if text != text.strip():
        raise unsendable(parameter.name, "starts or ends with white space, which no header may")
    if not text.isprintable():
        raise unsendable(parameter.name, "contains a character that no header may contain")
    return text
