"""Readers of single values: text, numbers, durations, sizes, choices, lists.

Messages name what the value is, not its text, unless the key can hold no secret.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from leaseway.control_plane.config.schema.issues import IssueReason, Where, shown
from leaseway.control_plane.config.tree.yaml_tree import Items, Leaf, Tree
from leaseway.spec.references import references
from leaseway.spec.sizes import SIZE_PATTERN, parse_size
from leaseway.wire.bounds import KIB
from leaseway.wire.names import nearest

MAX_TEXT: Final = 64 * KIB
"""Characters of one text; a process takes no argument or variable over 128 KiB."""

_DURATION_PART: Final = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)(ms|s|m|h|d)")
_DURATION: Final = re.compile(r"(\d{1,12}(\.\d{1,9})?(ms|s|m|h|d))+")
_SECONDS: Final[Mapping[str, float]] = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}


Schema = dict[str, Any]
"""JSON Schema, draft 2020-12."""

_T = TypeVar("_T", covariant=True)


@dataclass(frozen=True)
class Reader(Generic[_T]):
    """Reads the tree of a value, and says in JSON Schema what it takes.

    Called with a tree and its place it returns the typed value, or reports what is wrong and
    returns None; no valid value is None.

    Attributes:
        read: What it does when it is called.
        schema: What it takes, as far as a schema can say it: editors complete with it.
    """

    read: Callable[[Tree, Where], _T | None]
    schema: Schema

    def __call__(self, node: Tree, where: Where) -> _T | None:
        return self.read(node, where)


def takes(schema: Schema) -> Callable[[Callable[[Tree, Where], _T | None]], Reader[_T]]:
    """Return a decorator that makes a reader of a function."""

    def reader(read: Callable[[Tree, Where], _T | None]) -> Reader[_T]:
        return Reader(read, schema)

    return reader


def text_schema(*, longest: int = MAX_TEXT, empty: bool = True) -> Schema:
    """Return the schema of a text that `text_of` takes."""
    return {"type": "string", "maxLength": longest} | ({} if empty else {"minLength": 1})


def list_schema(item: Schema, most: int) -> Schema:
    return {"type": "array", "maxItems": most, "items": item}


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
    return f"did you mean '{near[0]}'?" if near else f"known are {', '.join(sorted(known))}."


def text_of(node: Tree, where: Where, *, longest: int = MAX_TEXT, empty: bool = True) -> str | None:
    """Return a text that a worker resolves; it may hold `${NAME}`."""
    if not isinstance(node, Leaf) or not isinstance(node.value, str):
        quote = "; put it in quotes" if isinstance(node, Leaf) and node.value is not None else ""
        message = f"{shown(where.key)} must be text, but it is {kind_of(node)}{quote}."
        where.error(node.at, IssueReason.WRONG_TYPE, message)
        return None
    if len(node.value) > longest:
        message = f"{shown(where.key)} is longer than {longest} characters."
    elif not empty and not node.value.strip():
        message = f"{shown(where.key)} is empty."
    elif "\0" in node.value:
        message = f"{shown(where.key)} holds a NUL character, which no program can be given."
    else:
        return node.value
    where.error(node.at, IssueReason.BAD_VALUE, message)
    return None


def check_references(node: Tree, where: Where) -> None:
    """Warn of a `${` in a text that stays as it is because it has neither of the two forms."""
    text = node.value if isinstance(node, Leaf) and isinstance(node.value, str) else ""
    if text.count("${") > len(references(text)):
        message = (
            f"{shown(where.key)} holds a '${{' that is no reference and stays as it is: only"
            " ${NAME} and ${NAME:-default} are replaced."
        )
        where.warning(node.at, IssueReason.MALFORMED_REFERENCE, message)


def plain_text(*, longest: int = MAX_TEXT, empty: bool = True) -> Reader[str]:
    """Return a reader of text that the control plane reads itself, so without `${NAME}`."""

    @takes(text_schema(longest=longest, empty=empty))
    def read(node: Tree, where: Where) -> str | None:
        text = text_of(node, where, longest=longest, empty=empty)
        return text if text is None or _holds_no_reference(text, node, where) else None

    return read


@takes({"type": "boolean"})
def boolean(node: Tree, where: Where) -> bool | None:
    """Read true or false."""
    if isinstance(node, Leaf) and isinstance(node.value, bool):
        return node.value
    _wrong(node, where, "true or false")
    return None


def integer(smallest: int, largest: int) -> Reader[int]:
    """Return a reader of whole numbers within bounds, both included."""

    @takes({"type": "integer", "minimum": smallest, "maximum": largest})
    def read(node: Tree, where: Where) -> int | None:
        value = node.value if isinstance(node, Leaf) else None
        if isinstance(value, int) and not isinstance(value, bool) and smallest <= value <= largest:
            return value
        _wrong(node, where, f"a whole number from {smallest} to {largest}")
        return None

    return read


def number(smallest: float, largest: float) -> Reader[float]:
    """Return a reader of numbers within bounds, both included."""

    @takes({"type": "number", "minimum": smallest, "maximum": largest})
    def read(node: Tree, where: Where) -> float | None:
        value = _number(node)
        if value is not None and smallest <= value <= largest:
            return float(value)
        _wrong(node, where, f"a number from {smallest:g} to {largest:g}")
        return None

    return read


def duration(smallest: float, largest: float) -> Reader[float]:
    """Return a reader of durations in seconds: numbers, or texts such as `500ms` and `1h30m`."""
    wanted = f"a duration from {_span(smallest)} to {_span(largest)}, such as 30s, 15m or 1.5"
    schema: Schema = {
        "description": "Seconds, or a text such as 500ms, 30s, 15m, 1h30m.",
        "anyOf": [
            {"type": "number", "minimum": smallest, "maximum": largest},
            {"type": "string", "pattern": f"^{_DURATION.pattern}$"},
        ],
    }

    @takes(schema)
    def read(node: Tree, where: Where) -> float | None:
        value = _number(node)
        if value is None and isinstance(node, Leaf) and isinstance(node.value, str):
            if not _holds_no_reference(node.value, node, where):
                return None
            value = _seconds(node.value)
        if value is not None and smallest <= value <= largest:
            return float(value)
        _wrong(node, where, wanted)
        return None

    return read


def size(smallest: int, largest: int) -> Reader[int]:
    """Return a reader of sizes in bytes: whole numbers, or texts such as `512MiB` and `2GB`."""
    schema: Schema = {
        "description": "Bytes, or a text such as 512MiB or 2GB.",
        "anyOf": [
            {"type": "integer", "minimum": smallest, "maximum": largest},
            {"type": "string", "pattern": f"^{SIZE_PATTERN}$"},
        ],
    }

    @takes(schema)
    def read(node: Tree, where: Where) -> int | None:
        value = node.value if isinstance(node, Leaf) and not isinstance(node.value, bool) else None
        if isinstance(value, str):
            if not _holds_no_reference(value, node, where):
                return None
            value = parse_size(value)
        if isinstance(value, int) and smallest <= value <= largest:
            return value
        if isinstance(value, int):
            message = (
                f"{shown(where.key)} must be from {smallest >> 20} MiB to {largest >> 20} MiB, but"
                f" is {value} bytes."
            )
            where.error(node.at, IssueReason.BAD_VALUE, message)
        else:
            _wrong(node, where, "a size such as 512MiB or 2GB, or a number of bytes")
        return None

    return read


def choice(*names: str) -> Reader[str]:
    """Return a reader of one of a few words."""

    @takes({"enum": list(names)})
    def read(node: Tree, where: Where) -> str | None:
        if not isinstance(node, Leaf) or not isinstance(node.value, str):
            _wrong(node, where, f"one of {', '.join(names)}")
            return None
        if node.value in names:
            return node.value
        if _holds_no_reference(node.value, node, where):
            hint = suggestion(node.value, names)
            message = f"{shown(where.key)} can't be {shown(node.value)}: {hint}"
            where.error(node.at, IssueReason.BAD_VALUE, message)
        return None

    return read


def list_of(read_item: Reader[_T], most: int) -> Reader[tuple[_T, ...]]:
    """Return a reader of lists, as tuples; refused items are left out, having been reported."""

    @takes(list_schema(read_item.schema, most))
    def read(node: Tree, where: Where) -> tuple[_T, ...] | None:
        if not isinstance(node, Items):
            _wrong(node, where, "a list")
            return None
        if len(node.items) > most:
            message = f"{shown(where.key)} has {len(node.items)} items; {most} are allowed."
            where.error(node.at, IssueReason.BAD_VALUE, message)
            return None
        values = [
            read_item(item, where.item(index, item.at)) for index, item in enumerate(node.items)
        ]
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


def _holds_no_reference(text: str, node: Tree, where: Where) -> bool:
    if "${" not in text:
        return True
    message = (
        f"{shown(where.key)} takes no ${{NAME}}: references are resolved on workers, and this key"
        " is read by the control plane. Write the value itself."
    )
    where.error(node.at, IssueReason.REFERENCE_NOT_ALLOWED, message)
    return False


def _wrong(node: Tree, where: Where, wanted: str) -> None:
    known = isinstance(node, Leaf) and isinstance(node.value, int | float)
    found = shown(node.text) if known and isinstance(node, Leaf) else kind_of(node)
    message = f"{shown(where.key)} must be {wanted}, but it is {found}."
    where.error(node.at, IssueReason.WRONG_TYPE, message)
