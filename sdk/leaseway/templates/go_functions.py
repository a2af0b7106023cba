"""Fields and functions of Go templates.

Go distinguishes a missing value (no such key) from null: a field of a missing value is missing, a
field of null is an error. `MISSING` stands for the first, None for the second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final
from urllib.parse import quote_plus

import msgspec

from leaseway.templates.go_format import (
    Unprintable,
    print_all,
    print_format,
    to_text,
)
from leaseway.templates.limits import MAX_OUTPUT, Budget, TemplateFailure

_NO_VALUE: Final = "<no value>"
_HTML: Final = str.maketrans(
    {"\0": "\ufffd", '"': "&#34;", "'": "&#39;", "&": "&amp;", "<": "&lt;", ">": "&gt;"}
)
_JS: Final = {"\\": "\\\\", "'": "\\'", '"': '\\"'} | {
    char: f"\\u{ord(char):04X}" for char in "<>&="
}
_MAX_SHOWN: Final = 64
_MAX_SLICE_INDEXES: Final = 3
_FREE_WIDTH: Final = 256


class Missing:
    """The type of `MISSING`."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return _NO_VALUE


MISSING: Final = Missing()
"""The value of a key that a mapping does not have."""


def lift(value: Any) -> Any:
    """Convert the value of a pipeline for its next use, where null is missing."""
    return MISSING if value is None else value


def plain(value: Any) -> Any:
    """Convert a value for functions, where a missing value is null."""
    return None if value is MISSING else value


def field(value: Any, *names: str) -> Any:
    """Return a field of a field of a value.

    Raises:
        TemplateFailure: A value has no fields.
    """
    for name in names:
        if isinstance(value, dict):
            value = value.get(name, MISSING)
        elif value is None:
            raise TemplateFailure(f"null has no field {name[:_MAX_SHOWN]}")
        elif value is not MISSING:
            raise TemplateFailure(f"{_kind(value)} has no field {name[:_MAX_SHOWN]}")
    return value


def pairs(value: Any, budget: Budget, size: int) -> Iterator[tuple[Any, Any]]:
    """Yield the pairs of a `range`: keys or indexes, and elements.

    Args:
        value: The value to iterate over.
        budget: Counts the iterations.
        size: The maximum literal text of an iteration, in characters.

    Raises:
        TemplateFailure: The value cannot be iterated over.
    """
    if isinstance(value, list):
        return budget.iterate(enumerate(value), size)
    if isinstance(value, dict):
        return budget.iterate(((key, value[key]) for key in sorted(value)), size)
    if value is None or value is MISSING:
        return iter(())
    if type(value) is int:
        return budget.iterate(((MISSING, number) for number in range(value)), size)
    raise TemplateFailure(f"range accepts lists, mappings and counts, not {_kind(value)}")


def single(value: Any) -> Any:
    if type(value) is int:
        raise TemplateFailure("range over a count sets one variable, not two")
    return value


def show(value: Any, budget: Budget) -> str:
    if isinstance(value, str):
        return budget.write(value)
    return budget.write(_NO_VALUE if value is None or value is MISSING else to_text(value))


@dataclass(frozen=True)
class Signature:
    """A function, called with the budget and its arguments.

    Attributes:
        minimum: The minimum number of arguments.
        maximum: The maximum number, or None for any.
    """

    call: Callable[..., Any]
    minimum: int
    maximum: int | None = None


def _kind(value: Any) -> str:
    if value is None or value is MISSING:
        return "null"
    if isinstance(value, str):
        return "a string"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    return "a mapping" if isinstance(value, dict) else "a list"


