"""Limits the work that a JSON Schema causes, before it is compiled and before it is used.

A server writes the schema, a caller the arguments, and both are checked on the event loop, which
nothing can interrupt there. So the work is bounded beforehand, from the schema alone: how often
its subschemas may be applied to one value, by the value's depth. `ArgumentCheck` multiplies this
with the number of values.

The validator remembers the results of recursive references. A reference that is not recursive is
compiled again wherever it occurs, so that 30 levels of `allOf: [next, next]` are 2^30 checks.

A unit is about 0.03 µs. Pure.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote

from leaseway.wire.json_pointer import at_pointer
from leaseway.wire.messages.json_schema import CHOICES, CONDITIONS, MEMBERS

MAX_UNITS: Final = 1_000_000
"""Limit of one check of arguments: some 30 ms."""

MAX_STEPS: Final = 20_000
"""Limit of subschemas that are looked at, some of them several times: some 20 ms."""

MAX_NESTING: Final = 150
"""Limit of subschemas in subschemas, through references too."""

MAX_PATTERNS: Final = 20_000
"""Limit of the states of all regular expressions together: some 40 ms to compile."""

BACKTRACKS: Final = 5_000
"""Limit of backtracking in a regular expression; a text that needs more does not match."""

_MICROSECONDS_OF_STATE: Final = 2
_FANCY_UNITS: Final = 5_000
_MULTIPLE_OF_UNITS: Final = 150

_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")

_META_SCHEMAS: Final = ("http://json-schema.org/draft-", "https://json-schema.org/draft/")

_FANCY: Final = re.compile(r"\(\?(?:[=!>]|<[=!])|\\[1-9gk]")
"""Lookaround, atomic groups and backreferences, which need backtracking."""
_TOKEN: Final = re.compile(
    r"(?P<class>\[\^?\]?(?:\\.|\[:\w+:\]|[^\]\\])*+\]|\\[pP](?:\{[^{}]*\}|.)|\\[dDwWsS]|\.)"
    r"|(?P<rest>\[.*)|(?P<open>\((?:\?[^()]*?[:=!>])?)|(?P<close>\))"
    r"|(?P<repeat>\{\d+(?:,\d*)?\})|(?P<loop>[*+])|(?P<other>\\.|[^\\])",
    re.DOTALL,
)
_MAX_OVERLAP: Final = 8


class TooMuchWork(ValueError):
    """A schema would cause too much work; the text says why, as the end of a sentence."""


class SchemaWork:
    """The work of one schema.

    Args:
        schema: A JSON Schema.

    Attributes:
        by_depth: Limits of the units that one value costs, for the root, its members, and so on;
            the last one is for all deeper values. Recursive references are remembered.
        by_byte: Limit of the units of one byte, from slow regular expressions.
        effort: About the microseconds of compiling it.
        slow: The subschemas with a slow regular expression as their `pattern`.
        slow_by_depth: Limits of the slow regular expressions for one value; see `by_depth`.
        most: The greatest of `by_depth`.
        has_branches: Whether one of several subschemas must fit: if none does, there is an error
            for each.
        has_unique_items: Whether `uniqueItems` is used, which is slow for large integers.
        is_recursive: Whether values of any depth can be valid.

    Raises:
        TooMuchWork: It is too large or too deep to compile.
    """

    __slots__ = (
        "_anchors",
        "_recursive",
        "_root",
        "_steps",
        "by_byte",
        "by_depth",
        "effort",
        "has_branches",
        "has_unique_items",
        "is_recursive",
        "most",
        "slow",
        "slow_by_depth",
    )

    def __init__(self, schema: Any) -> None:
        self._root = schema
        self._steps = 0
        self._recursive: dict[int, Any] = {}
        self._anchors: dict[str, list[Any]] = {}
        self.has_branches = False
        self.has_unique_items = False
        self.slow: list[dict[str, Any]] = []
        self.by_byte = 0.0
        self.effort = self._scan(schema)
        self.by_depth = self._by_depth(_own_units)
        self.is_recursive = bool(self._recursive)
        self.most = max(self.by_depth)
        self.slow_by_depth = self._by_depth(_slow_patterns) if self.slow else [0.0]
        self.effort += self._steps

    def _scan_keywords(self, schema: dict[str, Any]) -> int:
        """Note what matters in one object; return the states of its regular expressions."""
        for key in ("$anchor", "$dynamicAnchor"):
            if isinstance(name := schema.get(key), str):
                self._anchors.setdefault(name, []).append(schema)
        if "anyOf" in schema or "oneOf" in schema:
            self.has_branches = True
        if schema.get("uniqueItems") is True:
            self.has_unique_items = True
        states = 0
        for pattern in _patterns(schema):
            states += _states(pattern)
            if is_slow(pattern):
                self.by_byte += byte_units(pattern)
        return states

    def _by_depth(self, units_of: Callable[[Mapping[str, Any]], float]) -> list[float]:
        known: dict[int, list[float] | None] = {}
        of_root = self._levels(self._root, known, units_of, 0)
        of_recursive = 0.0
        for target in list(self._recursive.values()):
            levels = known.get(id(target)) or self._levels(target, known, units_of, 0)
            of_recursive += max(levels)
        return [units + of_recursive for units in (*of_root, 0.0)]

    def units_with_errors(self, depth: int) -> float:
        """Return the limit of the units of one value, if each failed check becomes an error.

        Errors of recursive references are built each time.

        Args:
            depth: The greatest depth of a value.
        """
        if not self.is_recursive:
            return self.most
        self._steps = 0
        known: dict[tuple[int, int], float] = {}
        try:
            return max(self._unrolled(self._root, level, known, 0) for level in range(depth + 1))
        except TooMuchWork:
            return float("inf")

    def _step(self, nesting: int) -> None:
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise TooMuchWork(
                f"it has more than {MAX_STEPS} subschemas, or refers to them as often"
            )
        if nesting > MAX_NESTING:
            raise TooMuchWork(f"it nests more than {MAX_NESTING} subschemas, or references")

    def _scan(self, schema: Any) -> int:
        """Find anchors and regular expressions everywhere in a document, also where none apply.

        Return the effort of reading all of it.
        """
        states, values = 0, 0
        draft = schema.get("$schema") if isinstance(schema, dict) else None
        id_key = "id" if isinstance(draft, str) and "draft-04" in draft else "$id"
        remaining = [(schema, 0)]
        while remaining:
            value, nesting = remaining.pop()
            values += 1
            if values + len(remaining) > MAX_STEPS:
                raise TooMuchWork(f"it has more than {MAX_STEPS} values")
            if nesting > 4 * MAX_NESTING:
                raise TooMuchWork(f"it nests more than {4 * MAX_NESTING} values")
            if isinstance(value, list | dict):
                if len(value) > MAX_STEPS:
                    raise TooMuchWork(f"it has more than {MAX_STEPS} values")
                members = value.values() if isinstance(value, dict) else value
                remaining.extend((member, nesting + 1) for member in members)
            if isinstance(value, dict):
                if nesting and isinstance(value.get(id_key), str):
                    raise TooMuchWork(f"it embeds another schema with its own '{id_key}'")
                states += self._scan_keywords(value)
        if states > MAX_PATTERNS:
            raise TooMuchWork("its regular expressions are too large")
        return values + _MICROSECONDS_OF_STATE * states

    def _levels(
        self,
        schema: Any,
        known: dict[int, list[float] | None],
        units_of: Callable[[Mapping[str, Any]], float],
        nesting: int,
    ) -> list[float]:
        """Return the units of one value for each depth below a schema."""
        self._step(nesting)
        if not isinstance(schema, dict):
            return [units_of({})]
        if id(schema) in known:
            levels = known[id(schema)]
            if levels is None:  # it is being looked at: the reference is recursive
                self._recursive[id(schema)] = schema
                return [units_of({})]
            return levels
        known[id(schema)] = None
        levels = [units_of(schema)]
        if units_of is _own_units:
            self._note_slow(schema)
        for child in self._here(schema):
            _add(levels, self._levels(child, known, units_of, nesting + 1), 0)
        for group in self._below(schema):
            greatest: list[float] = []
            for child in group:
                _raise(greatest, self._levels(child, known, units_of, nesting + 1))
            _add(levels, greatest, 1)
        self._steps += len(levels) // 8
        known[id(schema)] = levels
        return levels

    def _note_slow(self, schema: dict[str, Any]) -> None:
        for pattern in filter(is_slow, _patterns(schema)):
            if pattern != schema.get("pattern"):
                raise TooMuchWork("it matches names with a slow regular expression")
            self.slow.append(schema)

    def _unrolled(
        self, schema: Any, depth: int, known: dict[tuple[int, int], float], nesting: int
    ) -> float:
        """Return the units of one value at a depth, with recursive references each time."""
        self._step(nesting)
        if not isinstance(schema, dict):
            return 1.0 if depth == 0 else 0.0
        key = id(schema), depth
        if key in known:
            return known[key]
        known[key] = float("inf")  # a reference to itself, for the same value
        units = _own_units(schema) if depth == 0 else 0.0
        for child in self._here(schema):
            units += self._unrolled(child, depth, known, nesting + 1)
        if depth:
            for group in self._below(schema):
                units += max(
                    (self._unrolled(schema, depth - 1, known, nesting + 1) for schema in group),
                    default=0.0,
                )
        known[key] = units
        return units

    def _here(self, schema: Mapping[str, Any]) -> Iterator[Any]:
        """Yield the subschemas that apply to the same value."""
        for key in _REFERENCES:
            if isinstance(ref := schema.get(key), str):
                yield from self._targets(ref)
        for key in CHOICES:
            if isinstance(branches := schema.get(key), list):
                yield from branches
        for key in CONDITIONS:
            if key in schema:
                yield schema[key]
        for key in ("dependentSchemas", "dependencies"):
            if isinstance(dependent := schema.get(key), dict):
                yield from dependent.values()

    def _below(self, schema: Mapping[str, Any]) -> Iterator[list[Any]]:
        """Yield groups of subschemas for members; at most one of a group applies to a member."""
        if isinstance(properties := schema.get("properties"), dict):
            yield list(properties.values())
        if isinstance(patterns := schema.get("patternProperties"), dict):
            for child in patterns.values():
                yield [child]
        items = schema.get("items")
        prefix = schema.get("prefixItems")
        if isinstance(items, list):
            yield items
        elif items is not None:
            yield [items]
        if isinstance(prefix, list):
            yield prefix
        for key in MEMBERS:
            if key in schema:
                yield [schema[key]]

    def _targets(self, ref: str) -> list[Any]:
        """Return what a reference may name; nothing if this is another document."""
        address, _, fragment = ref.partition("#")
        if address and not (isinstance(self._root, dict) and self._root.get("$id") == address):
            if address.startswith(_META_SCHEMAS):
                return []  # the validator knows them
            raise TooMuchWork(f"it refers to another document, {address[:100]}")
        if fragment and not fragment.startswith("/"):
            return self._anchors.get(fragment, [])
        return [at_pointer(self._root, unquote(fragment))]


def _add(levels: list[float], more: list[float], shift: int) -> None:
    """Add levels to others; `shift` 1 makes them those of members."""
    levels.extend([0.0] * (len(more) + shift - len(levels)))
    for depth, units in enumerate(more, start=shift):
        levels[depth] += units


def _raise(levels: list[float], more: list[float]) -> None:
    """Keep the greater of two levels at each depth."""
    levels.extend([0.0] * (len(more) - len(levels)))
    for depth, units in enumerate(more):
        levels[depth] = max(levels[depth], units)


def _own_units(schema: Mapping[str, Any]) -> float:
    """Return the units of a schema's own keywords for one value."""
    units = 1.0 + len(schema)
    for key, weight in (("required", 8), ("properties", 1), ("patternProperties", 4)):
        if isinstance(value := schema.get(key), list | dict):
            units += weight * len(value)
    for key in ("enum", "const", "dependentRequired", "dependencies"):
        if key in schema:
            units += 4 * _size(schema[key])
    if "multipleOf" in schema or "divisibleBy" in schema:
        units += _MULTIPLE_OF_UNITS
    units += _FANCY_UNITS * sum(bool(_FANCY.search(pattern)) for pattern in _patterns(schema))
    return units


