"""JSON that both planes and the MCP clients of other makers read alike. Pure.

Parsers differ in what they accept: how deep values may be nested, how long numbers may be, whether
`NaN` or half of a surrogate pair is allowed. All of them read a document that `parse` accepts.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final

from leaseway.wire import bounds
from leaseway.wire.bounds import MAX_NESTING

_MAX_NUMBER: Final = 10**308
"""Larger numbers are infinite in clients that read every number as a double."""

_half_pair: Final = re.compile("[\ud800-\udfff]").sub


class NotPortable(ValueError):
    """A document that not every part reads; the text follows "it" or its name."""


def parse(document: bytes) -> Any:
    """Return the value of a JSON document.

    Raises:
        NotPortable: Some other parser would reject it, or read another value.
    """
    try:
        value = _decode(document.decode())
    except NotPortable:
        raise
    except RecursionError:
        raise NotPortable(_TOO_DEEP) from None
    except ValueError as error:
        if "integer string conversion" in str(error):
            raise NotPortable(_TOO_LARGE) from None
        raise NotPortable("is not JSON in UTF-8") from None
    _check(value)
    return value


def encode(value: Any) -> bytes:
    """Return a value as JSON; halves of surrogate pairs become U+FFFD."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        return _half_pair("\ufffd", text).encode()


_TOO_DEEP: Final = f"is nested more than {MAX_NESTING} levels deep"
_TOO_LARGE: Final = "contains a number beyond the range of a double"


def _refuse_constant(name: str) -> Any:
    raise NotPortable(f"contains {name}, which JSON does not have")


_decode: Final = json.JSONDecoder(parse_constant=_refuse_constant).decode


def _check(value: Any) -> None:
    level: list[Any] = [value]
    depth = 0
    while level:
        inner: list[Any] = []
        deeper = 0
        for value in level:
            if isinstance(value, dict):
                deeper = 1
                inner += value.values()
                _check_texts(value)
            elif isinstance(value, list):
                deeper = 1
                inner += value
            elif isinstance(value, str):
                if not value.isascii():
                    _check_text(value)
            elif isinstance(value, float):
                if not math.isfinite(value):
                    raise NotPortable(_TOO_LARGE)
            elif isinstance(value, int) and not -_MAX_NUMBER <= value <= _MAX_NUMBER:
                raise NotPortable(_TOO_LARGE)
        depth += deeper
        if depth > MAX_NESTING:
            raise NotPortable(_TOO_DEEP)
        level = inner


def _check_texts(names: dict[str, Any]) -> None:
    for name in names:
        if not name.isascii():
            _check_text(name)


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise NotPortable("contains half of a surrogate pair") from None


def is_deep(encoded: bytes, value: Any) -> bool:
    """Return whether JSON is nested more deeply than every part reads it.

    Each level begins with a bracket or a brace, so that most documents need no second look.

    Args:
        encoded: The document.
        value: What it means.
    """
    if len(encoded) <= 2 * MAX_NESTING:
        return False
    if encoded.count(b"[") + encoded.count(b"{") <= MAX_NESTING:
        return False
    level = [value] if type(value) is dict or type(value) is list else []
    for _ in range(MAX_NESTING):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) is dict or type(inner) is list
        ]
        if not level:
            return False
    return True


def has_many_values(document: bytes) -> bool:
    """Return whether JSON has too many values and keys to parse it on the event loop.

    Counts separators outside of strings without parsing, as fast as memory can be read.
    """
    if len(document) <= bounds.MAX_VALUES:  # nearly all: each value has a byte
        return False
    if _count_separators(document) <= bounds.MAX_VALUES:
        return False
    if document.count(b"\\\\") + document.count(b'\\"') > 4 * bounds.MAX_VALUES:
        return True  # removing them would take as long as parsing
    plain = document.replace(b"\\\\", b"").replace(b'\\"', b"")
    if plain.count(b'"') > 4 * bounds.MAX_VALUES:
        return True
    return _count_separators(b"".join(plain.split(b'"')[::2])) > bounds.MAX_VALUES


def _count_separators(document: bytes) -> int:
    return sum(map(document.count, (b",", b":", b"[", b"{")))
