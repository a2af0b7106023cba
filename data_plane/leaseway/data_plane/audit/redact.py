"""Redaction of arguments: by key, by the shape of a value, by the tool's schema. Pure.

Most arguments contain nothing like a secret: a single search over their bytes shows it, and they
are recorded as they were sent. All others are checked value by value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import jsonschema_rs
import msgspec

from leaseway.wire.bounds import KIB
from leaseway.wire.secrets.redaction import REDACTED
from leaseway.wire.secrets.secret_shapes import BYTE_MARKS, contains_secret, names_a_secret

_MAX_TEXT: Final = 512
"""Characters of one text that are recorded."""
_MAX_ARGUMENTS: Final = 8 * KIB
"""Bytes of one call's arguments that are recorded."""
_MAX_ITEMS: Final = 64
_MAX_DEPTH: Final = 16
_MAX_SCHEMA_DEPTH: Final = 24
_MAX_NAMES: Final = 1_000
_MAX_REDACTORS: Final = 4_096
_NAMING: Final = frozenset({"name", "key", "field", "header"})
_VALUES: Final = frozenset({"value", "values"})
"""Members of which one names the other, as in lists of headers, variables, tags and fields."""

_has_no_mark: Final = jsonschema_rs.validator_for(
    {"not": {"pattern": "(?i)" + "|".join(re.escape(mark.decode()) for mark in BYTE_MARKS)}}
).is_valid
"""A single search for all marks, in Rust: 5 to 30 times faster than in Python."""

Arguments = msgspec.Raw | dict[str, Any]


class Redactor:
    """Redacts the arguments of one tool.

    Args:
        schema: The tool's input schema. Names of properties with `format: password` or `writeOnly`
            are secret wherever they occur.
    """

    def __init__(self, schema: object = None) -> None:
        self._names = frozenset(_secret_properties(schema))

    def is_clean(self, arguments: bytes) -> bool:
        """Return whether a JSON object certainly needs no redaction, without parsing it."""
        # `may_hold_secret`, without a function call: this is asked for each call.
        return (
            not self._names
            and len(arguments) <= _MAX_TEXT
            and _has_no_mark(str(arguments, "utf-8", "replace"))
        )

    @property
    def has_names(self) -> bool:
        """Whether the schema declares secrets."""
        return bool(self._names)

    def hides(self, name: str | None, text: str) -> bool:
        """Return whether records show neither a member of this name nor this text.

        Args:
            name: The member's name; None for an item of a list.
            text: Its value, or empty if that is no text.
        """
        if name is not None and (self._is_name(name) or contains_secret(name)):
            return True
        return contains_secret(text)

    def redact(self, arguments: bytes, parsed: dict[str, Any]) -> Arguments:
        """Return a call's arguments without secrets, and shortened.

        Args:
            arguments: The arguments as JSON.
            parsed: The same, parsed; it is not changed.
        """
        if (
            len(arguments) <= _MAX_TEXT
            and not may_hold_secret(arguments)
            and not (self._names and self._may_be_named(arguments))
        ):
            return msgspec.Raw(arguments)
        redacted = self._redact_object(parsed, 0)
        if len(msgspec.json.encode(redacted)) > _MAX_ARGUMENTS:
            return {"[left out]": f"{len(arguments)} bytes", "[keys]": _keys(parsed)}
        return redacted

    def _is_name(self, name: str) -> bool:
        return name in self._names or names_a_secret(name)

    def _may_be_named(self, arguments: bytes) -> bool:
        """Return whether a secret name may stand in JSON, also where a decoder drops it."""
        text = str(arguments, "utf-8", "replace")
        return "\\" in text or any(name in text for name in self._names)

    def _redact_object(self, value: dict[str, Any], depth: int) -> dict[str, Any]:
        redacted: dict[str, Any] = {}
        called = called_secrets(value, self._is_name)
        for name, item in value.items():
            if len(redacted) >= _MAX_ITEMS:
                redacted["[left out]"] = f"{len(value) - _MAX_ITEMS} more"
                break
            shown = REDACTED if contains_secret(name) else name[:_MAX_TEXT]
            if name in called or self._is_name(name):
                redacted[shown] = REDACTED
            else:
                redacted[shown] = self._redact_value(item, depth + 1)
        return redacted

    def _redact_value(self, value: Any, depth: int) -> Any:
        match value:
            case str():
                return _redact_text(value)
            case dict() | list() if depth >= _MAX_DEPTH:
                return "[left out: too deep]"
            case dict():
                return self._redact_object(value, depth)
            case list():
                items = [self._redact_value(item, depth + 1) for item in value[:_MAX_ITEMS]]
                if len(value) > _MAX_ITEMS:
                    items.append(f"[left out: {len(value) - _MAX_ITEMS} more]")
                return items
            case _:
                return value