def _slow_patterns(schema: Mapping[str, Any]) -> float:
    return float(any(map(is_slow, _patterns(schema))))


def _patterns(schema: Mapping[str, Any]) -> Iterator[str]:
    if isinstance(pattern := schema.get("pattern"), str):
        yield pattern
    if isinstance(named := schema.get("patternProperties"), dict):
        yield from named


def _states(pattern: str) -> int:
    """Return about how many states a regular expression has, with its repetitions written out."""
    return _measure(pattern)[0]


def is_slow(pattern: str) -> bool:
    """Return whether a text may cost more than reading it once.

    An automaton with few states is fast. It has too many if a class that is repeated may begin
    anywhere, as in `1[01]{40}`.
    """
    _, width, has_loop = _measure(pattern)
    begins_anywhere = has_loop or "|" in pattern or not pattern.startswith("^")
    return width > _MAX_OVERLAP and begins_anywhere


def byte_units(pattern: str) -> float:
    """Return the units of a slow regular expression for one byte of text."""
    return 4 + _states(pattern) / 8


@functools.lru_cache(1_024)
def _measure(pattern: str) -> tuple[int, int, bool]:
    """Return the states of a regular expression, those of classes, and whether it has a loop."""
    if len(pattern) > MAX_PATTERNS:
        return len(pattern), len(pattern), True
    groups: list[tuple[int, int]] = []
    states = width = 0  # of the current group
    atom = (0, 0)
    has_loop = False
    for match in _TOKEN.finditer(pattern):
        kind, text = match.lastgroup, match[0]
        if kind == "open":
            groups.append((states, width))
            states = width = 0
            atom = (0, 0)
        elif kind == "close" and groups:
            atom = (states, width)
            states, width = (outer + inner for outer, inner in zip(groups.pop(), atom, strict=True))
        elif kind == "repeat":
            low, _, high = text[1:-1].partition(",")
            times = min(int((high or low)[:6]), 2 * MAX_PATTERNS)
            has_loop = has_loop or text.endswith(",}")
            states, width = states + atom[0] * (times - 1), width + atom[1] * (times - 1)
            states, width = min(states, 4 * MAX_PATTERNS), min(width, 4 * MAX_PATTERNS)
            atom = (atom[0] * times, atom[1] * times)
        elif kind == "loop":
            has_loop = True
        elif kind == "rest":  # a class without an end, which no validator reads
            states, width = states + len(text), width + len(text)
        elif kind == "class":
            atom = (30 if text[:2] in ("\\p", "\\P") else 3, 1)
            states, width = states + atom[0], width + 1
        else:
            atom = (1, 0)
            states += 1
    for outer in groups:
        states, width = states + outer[0], width + outer[1]
    return states, width, has_loop


def _size(value: Any) -> int:
    """Return the number of values in a JSON value, from texts one for each 16 characters."""
    size, remaining = 0, [value]
    while remaining:
        each = remaining.pop()
        size += 1
        if isinstance(each, str):
            size += len(each) // 16
        elif isinstance(each, dict):
            remaining.extend(each.values())
        elif isinstance(each, list):
            remaining.extend(each)
    return size
