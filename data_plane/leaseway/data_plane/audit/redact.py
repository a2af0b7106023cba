"""Arguments without their secrets: by key, by the shape of a value, by what the schema says.

Pure. Most arguments hold nothing that looks like a secret: one search over their bytes says so, and
they are recorded as they were sent. All others are walked, value by value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

import jsonschema_rs
import msgspec

from leaseway.wire.bounds import KIB
from leaseway.wire.secrets.secret_shapes import BYTE_MARKS, holds_secret, names_a_secret

REDACTED: Final = "[redacted]"
LONGEST_TEXT: Final = 512
"""Characters that are recorded of one text."""
LONGEST_ARGUMENTS: Final = 8 * KIB
"""Bytes that are recorded of one call's arguments."""
_MOST_ITEMS: Final = 64
_DEEPEST: Final = 16
_DEEPEST_SCHEMA: Final = 24
_MOST_NAMES: Final = 1_000
_MOST_REDACTORS: Final = 4_096

_has_no_mark: Final = jsonschema_rs.validator_for(
    {"not": {"pattern": "(?i)" + "|".join(re.escape(mark.decode()) for mark in BYTE_MARKS)}}
).is_valid
"""One search for all marks, in Rust: a fifth to a thirtieth of what Python's own takes."""

Arguments = msgspec.Raw | dict[str, Any]


class Redactor:
    """Takes the secrets out of the arguments of one tool.

    Args:
        schema: Its input schema; properties with `format: password` or `writeOnly` are secret
            under their names, wherever these occur.
    """

    def __init__(self, schema: object = None) -> None:
        self._names = frozenset(_secret_properties(schema))

    def passes(self, arguments: bytes) -> bool:
        """Return whether a JSON object certainly has nothing to leave out, without parsing it."""
        return not self._names and len(arguments) <= LONGEST_TEXT and not may_hold_secret(arguments)

    def redacted(self, arguments: bytes, parsed: dict[str, Any]) -> Arguments:
        """Return what may be recorded of a call's arguments.

        Args:
            arguments: As they go to the server: a JSON object.
            parsed: The same, parsed; it is not changed.
        """
        if (
            len(arguments) <= LONGEST_TEXT
            and not may_hold_secret(arguments)
            and not (self._names and any(name in parsed for name in self._names))
            and not (self._names and _nested(parsed))
        ):
            return msgspec.Raw(arguments)
        walked = self._object(parsed, 0)
        if len(msgspec.json.encode(walked)) > LONGEST_ARGUMENTS:
            return {"[left out]": f"{len(arguments)} bytes", "[keys]": _keys(parsed)}
        return walked

    def _object(self, value: dict[str, Any], depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, item in value.items():
            if len(found) >= _MOST_ITEMS:
                found["[left out]"] = f"{len(value) - _MOST_ITEMS} more"
                break
            shown = REDACTED if holds_secret(name) else name[:LONGEST_TEXT]
            if name in self._names or names_a_secret(name):
                found[shown] = REDACTED
            else:
                found[shown] = self._value(item, depth + 1)
        return found

    def _value(self, value: Any, depth: int) -> Any:
        match value:
            case str():
                return _text(value)
            case dict() | list() if depth >= _DEEPEST:
                return "[left out: too deep]"
            case dict():
                return self._object(value, depth)
            case list():
                items = [self._value(item, depth + 1) for item in value[:_MOST_ITEMS]]
                if len(value) > _MOST_ITEMS:
                    items.append(f"[left out: {len(value) - _MOST_ITEMS} more]")
                return items
            case _:
                return value


class Redactors:
    """The redactor of each tool, made when it is first asked for."""

    def __init__(self) -> None:
        self._known: dict[bytes, Redactor] = {}
        self._unknown = Redactor()

    def of(self, definition: bytes | None) -> Redactor:
        """Return the redactor of a tool by its definition, or that of tools nobody knows."""
        if definition is None:
            return self._unknown
        known = self._known.get(definition)
        if known is None:
            if len(self._known) >= _MOST_REDACTORS:
                self._known.clear()
            schema = msgspec.json.decode(definition).get("inputSchema")
            known = self._known[definition] = Redactor(schema)
        return known


def may_hold_secret(json: bytes) -> bool:
    """Return whether JSON is worth a closer look; False only where it certainly has nothing.

    A backslash may hide anything.
    """
    return not _has_no_mark(str(json, "utf-8", "replace"))


def _text(value: str) -> str:
    if holds_secret(value):
        return REDACTED
    if len(value) <= LONGEST_TEXT:
        return value
    return f"{value[:LONGEST_TEXT]}[left out: {len(value) - LONGEST_TEXT} more characters]"


def _nested(parsed: dict[str, Any]) -> bool:
    return any(isinstance(item, dict | list) for item in parsed.values())


def _keys(parsed: dict[str, Any]) -> list[str]:
    return [REDACTED if holds_secret(name) else name[:64] for name in list(parsed)[:_MOST_ITEMS]]


def _secret_properties(schema: object, depth: int = 0) -> Iterable[str]:
    """Yield the names of properties that a schema calls secret, at any depth."""
    if depth > _DEEPEST_SCHEMA:
        return
    if isinstance(schema, list):
        for item in schema[:_MOST_NAMES]:
            yield from _secret_properties(item, depth + 1)
    if not isinstance(schema, dict):
        return
    properties = schema.get("properties")
    if isinstance(properties, dict):
        for name, one in list(properties.items())[:_MOST_NAMES]:
            if isinstance(one, dict) and _is_secret(one):
                yield name
    for item in schema.values():
        yield from _secret_properties(item, depth + 1)


def _is_secret(schema: dict[str, Any]) -> bool:
    return schema.get("format") == "password" or schema.get("writeOnly") is True
