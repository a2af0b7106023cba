"""Writes arguments as text: in a path, a query, a header or a form, by their style. Pure.

Items and members are percent-encoded on their own and separators are not, so that a server tells
both apart, whether it splits a value before or after it decodes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, assert_never
from urllib.parse import quote

import msgspec

from leaseway.spec.kinds.http_tools import JOINED_STYLES, HttpParameter, Style

_MAX_EXACT: Final = 2**53
"""Up to here a float is one whole number."""

Quote = Callable[[str], str]

_ENCODED: Final = {" ": "%20", "|": "%7C"}
"""Separators that no address may contain as they are."""
_RESERVED: Final = "/:?@!$'()*,="
"""Reserved characters that neither end a value of a query nor stand for another character."""


def text_of(value: Any) -> str:
    """Return a value as text: text unchanged, whole numbers as integers, all else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        value = _as_number(value)
    return msgspec.json.encode(value).decode()


def number_of(text: str) -> int | float:
    """Return the number of a text of JSON with a fraction or an exponent."""
    return _as_number(float(text))


def _as_number(value: float) -> int | float:
    """Return a whole number as an integer.

    Some clients and models write 5.0 where the schema has an integer, which it is there, but many
    servers refuse it.
    """
    return int(value) if value.is_integer() and abs(value) < _MAX_EXACT else value


def is_undefined(parameter: HttpParameter, value: Any) -> bool:
    """Return whether a value writes nothing: null, and a list or object without items.

    RFC 6570 (2.3) calls these undefined. `name=` would be a list of one empty text.
    """
    return value is None or (value in ([], {}) and parameter.style != "json")


def path_text(parameter: HttpParameter, value: Any, quoted: Quote) -> str:
    """Return a value as a part of a path."""
    style, name = parameter.style, quoted(parameter.sent_as)
    if style not in ("label", "matrix"):
        return joined(parameter, value, quoted)
    items = _items(value, quoted, parameter.explode)
    if style == "label":
        return "".join(f".{item}" for item in items) if parameter.explode else f".{','.join(items)}"
    if parameter.explode and isinstance(value, dict):
        return "".join(f";{item}" for item in items)
    if parameter.explode:
        return "".join(f";{name}={item}" for item in items)
    return f";{name}={','.join(items)}"


def joined(parameter: HttpParameter, value: Any, quoted: Quote) -> str:
    """Return a value as one text, its items and members with separators."""
    if parameter.style == "json":
        return quoted(msgspec.json.encode(value).decode())
    separator = _separator(parameter.style)
    is_plain = isinstance(value, list) or (
        isinstance(value, dict) and parameter.style in JOINED_STYLES
    )
    if separator is None or not is_plain or not _is_flat(value):
        return quoted(text_of(value))
    between = separator if quoted(" ") == " " else _ENCODED.get(separator, separator)
    return between.join(_items(value, quoted, parameter.explode))


def _separator(style: Style) -> str | None:
    """Return what stands between the items of a list; None if the style writes no such text."""
    match style:
        case "comma" | "repeat" | "spread":
            return ","
        case "space":
            return " "
        case "pipe":
            return "|"
        case "deep" | "json" | "label" | "matrix" | "bare":
            return None
    assert_never(style)


def pairs(parameter: HttpParameter, value: Any) -> Iterator[str]:
    """Yield `name=value` for each pair of a value in a query or form, percent-encoded.

    A value in the style `bare` is the whole query, without a name.
    """

    def quoted(text: str) -> str:
        safe = _RESERVED if parameter.allow_reserved else ""
        return quote(text, safe=safe, errors="replace")

    name, style = parameter.sent_as, parameter.style
    if is_undefined(parameter, value):
        return
    match style:
        case "bare":
            yield quoted(text_of(value))
        case "deep":
            for key, text in _deep(name, value):
                yield f"{quote_name(key)}={quoted(text)}"
        case "spread" if isinstance(value, dict):
            for key, text in _spread(value):
                yield f"{quote_name(key)}={quoted(text)}"
        case "repeat" | "spread" if isinstance(value, list):
            for item in value:
                yield f"{quote_name(name)}={quoted(text_of(item))}"
        case "repeat" | "spread" | "comma" | "space" | "pipe" | "json" | "label" | "matrix":
            yield f"{quote_name(name)}={joined(parameter, value, quoted)}"
        case _:
            assert_never(style)


def quote_name(text: str) -> str:
    return quote(text, safe="", errors="replace")


def as_is(text: str) -> str:
    return text


def _items(value: Any, quoted: Quote, explode: bool) -> list[str]:
    """Return the items of a list, or the names and values of a mapping; null members are left out.

    Args:
        value: The value; one that is neither is the only item.
        quoted: Encodes each text.
        explode: Whether members are `name=value`, instead of two items.
    """
    if isinstance(value, list):
        return [quoted(text_of(item)) for item in value]
    if not isinstance(value, dict):
        return [quoted(text_of(value))]
    members = [
        (quoted(str(name)), quoted(text_of(item)))
        for name, item in value.items()
        if item is not None
    ]
    if explode:
        return [f"{name}={text}" for name, text in members]
    return [text for member in members for text in member]


def _is_flat(value: Any) -> bool:
    items = value.values() if isinstance(value, dict) else value
    return not any(isinstance(item, list | dict) for item in items)


def _spread(value: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield a pair for each member of a mapping, and for each item of one that is a list."""
    for key, item in value.items():
        for part in item if isinstance(item, list) else [item]:
            if part is not None:
                yield key, text_of(part)


def _deep(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield pairs such as `name[key][0]` and its text for all members of a value."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _deep(f"{name}[{key}]", item)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _deep(f"{name}[{index}]", item)
    elif value is not None:
        yield name, text_of(value)