class Redactors:
    """The redactors of all tools, by definition."""

    def __init__(self) -> None:
        self._cache: dict[bytes, Redactor] = {}
        self._default = Redactor()

    def get(self, definition: bytes | None) -> Redactor:
        """Return the redactor of a tool, or the default one for an unknown tool."""
        if definition is None:
            return self._default
        redactor = self._cache.get(definition)
        if redactor is None:
            if len(self._cache) >= _MAX_REDACTORS:
                self._cache.clear()
            schema = msgspec.json.decode(definition).get("inputSchema")
            redactor = self._cache[definition] = Redactor(schema)
        return redactor


def are_clean(arguments: Sequence[bytes]) -> bool:
    """Return whether JSON objects certainly need no redaction, of tools that declare no secrets.

    One search in all of them costs as much as a search in one. No mark contains the line break.
    """
    return max(map(len, arguments)) <= _MAX_TEXT and _has_no_mark(
        str(b"\n".join(arguments), "utf-8", "replace")
    )


def may_hold_secret(json: bytes) -> bool:
    """Return False only if JSON certainly contains no secret. A backslash may hide anything."""
    return not _has_no_mark(str(json, "utf-8", "replace"))


def called_secrets(members: Mapping[str, Any], is_name: Callable[[str], bool]) -> Collection[str]:
    """Return the members that another one calls a secret: `{"name": "token", "value": "x"}`.

    Args:
        members: The object.
        is_name: Whether a text is the name of a secret.
    """
    values = [name for name in members if name.lower() in _VALUES]
    is_called = values and any(
        is_name(text)
        for name, text in members.items()
        if isinstance(text, str) and len(text) <= _MAX_TEXT and name.lower() in _NAMING
    )
    return frozenset(values if is_called else ())


def _redact_text(value: str) -> str:
    if contains_secret(value):
        return REDACTED
    if len(value) <= _MAX_TEXT:
        return value
    return f"{value[:_MAX_TEXT]}[left out: {len(value) - _MAX_TEXT} more characters]"


def _keys(parsed: dict[str, Any]) -> list[str]:
    return [REDACTED if contains_secret(name) else name[:64] for name in list(parsed)[:_MAX_ITEMS]]


def _secret_properties(schema: object, depth: int = 0) -> Iterable[str]:
    """Yield the names of a schema's secret properties, at any depth."""
    if depth > _MAX_SCHEMA_DEPTH:
        return
    if isinstance(schema, list):
        for item in schema[:_MAX_NAMES]:
            yield from _secret_properties(item, depth + 1)
    if not isinstance(schema, dict):
        return
    properties = schema.get("properties")
    if isinstance(properties, dict):
        for name, declared in list(properties.items())[:_MAX_NAMES]:
            if isinstance(declared, dict) and _is_secret(declared):
                yield name
    for item in schema.values():
        yield from _secret_properties(item, depth + 1)


def _is_secret(schema: dict[str, Any]) -> bool:
    return schema.get("format") == "password" or schema.get("writeOnly") is True
