"""Readers of single values: text, numbers, durations, sizes, choices, lists.

Messages name the kind of a value, not its text, unless the key can contain no secret.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, TypeVar, assert_never

from leaseway.control_plane.config.schema.issues import IssueReason, Where, quoted
from leaseway.control_plane.config.tree.yaml_tree import Items, Leaf, Tree
from leaseway.spec.keys import (
    Choice,
    Duration,
    Flag,
    ListOf,
    Number,
    OwnReader,
    Shape,
    Size,
    Text,
    Whole,
)
from leaseway.spec.references import references
from leaseway.wire.bounds import KIB
from leaseway.wire.names import nearest
from leaseway.wire.text.sizes import SIZE_PATTERN, parse_size, size_text

MAX_TEXT: Final = 64 * KIB
"""Characters of one text; a process accepts no argument or variable over 128 KiB."""

_DURATION_PART: Final = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)(ms|s|m|h|d)")
_DURATION: Final = re.compile(r"(\d{1,12}(\.\d{1,9})?(ms|s|m|h|d))+")
_SECONDS: Final[Mapping[str, float]] = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}


Schema = dict[str, Any]
"""JSON Schema, draft 2020-12."""

_T = TypeVar("_T", covariant=True)


class BadValue(Exception):
    """Raised in a reader to reject its value, at whose place it is reported.

    An empty message means that the mistakes are already reported, at places inside the value.
    """

    def __init__(self, message: str = "", reason: IssueReason = IssueReason.BAD_VALUE) -> None:
        super().__init__(message)
        self.reason = reason

    def report(self, node: Tree, where: Where) -> None:
        if str(self):
            where.error(node.at, self.reason, str(self))


@dataclass(frozen=True)
class Reader(Generic[_T]):
    """Reads a value from its tree, and describes the accepted values in JSON Schema.

    Calling it returns the typed value, or reports the mistake and returns None; no valid value
    is None.

    Attributes:
        read: Returns the typed value or raises BadValue.
        schema: The accepted values, as far as a schema can express them; editors complete with it.
    """

    read: Callable[[Tree, Where], _T]
    schema: Schema

    def __call__(self, node: Tree, where: Where) -> _T | None:
        try:
            return self.read(node, where)
        except BadValue as error:
            error.report(node, where)
            return None


def reader(schema: Schema) -> Callable[[Callable[[Tree, Where], _T]], Reader[_T]]:
    """Return a decorator that makes a reader of a function."""
    return partial(Reader, schema=schema)


def list_schema(item: Schema, limit: int) -> Schema:
    return {"type": "array", "maxItems": limit, "items": item}


def kind_of(node: Tree) -> str:
    """Return what kind a value is, without repeating it."""
    if not isinstance(node, Leaf):
        return "a list" if isinstance(node, Items) else "a mapping"
    match node.value:
        case None:
            return "empty"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "text"


def suggestion(name: str, known: Mapping[str, object] | tuple[str, ...]) -> str:
    near = nearest(name, known, 1)
    return f"did you mean '{near[0]}'?" if near else f"use one of {', '.join(sorted(known))}."


def wrong_type(node: Tree, where: Where, wanted: str, *, is_safe: bool = False) -> BadValue:
    """Return the error for a value of the wrong type or out of bounds.

    The message repeats numbers, and texts that are safe, because they were read as numbers.
    """
    is_safe = is_safe or (isinstance(node, Leaf) and isinstance(node.value, int | float))
    found = quoted(node.text) if is_safe and isinstance(node, Leaf) else kind_of(node)
    message = f"{quoted(where.key)} must be {wanted}, but it is {found}."
    return BadValue(message, IssueReason.WRONG_TYPE)


def text(*, longest: int = MAX_TEXT, empty: bool = True) -> Reader[str]:
    """Return a reader of text in which `${` means nothing."""
    schema: Schema = {"type": "string", "maxLength": longest}

    @reader(schema if empty else schema | {"minLength": 1})
    def read(node: Tree, where: Where) -> str:
        if not isinstance(node, Leaf) or not isinstance(node.value, str):
            is_bare = isinstance(node, Leaf) and node.value is not None
            raise BadValue(
                f"{quoted(where.key)} must be text, but it is {kind_of(node)}"
                f"{'; put it in quotes' if is_bare else ''}.",
                IssueReason.WRONG_TYPE,
            )
        if len(node.value) > longest:
            raise BadValue(f"{quoted(where.key)} is longer than {longest} characters.")
        if not empty and not node.value.strip():
            raise BadValue(f"{quoted(where.key)} is empty.")
        if "\0" in node.value:
            raise BadValue(
                f"{quoted(where.key)} contains a NUL character, which no program can be given."
            )
        return node.value

    return read


def worker_text(*, longest: int = MAX_TEXT, empty: bool = True) -> Reader[str]:
    """Return a reader of text in which a worker replaces `${NAME}`."""
    any_text = text(longest=longest, empty=empty)

    @reader(any_text.schema)
    def read(node: Tree, where: Where) -> str:
        value = any_text.read(node, where)
        if value.count("${") > len(references(value)):
            message = (
                f"{quoted(where.key)} contains a '${{' that is not a reference and stays as it is:"
                " only ${NAME} and ${NAME:-default} are replaced."
            )
            where.warning(node.at, IssueReason.MALFORMED_REFERENCE, message)
        return value

    return read


def plain_text(*, longest: int = MAX_TEXT, empty: bool = True) -> Reader[str]:
    """Return a reader of text for the control plane itself, so without `${NAME}`."""
    any_text = text(longest=longest, empty=empty)

    @reader(any_text.schema)
    def read(node: Tree, where: Where) -> str:
        return _without_reference(any_text.read(node, where), where)

    return read


def checked(
    base: Reader[str], fault_of: Callable[[str], str | None], *, pattern: str = ""
) -> Reader[str]:
    """Return a reader of text with a further rule, which editors get as a pattern.

    `fault_of` returns the end of a sentence that begins with the key, or None.
    """

    @reader(base.schema | ({"pattern": f"^{pattern}$"} if pattern else {}))
    def read(node: Tree, where: Where) -> str:
        value = base.read(node, where)
        fault = fault_of(value)
        if fault:
            raise BadValue(f"{quoted(where.key)} {fault}")
        return value

    return read


@reader({"type": "boolean"})
def boolean(node: Tree, where: Where) -> bool:
    """Read true or false."""
    if isinstance(node, Leaf) and isinstance(node.value, bool):
        return node.value
    raise wrong_type(node, where, "true or false")


def integer(smallest: int, largest: int) -> Reader[int]:
    """Return a reader of whole numbers within bounds, both included."""

    @reader({"type": "integer", "minimum": smallest, "maximum": largest})
    def read(node: Tree, where: Where) -> int:
        value = node.value if isinstance(node, Leaf) else None
        if isinstance(value, int) and not isinstance(value, bool) and smallest <= value <= largest:
            return value
        raise wrong_type(node, where, f"a whole number from {smallest} to {largest}")

    return read


def number(smallest: float, largest: float) -> Reader[float]:
    """Return a reader of numbers within bounds, both included."""

    @reader({"type": "number", "minimum": smallest, "maximum": largest})
    def read(node: Tree, where: Where) -> float:
        value = _number(node)
        if value is not None and smallest <= value <= largest:
            return float(value)
        raise wrong_type(node, where, f"a number from {smallest:g} to {largest:g}")

    return read


def duration(smallest: float, largest: float) -> Reader[float]:
    """Return a reader of durations in seconds: numbers, or texts such as `500ms` and `1h30m`."""
    wanted = f"a duration from {_span(smallest)} to {_span(largest)}, such as 30s, 15m or 1.5"
    schema: Schema = {
        "description": "Seconds, or a string such as 500ms, 30s, 15m, 1h30m.",
        "anyOf": [
            {"type": "number", "minimum": smallest, "maximum": largest},
            {"type": "string", "pattern": f"^{_DURATION.pattern}$"},
        ],
    }

    @reader(schema)
    def read(node: Tree, where: Where) -> float:
        value = _number(node)
        if value is None and isinstance(node, Leaf) and isinstance(node.value, str):
            value = _seconds(_without_reference(node.value, where))
        if value is not None and smallest <= value <= largest:
            return float(value)
        raise wrong_type(node, where, wanted, is_safe=value is not None)

    return read


def size(smallest: int, largest: int) -> Reader[int]:
    """Return a reader of sizes in bytes: whole numbers, or texts such as `512MiB` and `2GB`."""
    schema: Schema = {
        "description": "Bytes, or a string such as 512MiB or 2GB.",
        "anyOf": [
            {"type": "integer", "minimum": smallest, "maximum": largest},
            {"type": "string", "pattern": f"^{SIZE_PATTERN}$"},
        ],
    }

    @reader(schema)
    def read(node: Tree, where: Where) -> int:
        value = node.value if isinstance(node, Leaf) and not isinstance(node.value, bool) else None
        if isinstance(value, str):
            value = parse_size(_without_reference(value, where))
        if not isinstance(value, int):
            raise wrong_type(node, where, "a size such as 512MiB or 2GB, or a number of bytes")
        if smallest <= value <= largest:
            return value
        raise BadValue(
            f"{quoted(where.key)} must be from {size_text(smallest)} to {size_text(largest)}, but"
            f" is {value} bytes."
        )

    return read


def choice(*names: str) -> Reader[str]:
    """Return a reader of one of a few words."""

    @reader({"enum": list(names)})
    def read(node: Tree, where: Where) -> str:
        if not isinstance(node, Leaf) or not isinstance(node.value, str):
            raise wrong_type(node, where, f"one of {', '.join(names)}")
        if node.value in names:
            return node.value
        name = _without_reference(node.value, where)
        raise BadValue(f"{quoted(where.key)} can't be {quoted(name)}: {suggestion(name, names)}")

    return read


def reader_of(shape: Shape, own: Reader[Any] | None = None) -> Reader[Any]:
    """Return the reader of a shape.

    Args:
        shape: The values that a key accepts.
        own: The reader that is written for the key, if it has one.
    """
    match shape:
        case Flag():
            return boolean
        case Whole(smallest, largest):
            return integer(smallest, largest)
        case Number(least, most):
            return number(least, most)
        case Duration(least, most):
            return duration(least, most)
        case Size(smallest, largest):
            return size(smallest, largest)
        case Choice(words):
            return choice(*words)
        case Text(longest, empty):
            return plain_text(longest=longest, empty=empty)
        case ListOf(item, limit):
            return list_of(reader_of(item), limit)
        case OwnReader():
            assert own is not None, "A key with a reader of its own has none."
            return own
        case _:
            assert_never(shape)


def items_of(node: Tree, where: Where, limit: int, what: str = "items") -> tuple[Tree, ...]:
    """Return a list's items.

    Raises:
        BadValue: The value is not a list, or is longer than the limit.
    """
    if not isinstance(node, Items):
        raise wrong_type(node, where, "a list" if what == "items" else f"a list of {what}")
    if len(node.items) > limit:
        message = f"{quoted(where.key)} has {len(node.items)} {what}; {limit} are allowed."
        raise BadValue(message)
    return node.items


def list_of(read_item: Reader[_T], limit: int, what: str = "items") -> Reader[tuple[_T, ...]]:
    """Return a reader of lists, as tuples; rejected items are reported and omitted."""

    @reader(list_schema(read_item.schema, limit))
    def read(node: Tree, where: Where) -> tuple[_T, ...]:
        items = enumerate(items_of(node, where, limit, what))
        values = [read_item(item, where.item(index, item.at)) for index, item in items]
        return tuple(value for value in values if value is not None)

    return read


def _number(node: Tree) -> float | None:
    value = node.value if isinstance(node, Leaf) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


def _seconds(text: str) -> float | None:
    if not _DURATION.fullmatch(text):
        return None
    return sum(float(part) * _SECONDS[unit] for part, unit in _DURATION_PART.findall(text))


def _span(seconds: float) -> str:
    for unit in ("d", "h", "m"):
        if seconds >= _SECONDS[unit] and seconds % _SECONDS[unit] == 0:
            return f"{seconds / _SECONDS[unit]:g}{unit}"
    return f"{seconds:g}s"


def _without_reference(text: str, where: Where) -> str:
    if "${" not in text:
        return text
    raise BadValue(
        f"{quoted(where.key)} can't contain ${{NAME}}: references are resolved on workers, and"
        " the control plane reads this key itself. Write the value instead.",
        IssueReason.REFERENCE_NOT_ALLOWED,
    )
