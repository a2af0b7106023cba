"""Arguments against a tool's input schema: compiled once, checked on each call (DESIGN §6).

A remote `$ref` is never fetched. What a caller sent never appears in a message: values are masked.
"""

from __future__ import annotations

from itertools import islice
from typing import Any, Final

import jsonschema_rs
import msgspec

from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason

_MOST_VIOLATIONS: Final = 20
_LONGEST_MESSAGE: Final = 200
_LONGEST_PATH: Final = 200
_LONGEST_EXPLAINED: Final = 64 * bounds.KIB
_MOST_EXPLAINED: Final = 200
"""Values in arguments of which all violations are looked for; of larger ones the first is."""

_decode = msgspec.json.Decoder(dict[str, Any]).decode


class SchemaNotCompiled(Exception):
    """A schema that cannot check anything; the text says why."""


def _refuse_to_fetch(uri: str) -> Any:
    raise ValueError(f"remote schemas are not fetched: {uri[:_LONGEST_PATH]}")


class ArgumentCheck:
    """One tool's input schema, compiled; what has a `default` may be left out.

    Args:
        schema: The `inputSchema` of the tool.

    Raises:
        SchemaNotCompiled: The schema is not valid, or refers to another document.
    """

    __slots__ = ("_schema", "_validator", "accepts")

    def __init__(self, schema: Any) -> None:
        try:
            self._validator = jsonschema_rs.validator_for(
                _with_defaults_optional(schema), retriever=_refuse_to_fetch, mask="the value"
            )
        except (ValueError, RecursionError, TypeError) as error:
            first_line = str(error).partition("\n")[0]
            raise SchemaNotCompiled(first_line[:_LONGEST_MESSAGE]) from error
        self._schema = schema
        self.accepts = self._validator.is_valid
        """Return whether parsed arguments satisfy the schema; the way of most calls."""

    def without_nulls(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return arguments as they count where a null stands for a property that is left out.

        Models send null for what they do not give. Only what is declared, and not required, may
        be left out so.
        """
        return _without_nulls(arguments, self._schema)  # type: ignore[no-any-return]

    def violations(self, arguments: dict[str, Any]) -> tuple[tuple[str, str], ...]:
        """Return (JSON path, what is wrong) of each violation, at most 20.

        The validator makes every error before it gives the first one, each with a copy of what is
        wrong: of large arguments only the first violation is asked for.
        """
        if _is_small(arguments):
            errors = self._validator.iter_errors(arguments)
            return tuple(_violation(error) for error in islice(errors, _MOST_VIOLATIONS))
        try:
            self._validator.validate(arguments)
        except jsonschema_rs.ValidationError as error:
            return (_violation(error),)
        return ()


def _violation(error: jsonschema_rs.ValidationError) -> tuple[str, str]:
    return _json_path(error.instance_path), error.message[:_LONGEST_MESSAGE]


def _is_small(arguments: dict[str, Any]) -> bool:
    """Return whether arguments have few values and short texts; looks at no more than those."""
    values, length = 0, 0
    rest: list[Any] = [arguments]
    while rest:
        value = rest.pop()
        values += 1
        if isinstance(value, str):
            length += len(value)
        elif isinstance(value, dict | list):
            if len(value) > _MOST_EXPLAINED:
                return False
            length += sum(map(len, value)) if isinstance(value, dict) else 0
            rest.extend(value.values() if isinstance(value, dict) else value)
        if values + len(rest) > _MOST_EXPLAINED or length > _LONGEST_EXPLAINED:
            return False
    return True


def _with_defaults_optional(schema: Any) -> Any:
    """Return a schema in which no property with a `default` is required; the given one stays.

    Servers that derive their schemas from types list such properties as required, for they are
    always there once the server has filled them in, and accept calls without them.
    """
    if not isinstance(schema, dict):
        return schema
    loosened = dict(schema)
    properties = schema.get("properties")
    if isinstance(properties, dict):
        loosened["properties"] = {
            name: _with_defaults_optional(each) for name, each in properties.items()
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
        return [_without_nulls(each, items) for each in value] if "items" in schema else value
    properties = schema.get("properties")
    if not isinstance(value, dict) or not isinstance(properties, dict):
        return value
    required = schema.get("required")
    needed = required if isinstance(required, list) else ()
    return {
        name: _without_nulls(each, properties.get(name))
        for name, each in value.items()
        if each is not None or name not in properties or name in needed
    }


def _has_default(properties: dict[str, Any], name: object) -> bool:
    declared = properties.get(name) if isinstance(name, str) else None
    return isinstance(declared, dict) and "default" in declared


def _json_path(parts: list[str | int]) -> str:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    return f"${path}"[:_LONGEST_PATH]


def parse_arguments(arguments: bytes) -> dict[str, Any]:
    """Parse a call's arguments.

    Raises:
        Fault: INVALID_ARGUMENTS: too long, too many values, not JSON, or not an object.
    """
    if len(arguments) > bounds.MAX_ARGUMENTS:
        raise oversize_arguments()
    if has_many_values(arguments):
        raise _too_many_values()
    try:
        return _decode(arguments)
    except msgspec.ValidationError:
        problem = "The arguments must be one JSON object with numbers in the range of a double."
    except (ValueError, RecursionError):  # an integer of thousands of digits is no DecodeError
        problem = "The arguments are not well-formed JSON, or nested too deeply."
    raise Fault(Reason.INVALID_ARGUMENTS, problem, violations=(("$", problem),))


def has_many_values(document: bytes) -> bool:
    """Return whether JSON has more values and keys than may be parsed while calls wait.

    Counts what stands between them, outside of texts, at the pace of memory: what a short text
    costs to parse is known before it is parsed.
    """
    if _between(document) <= bounds.MAX_VALUES:
        return False
    if document.count(b"\\\\") + document.count(b'\\"') > 4 * bounds.MAX_VALUES:
        return True  # to take them out would cost as much
    plain = document.replace(b"\\\\", b"").replace(b'\\"', b"")
    if plain.count(b'"') > 4 * bounds.MAX_VALUES:
        return True
    return _between(b"".join(plain.split(b'"')[::2])) > bounds.MAX_VALUES


def _between(document: bytes) -> int:
    return sum(map(document.count, (b",", b":", b"[", b"{")))


def _too_many_values() -> Fault:
    message = (
        f"The arguments hold more than {bounds.MAX_VALUES} values and keys; pass large data by "
        "reference, for example as a path or a URL that the server can read, or as one text."
    )
    return Fault(Reason.INVALID_ARGUMENTS, message, violations=(("$", message),))


def oversize_arguments() -> Fault:
    """Return the refusal of arguments above their bound."""
    message = (
        f"The arguments exceed {bounds.MAX_ARGUMENTS // bounds.MIB} MiB; pass large data by "
        "reference, for example as a path or a URL that the server can read."
    )
    return Fault(Reason.INVALID_ARGUMENTS, message, violations=(("$", message),))
