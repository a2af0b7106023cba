"""Checks values against a schema of a tool, compiled once.

A remote `$ref` is never fetched. Messages never contain values of a caller: they are masked. The
work of compiling, checking and explaining is limited (`schema_work`): the event loop does it.
"""

from __future__ import annotations

import re
from contextlib import suppress
from itertools import islice
from typing import Any, Final

import jsonschema_rs
import msgspec

from leaseway.data_plane.core.tools.schema_work import (
    BACKTRACKS,
    MAX_UNITS,
    SchemaWork,
    byte_units,
)
from leaseway.wire import bounds

_MAX_VIOLATIONS: Final = 20
_MAX_MESSAGE: Final = 200
_MAX_PATH: Final = 200
_SMALL_TEXT: Final = 64 * bounds.KIB
_SMALL_VALUES: Final = 200
"""Size of small values: all their violations are reported, of larger ones only the first."""
_MAX_ERROR_UNITS: Final = 6_000
"""Limit of the work of violations: each check that fails becomes an error."""
_MAX_ERROR_DEPTH: Final = 16
_MAX_TOLERANT: Final = 20_000
"""Values in one whose nulls are tolerated: they are copied."""
_MAX_EFFORT: Final = 250
"""Effort of a schema that is compiled on the event loop, in about a millisecond."""
_BYTES_OF_VALUE: Final = 2
_SLOW_TEXT_UNITS: Final = 30_000
"""Limit of the work of one text in a slow regular expression: 1 ms; longer texts do not match."""
_UNIQUE_BYTES: Final = 6 * bounds.KIB
_MAX_LARGE_INTEGERS: Final = 1_000
_MAX_HUGE_INTEGERS: Final = 200
"""Integers beyond 2^53, and beyond 2^63, with `uniqueItems`: each is compared with each."""
_LONG_INTEGER: Final = 10**40
_read_json: Final = msgspec.json.Decoder().decode
_LARGE_INTEGER: Final = re.compile(rb"[0-9]{16}")
_PATTERNS: Final = jsonschema_rs.FancyRegexOptions(
    backtrack_limit=BACKTRACKS,
    size_limit=bounds.MAX_PATTERN,
    dfa_size_limit=bounds.MAX_PATTERN,
)


class SchemaNotCompiled(Exception):
    """A schema cannot be compiled; the text says why."""


def _refuse_to_fetch(uri: str) -> Any:
    raise ValueError(f"remote schemas are not fetched: {uri[:_MAX_PATH]}")


class SchemaCheck:
    """One compiled schema.

    Args:
        schema: The schema.
        formats: Whether `format` is checked; None if the schema's draft says so.

    Raises:
        SchemaNotCompiled: The schema is invalid, refers to another document, or would cause too
            much work.
    """

    __slots__ = ("_schema", "_validator", "_work", "accepts", "free_size")

    @property
    def is_quick(self) -> bool:
        """Whether it may be compiled on the event loop."""
        return self._work.effort <= _MAX_EFFORT

    def __init__(self, schema: Any, *, formats: bool | None = None) -> None:
        try:
            SchemaWork(schema)  # before anything recursive
            checked = self._checked(_copied(schema))
            self._work = SchemaWork(checked)
            for slow in self._work.slow:
                _limit_text(slow)
            self._validator = jsonschema_rs.validator_for(
                checked,
                validate_formats=formats,
                retriever=_refuse_to_fetch,
                mask="the value",
                pattern_options=_PATTERNS,
            )
        except (ValueError, RecursionError, TypeError) as error:
            first_line = str(error).partition("\n")[0]
            raise SchemaNotCompiled(first_line[:_MAX_MESSAGE]) from error
        self._schema = schema
        self.accepts = self._validator.is_valid
        """Return whether a parsed value satisfies the schema; call it if `is_limited`."""
        self.free_size = self._free_size()
        """Bytes of a value whose check always takes little time."""

    def _checked(self, schema: Any) -> Any:
        """Return what is compiled of a copy of the schema."""
        return schema

    def _free_size(self) -> int:
        work = self._work
        free = MAX_UNITS / (work.most / _BYTES_OF_VALUE + work.by_byte)
        return int(min(free, _UNIQUE_BYTES) if work.has_unique_items else free)

    def is_limited(self, encoded: bytes, parsed: Any) -> bool:
        """Return whether a check of a value takes little time.

        Args:
            encoded: The value as JSON.
            parsed: The same, parsed.
        """
        if len(encoded) <= self.free_size:
            return True
        work, levels = self._work, _values_by_depth(parsed)
        slow = _SLOW_TEXT_UNITS * _total(levels, work.slow_by_depth)
        units = _total(levels, work.by_depth) + min(len(encoded) * work.by_byte, slow)
        if units > MAX_UNITS:
            return False
        if not work.has_unique_items or not _LARGE_INTEGER.search(encoded):
            return True
        large, huge, longest = _large_integers(parsed)
        return (
            longest < _LONG_INTEGER and large <= _MAX_LARGE_INTEGERS and huge <= _MAX_HUGE_INTEGERS
        )

    def without_nulls(self, value: dict[str, Any]) -> dict[str, Any]:
        """Return an object without nulls for declared optional properties.

        Models and servers send null for properties that they omit. Very many values are returned
        unchanged.
        """
        if sum(_values_by_depth(value)) > _MAX_TOLERANT:
            return value
        return _without_nulls(value, self._schema)  # type: ignore[no-any-return]

    def with_texts_read(self, value: dict[str, Any]) -> dict[str, Any] | None:
        """Return an object with the values that texts hold as JSON, where no text fits.

        Some models and clients write a list or an object that is a member as a text. None if there
        is none, or if finding them would take too long; what is returned may not fit, either.
        """
        if not self._can_build_errors(_values_by_depth(value), value):
            return None
        read = dict(value)
        for error in islice(self._validator.iter_errors(value), _MAX_VIOLATIONS):
            name = str(next(iter(error.instance_path), ""))
            given = value.get(name)
            if isinstance(given, str):
                with suppress(ValueError, RecursionError):
                    read[name] = _read_json(given)
        return read if read != value else None

    def violations(self, value: Any) -> tuple[tuple[str, str], ...]:
        """Return (JSON path, message) for each violation, at most 20.

        For a large value only the first one: the validator builds all errors, each with a copy of
        the invalid value, before it returns any. None if they would take too long to build: one
        wrong value deep in alternatives has an error for each path through them.
        """
        levels = _values_by_depth(value)
        if self._can_build_errors(levels, value):
            errors = self._validator.iter_errors(value)
            return tuple(_violation(error) for error in islice(errors, _MAX_VIOLATIONS))
        if self._work.has_branches or self._work.is_recursive:
            return ()
        try:
            self._validator.validate(value)
        except jsonschema_rs.ValidationError as error:
            return (_violation(error),)
        return ()

    def _can_build_errors(self, levels: list[int], value: Any) -> bool:
        """Return whether all errors of a small value can be built in little time."""
        depth = len(levels) - 1
        if depth > _MAX_ERROR_DEPTH or not _is_small(value):
            return False
        return sum(levels) * self._work.units_with_errors(depth) <= _MAX_ERROR_UNITS