def _size(value: Any) -> int:
    """Return the approximate length of a value as text."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return 5 + sum(len(key) + 2 + _size(member) for key, member in value.items())
    if isinstance(value, list):
        return 2 + sum(1 + _size(item) for item in value)
    return 20


def _count(budget: Budget, *values: Any) -> None:
    budget.step()
    budget.make(sum(map(_size, values)))


def _text(value: Any, function: str) -> str:
    if isinstance(value, str):
        return value
    raise TemplateFailure(f"{function} accepts a string, not {_kind(value)}")


# Comparison.

_BOOL, _INT, _FLOAT, _STRING, _OTHER, _NIL = range(6)


def _basic(value: Any) -> int:
    match value:
        case bool():
            return _BOOL
        case int():
            return _INT
        case float():
            return _FLOAT
        case str():
            return _STRING
    return _NIL if value is None or value is MISSING else _OTHER


def _incomparable(first: Any, second: Any) -> TemplateFailure:
    return TemplateFailure(f"{_kind(first)} cannot be compared with {_kind(second)}")


_NUMBERS: Final = frozenset((_INT, _FLOAT))


def _equal(first: Any, second: Any) -> bool:
    one, other = _basic(first), _basic(second)
    if _NIL in (one, other):
        return one == other
    if _OTHER in (one, other) or (one != other and not {one, other} <= _NUMBERS):
        raise _incomparable(first, second)
    return bool(first == second)


def _eq(budget: Budget, first: Any, *others: Any) -> bool:
    budget.step()
    return any(_equal(first, other) for other in others)


def _ne(budget: Budget, first: Any, second: Any) -> bool:
    budget.step()
    return not _equal(first, second)


def _below(first: Any, second: Any) -> bool:
    one, other = _basic(first), _basic(second)
    is_ordered = {one, other} <= _NUMBERS or one == other == _STRING
    if not is_ordered:
        raise _incomparable(first, second)
    return bool(first < second)


def _lt(budget: Budget, first: Any, second: Any) -> bool:
    budget.step()
    return _below(first, second)


def _le(budget: Budget, first: Any, second: Any) -> bool:
    budget.step()
    return _below(first, second) or first == second


def _gt(budget: Budget, first: Any, second: Any) -> bool:
    return not _le(budget, first, second)


def _ge(budget: Budget, first: Any, second: Any) -> bool:
    return not _lt(budget, first, second)


# Arithmetic, which Go's own functions lack and templates number their items with.


def _add(budget: Budget, first: Any, *others: Any) -> Any:
    budget.step()
    total = _number(first, "add")
    for other in others:
        total += _number(other, "add")
    return _finite(total, "add")


def _sub(budget: Budget, first: Any, second: Any) -> Any:
    budget.step()
    return _finite(_number(first, "sub") - _number(second, "sub"), "sub")


def _number(value: Any, function: str) -> Any:
    if _basic(value) in _NUMBERS:
        return value
    raise TemplateFailure(f"{function} accepts numbers, not {_kind(value)}")


def _finite(value: float, function: str) -> float:
    if isinstance(value, float) and not isfinite(value):
        raise TemplateFailure(f"the result of {function} is too large")
    return value


# Parts.


def _len(budget: Budget, value: Any) -> int:
    budget.step()
    if isinstance(value, str):
        return len(value.encode("utf-8", "replace"))
    if isinstance(value, list | dict):
        return len(value)
    raise TemplateFailure(f"len accepts a string, a list or a mapping, not {_kind(value)}")


def _position(index: Any, length: int) -> int:
    if type(index) is not int:
        raise TemplateFailure(f"an index must be an integer, not {_kind(index)}")
    if not 0 <= index <= length:
        raise TemplateFailure(f"the index {index} is out of range: there are {length} elements")
    return index


def _index(budget: Budget, value: Any, *indexes: Any) -> Any:
    budget.step()
    if value is None or value is MISSING:
        raise TemplateFailure("null cannot be indexed")
    for index in indexes:
        if isinstance(value, dict):
            if not isinstance(index, str):
                raise TemplateFailure(f"a key must be a string, not {_kind(index)}")
            value = value.get(index)
        elif isinstance(value, str | list):
            items = value.encode("utf-8", "replace") if isinstance(value, str) else value
            at = _position(index, len(items))
            if at == len(items):
                raise TemplateFailure(f"the index {at} is out of range: there are {at} elements")
            value = items[at]
        else:
            raise TemplateFailure(f"{_kind(value)} cannot be indexed")
    return value


def _slice(budget: Budget, value: Any, *indexes: Any) -> Any:
    budget.step()
    if not isinstance(value, str | list):
        raise TemplateFailure(f"slice accepts a string or a list, not {_kind(value)}")
    if isinstance(value, str) and len(indexes) == _MAX_SLICE_INDEXES:
        raise TemplateFailure("a slice of a string accepts at maximum two indexes")
    items: Any = value.encode("utf-8", "replace") if isinstance(value, str) else value
    ends = [_position(index, len(items)) for index in indexes]
    bounds = [*ends, *(0, len(items), len(items))[len(ends) :]]
    if not bounds[0] <= bounds[1] <= bounds[2]:
        raise TemplateFailure(f"the slice {bounds[0]} to {bounds[1]} is reversed")
    budget.make(bounds[1] - bounds[0])
    part = items[bounds[0] : bounds[1]]
    return part.decode("utf-8", "replace") if isinstance(value, str) else part


# Texts.


def _print(budget: Budget, *values: Any) -> str:
    _count(budget, *values)
    return print_all([plain(value) for value in values])


def _println(budget: Budget, *values: Any) -> str:
    _count(budget, *values)
    return " ".join(to_text(plain(value)) for value in values) + "\n"


def _printf(budget: Budget, form: Any, *values: Any) -> str:
    text = _text(form, "printf")
    _count(budget, text, *values)
    _bound_widths(budget, text, values)
    try:
        made = print_format(text, [plain(value) for value in values])
    except Unprintable as error:
        raise TemplateFailure(str(error)) from None
    budget.make(len(made))
    return made


def _bound_widths(budget: Budget, text: str, values: Sequence[Any]) -> None:
    """Count the widths of a format before formatting."""
    digits, total = "", 0
    for char in text + " ":
        if char.isdecimal() and char.isascii():
            digits += char
        elif digits:
            total, digits = total + min(int(digits[:8]), MAX_OUTPUT), ""
    lists = max((_size(value) for value in values if isinstance(value, list | dict)), default=1)
    if total > _FREE_WIDTH:
        budget.make(total * max(1, lists))


def _joined(values: Sequence[Any]) -> str:
    shown = [_NO_VALUE if plain(value) is None else value for value in values]
    return print_all(shown)


def _html(budget: Budget, *values: Any) -> str:
    _count(budget, *values)
    return _joined(values).translate(_HTML)


def _js(budget: Budget, *values: Any) -> str:
    _count(budget, *values)
    return "".join(map(_js_character, _joined(values)))


def _js_character(char: str) -> str:
    if char in _JS:
        return _JS[char]
    if char < " " or not (char.isprintable() or char.isascii()):
        return f"\\u{ord(char):04X}"
    return char


def _urlquery(budget: Budget, *values: Any) -> str:
    _count(budget, *values)
    return quote_plus(_joined(values), errors="replace")


def _call(budget: Budget, function: Any, *_arguments: Any) -> Any:
    raise TemplateFailure(f"call needs a function, not {_kind(function)}; data has no functions")


# Common additions to Go's functions.


def _default(budget: Budget, fallback: Any, value: Any = MISSING) -> Any:
    budget.step()
    return value or fallback


def _join(budget: Budget, separator: Any, items: Any) -> str:
    between = _text(separator, "join")
    if items is None or items is MISSING:
        return ""
    parts = items if isinstance(items, list) else [items]
    budget.make(len(between) * len(parts))
    _count(budget, parts)
    return between.join(to_text(part) for part in parts if part is not None)


def _upper(budget: Budget, text: Any) -> str:
    _count(budget, text)
    return _text(text, "upper").upper()


def _lower(budget: Budget, text: Any) -> str:
    _count(budget, text)
    return _text(text, "lower").lower()


def _trim(budget: Budget, text: Any) -> str:
    _count(budget, text)
    return _text(text, "trim").strip()


def _to_json(budget: Budget, value: Any) -> str:
    _count(budget, value)
    return msgspec.json.encode(plain(value), order="deterministic").decode()


FUNCTIONS: Final[Mapping[str, Signature]] = {
    "not": Signature(lambda _run, value: not value, 1, 1),
    "and": Signature(lambda _run, *_values: None, 1),
    "or": Signature(lambda _run, *_values: None, 1),
    "eq": Signature(_eq, 2),
    "ne": Signature(_ne, 2, 2),
    "lt": Signature(_lt, 2, 2),
    "le": Signature(_le, 2, 2),
    "gt": Signature(_gt, 2, 2),
    "ge": Signature(_ge, 2, 2),
    "add": Signature(_add, 1),
    "sub": Signature(_sub, 2, 2),
    "len": Signature(_len, 1, 1),
    "index": Signature(_index, 1),
    "slice": Signature(_slice, 1, 4),
    "print": Signature(_print, 0),
    "printf": Signature(_printf, 1),
    "println": Signature(_println, 0),
    "html": Signature(_html, 0),
    "js": Signature(_js, 0),
    "urlquery": Signature(_urlquery, 0),
    "call": Signature(_call, 1),
    "default": Signature(_default, 1, 2),
    "join": Signature(_join, 2, 2),
    "upper": Signature(_upper, 1, 1),
    "lower": Signature(_lower, 1, 1),
    "trim": Signature(_trim, 1, 1),
    "toJson": Signature(_to_json, 1, 1),
}
"""All functions. `and` and `or` become Jinja2's operators, which also short-circuit."""
