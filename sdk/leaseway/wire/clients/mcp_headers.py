"""The HTTP headers of MCP, most of which repeat what a request's body says (MCP, Transports). Pure.

Proxies route by them without reading bodies, so both must say the same: the worker writes them, and
the front compares them. `Mcp-Method` and `Mcp-Name` repeat what is called; `Mcp-Param-*` repeat
arguments that a tool's schema marks with `x-mcp-header`.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from leaseway.wire.messages.json_schema import CONDITIONS, LISTS, MAPS, MEMBERS

VERSION_HEADER: Final = "MCP-Protocol-Version"
SESSION_HEADER: Final = "Mcp-Session-Id"
METHOD_HEADER: Final = "mcp-method"
NAME_HEADER: Final = "mcp-name"
NAME_MEMBERS: Final[Mapping[str, str]] = MappingProxyType(
    {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
)
"""Methods whose requests have `Mcp-Name`, and the member of their params that it repeats."""

_ANNOTATION: Final = "x-mcp-header"
_PREFIX: Final = "Mcp-Param-"
_WRITTEN: Final = frozenset(
    {VERSION_HEADER.lower(), SESSION_HEADER.lower(), METHOD_HEADER, NAME_HEADER}
)
_TYPES: Final = ("string", "integer", "boolean")
"""Types that may have the annotation. Numbers may not: languages write them differently."""
_SINGLE: Final = frozenset({*CONDITIONS, *MEMBERS, "items", "contentSchema"})
_LISTED: Final = frozenset({*LISTS, "items"})
_is_token: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+").fullmatch  # RFC 9110, 5.6.2
_is_plain: Final = re.compile(r"[\x20-\x7e]*").fullmatch
_is_encoded: Final = re.compile(r"=\?base64\?(.*)\?=").fullmatch
_is_decimal: Final = re.compile(r"(-?[0-9]+)(\.0+)?").fullmatch

Path = tuple[str, ...]
"""The names of properties from the root of a schema, or of arguments, to one of them."""


def is_mcp_header(name: str) -> bool:
    """Return whether clients write a header by what they send, so that nobody can configure it."""
    return name.lower() in _WRITTEN or name.lower().startswith(_PREFIX.lower())


@dataclass(frozen=True, slots=True)
class ArgumentHeader:
    """The header of one argument.

    Attributes:
        name: Its name, such as `Mcp-Param-Region`.
        is_integer: Whether the schema says that the argument is an integer.
    """

    name: str
    is_integer: bool


def argument_headers(schema: object) -> dict[Path, ArgumentHeader]:
    """Return the headers that the schema of a tool's arguments demands, by the argument's path.

    Raises:
        ValueError: An annotation is wrong, so that clients must not offer the tool.
    """
    found: dict[Path, ArgumentHeader] = {}
    owners: dict[str, Path] = {}
    for path, part in _schemas(schema):
        if _ANNOTATION not in part:
            continue
        if not path:
            raise ValueError(f"{_ANNOTATION} stands elsewhere than at a property of an object.")
        where = ".".join(path)
        token, kind = part[_ANNOTATION], part.get("type")
        if not isinstance(token, str) or not _is_token(token):
            raise ValueError(f"{_ANNOTATION} of the property {where!r} is no name of a header.")
        if kind not in _TYPES:
            raise ValueError(
                f"The property {where!r} has {_ANNOTATION}, so its type must be one of"
                f" {', '.join(_TYPES)}."
            )
        other = owners.setdefault(token.lower(), path)
        if other != path:
            first = ".".join(other)
            raise ValueError(f"The properties {first!r} and {where!r} have the same header.")
        found[path] = ArgumentHeader(_PREFIX + token, kind == "integer")
    return found


def _schemas(root: object) -> Iterator[tuple[Path | None, dict[str, Any]]]:
    """Yield each schema in a schema, with its path if only properties lead to it, else None."""
    waiting: list[tuple[Path | None, object]] = [((), root)]
    while waiting:
        path, part = waiting.pop()
        if not isinstance(part, dict):
            continue
        yield path, part
        for keyword, value in part.items():
            if isinstance(value, dict):
                if keyword == "properties" and path is not None:
                    waiting += (((*path, name), inner) for name, inner in value.items())
                elif keyword in MAPS:
                    waiting += ((None, inner) for inner in value.values())
                elif keyword in _SINGLE:
                    waiting.append((None, value))
            elif isinstance(value, list) and keyword in _LISTED:
                waiting += ((None, inner) for inner in value)


def headers_of(
    demanded: Mapping[Path, ArgumentHeader], arguments: Mapping[str, Any]
) -> dict[str, str]:
    """Return the headers of a call's arguments; those that are absent or null have none."""
    texts = {header.name: _text(_value(arguments, path)) for path, header in demanded.items()}
    return {name: encode_value(text) for name, text in texts.items() if text is not None}