def _violation(error: jsonschema_rs.ValidationError) -> tuple[str, str]:
    return _json_path(error.instance_path), error.message[:_MAX_MESSAGE]


def _is_small(root: Any) -> bool:
    """Return whether a value has few values and short texts; stops at the first excess."""
    values, length = 0, 0
    remaining: list[Any] = [root]
    while remaining:
        value = remaining.pop()
        values += 1
        if isinstance(value, str):
            length += len(value)
        elif isinstance(value, dict | list):
            if len(value) > _SMALL_VALUES:
                return False
            length += sum(map(len, value)) if isinstance(value, dict) else 0
            remaining.extend(value.values() if isinstance(value, dict) else value)
        if values + len(remaining) > _SMALL_VALUES or length > _SMALL_TEXT:
            return False
    return True


def _copied(value: Any) -> Any:
    """Return a copy of a JSON value."""
    if isinstance(value, dict):
        return {key: _copied(member) for key, member in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value


def _limit_text(schema: dict[str, Any]) -> None:
    """Reject texts that are too long for the slow `pattern` of a schema, before it sees them."""
    pattern = schema.pop("pattern")
    longest = int(_SLOW_TEXT_UNITS / byte_units(pattern))
    limited = {"allOf": [{"maxLength": longest}, {"pattern": pattern}]}
    others = schema.get("allOf")
    schema["allOf"] = [*(others if isinstance(others, list) else []), limited]


def _values_by_depth(root: Any) -> list[int]:
    """Return the number of values and keys at each depth of a value."""
    counts = [1]
    level: list[Any] = [root]
    while level:
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                below.extend(value.values())
            elif isinstance(value, list):
                below.extend(value)
        counts.append(len(below))
        level = below
    return counts


def _total(counts: list[int], by_depth: list[float]) -> float:
    """Return the sum of counts times units; the last units are those of all deeper values."""
    last = len(by_depth) - 1
    return sum(count * by_depth[min(depth, last)] for depth, count in enumerate(counts))


def _large_integers(root: Any) -> tuple[int, int, int]:
    """Return how many integers are beyond 2^53, how many beyond 2^63, and the largest."""
    large = huge = longest = 0
    remaining: list[Any] = [root]
    while remaining:
        value = remaining.pop()
        if isinstance(value, dict):
            remaining.extend(value.values())
        elif isinstance(value, list):
            remaining.extend(value)
        elif isinstance(value, int) and abs(value) >= 1 << 53:
            large += 1
            huge += abs(value) >= 1 << 63
            longest = max(longest, abs(value))
    return large, huge, longest


def _without_nulls(value: Any, schema: Any) -> Any:
    if not isinstance(schema, dict):
        return value
    if isinstance(value, list):
        items = schema.get("items")
        return [_without_nulls(item, items) for item in value] if "items" in schema else value
    properties = schema.get("properties")
    if not isinstance(value, dict) or not isinstance(properties, dict):
        return value
    required = schema.get("required")
    kept = required if isinstance(required, list) else ()
    return {
        name: _without_nulls(item, properties.get(name))
        for name, item in value.items()
        if item is not None or name not in properties or name in kept
    }


def _json_path(parts: list[str | int]) -> str:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    return f"${path}"[:_MAX_PATH]
