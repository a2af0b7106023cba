"""Checks arguments against a tool's input schema, compiled once (DESIGN §6).

A remote `$ref` is never fetched. Messages never contain values of a caller: they are masked.
"""

from __future__ import annotations

from itertools import islice
from typing import Any, Final

import jsonschema_rs
import msgspec

from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason

_MAX_VIOLATIONS: Final = 20
_MAX_MESSAGE: Final = 200
_MAX_PATH: Final = 200
_SMALL_TEXT: Final = 64 * bounds.KIB
_SMALL_VALUES: Final = 200
"""Size of small arguments: all their violations are reported, of larger ones only the first."""

_decode = msgspec.json.Decoder(dict[str, Any]).decode


class SchemaNotCompiled(Exception):
    """A schema cannot be compiled; the text says why."""


def _refuse_to_fetch(uri: str) -> Any:
    raise ValueError(f"remote schemas are not fetched: {uri[:_MAX_PATH]}")


class ArgumentCheck:
    """One tool's compiled input schema. Properties with a `default` are optional.

    Args:
        schema: The `inputSchema` of the tool.

    Raises:
        SchemaNotCompiled: The schema is invalid, or refers to another document.
    """

    __slots__ = ("_schema", "_validator", "accepts")

    def __init__(self, schema: Any) -> None:
        try:
            self._validator = jsonschema_rs.validator_for(
                _with_defaults_optional(schema), retriever=_refuse_to_fetch, mask="the value"
            )
        except (ValueError, RecursionError, TypeError) as error:
            first_line = str(error).partition("\n")[0]
            raise SchemaNotCompiled(first_line[:_MAX_MESSAGE]) from error
        self._schema = schema
        self.accepts = self._validator.is_valid
        """Return whether parsed arguments satisfy the schema."""

    def without_nulls(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return arguments without nulls for declared optional properties.

        Models send null for properties that they omit.
        """
        return _without_nulls(arguments, self._schema)  # type: ignore[no-any-return]

    def violations(self, arguments: dict[str, Any]) -> tuple[tuple[str, str], ...]:
        """Return (JSON path, message) for each violation, at most 20.

        For large arguments only the first one: the validator builds all errors, each with a copy of
        the invalid value, before it returns any.
        """
        if _is_small(arguments):
            errors = self._validator.iter_errors(arguments)
            return tuple(_violation(error) for error in islice(errors, _MAX_VIOLATIONS))
        try:
            self._validator.validate(arguments)
        except jsonschema_rs.ValidationError as error:
            return (_violation(error),)
        return ()


def _violation(error: jsonschema_rs.ValidationError) -> tuple[str, str]:
    return _json_path(error.instance_path), error.message[:_MAX_MESSAGE]


def _is_small(arguments: dict[str, Any]) -> bool:
    """Return whether arguments have few values and short texts; stops at the first excess."""
    values, length = 0, 0
    remaining: list[Any] = [arguments]
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


def _with_defaults_optional(schema: Any) -> Any:
    """Return a copy of a schema in which no property with a `default` is required.

    Servers that generate their schemas from types list such properties as required, but accept
    calls without them.
    """
    if not isinstance(schema, dict):
        return schema
    loosened = dict(schema)
    properties = schema.get("properties")
    if isinstance(properties, dict):
        loosened["properties"] = {
            name: _with_defaults_optional(declared) for name, declared in properties.items()
        }
        required = schema.get("required")
        if isinstance(required, list):
            loosened["required"] = [name for name in required if not _has_default(properties, name)]
    if "items" in schema:
        loosened["items"] = _with_defaults_optional(schema["items"])
    return loosened


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


def _has_default(properties: dict[str, Any], name: object) -> bool:
    declared = properties.get(name) if isinstance(name, str) else None
    return isinstance(declared, dict) and "default" in declared


def _json_path(parts: list[str | int]) -> str:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    return f"${path}"[:_MAX_PATH]


def parse_arguments(arguments: bytes) -> dict[str, Any]:
    """Parse a call's arguments.

    Raises:
        Fault: INVALID_ARGUMENTS: too long, too many values, not JSON, or not an object.
    """
    if len(arguments) > bounds.MAX_ARGUMENTS:
        raise oversize_arguments()
    if has_many_values(arguments):
        raise _invalid(
            f"The arguments have more than {bounds.MAX_VALUES} values and keys; pass large data by "
            "reference, for example as a path or a URL that the server can read, or as one text."
        )
    try:
        return _decode(arguments)
    except msgspec.ValidationError:
        message = "The arguments must be one JSON object with numbers in the range of a double."
    except (ValueError, RecursionError):  # an integer of thousands of digits is no DecodeError
        message = "The arguments are not well-formed JSON, or nested too deeply."
    raise _invalid(message)


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


def oversize_arguments() -> Fault:
    """Return the fault of arguments above `bounds.MAX_ARGUMENTS`."""
    return _invalid(
        f"The arguments exceed {bounds.MAX_ARGUMENTS // bounds.MIB} MiB; pass large data by "
        "reference, for example as a path or a URL that the server can read."
    )


def _invalid(message: str) -> Fault:
    return Fault(Reason.INVALID_ARGUMENTS, message, violations=(("$", message),))