def argument_mismatch(
    demanded: Mapping[Path, ArgumentHeader],
    arguments: Mapping[str, Any],
    headers: Mapping[str, str],
) -> str:
    """Return what is wrong with a call's headers, or empty.

    Args:
        demanded: From `argument_headers`.
        arguments: The arguments in the body.
        headers: The request's headers, found by names in any case.
    """
    for path, header in demanded.items():
        value, sent = _value(arguments, path), headers.get(header.name)
        text, where = _text(value), ".".join(path)
        if sent is None:
            if text is not None:
                return f"The header {header.name} is missing; the argument {where!r} is not."
        elif value is None:
            return f"There is a header {header.name}, but no argument {where!r}."
        elif text is None or not _repeats(header, value, text, decode_value(sent)):
            return f"The header {header.name} differs from the argument {where!r}."
    return ""


def request_mismatch(method: str, params: Mapping[str, Any], headers: Mapping[str, str]) -> str:
    """Return what is wrong with `Mcp-Method` or `Mcp-Name`, or empty.

    Args:
        method: The request's method.
        headers: Its headers, found by names in any case.
    """
    if headers.get(METHOD_HEADER) != method:
        return f"The header {METHOD_HEADER} must be the method of the request."
    member = NAME_MEMBERS.get(method)
    named = params.get(member) if member else None
    if named is not None and decode_value(headers.get(NAME_HEADER)) != named:
        return f"The header {NAME_HEADER} must be the {member!r} in the params of the request."
    return ""


def _value(arguments: Any, path: Path) -> Any:
    for name in path:
        if not isinstance(arguments, Mapping):
            return None
        arguments = arguments.get(name)
    return arguments


def _text(value: Any) -> str | None:
    """Return how a header writes a value; None if there is none, or no header can have it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str | int | float):
        return None
    try:
        return str(value)
    except ValueError:  # an integer of more digits than Python writes
        return None


def _repeats(header: ArgumentHeader, value: Any, text: str, sent: str | None) -> bool:
    if sent == text:
        return True
    # 42 and 42.0 are the same integer (MCP, Transports), which languages write differently.
    if sent is None or not header.is_integer or isinstance(value, bool | str):
        return False
    number = _is_decimal(sent)
    try:
        return number is not None and int(number[1]) == value
    except ValueError:
        return False


def encode_value(text: str) -> str:
    """Return a text as the value of a header: as it is, or in base64 if it would not arrive so."""
    if _is_plain(text) and text == text.strip() and not _is_encoded(text):
        return text
    return f"=?base64?{base64.b64encode(text.encode()).decode()}?="


def decode_value(value: str | None) -> str | None:
    """Return the text of a header's value; None if there is no header, or its base64 is wrong."""
    encoded = None if value is None else _is_encoded(value)
    if encoded is None:
        return value
    try:
        data = base64.b64decode(encoded[1], validate=True)
        # One text has one encoding: other bits after its end are refused.
        return data.decode() if base64.b64encode(data).decode() == encoded[1] else None
    except (binascii.Error, UnicodeError):
        return None
