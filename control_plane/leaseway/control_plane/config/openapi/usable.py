"""What of a JSON Schema of a parameter can be used to check what callers give. Pure."""

from __future__ import annotations

import functools
import json
import re
from typing import Any, Final

import jsonschema_rs

from leaseway.wire.bounds import MAX_PATTERN

_MASK: Final = "the value"
"""Stands for values in messages, which may be secret."""
_MAX_TEXT: Final = 200
_PATTERNS: Final = jsonschema_rs.FancyRegexOptions(
    size_limit=MAX_PATTERN, dfa_size_limit=MAX_PATTERN
)
MAX_ENUM: Final = 500
"""Values of an `enum`; with more of them it takes any."""
_LITERAL: Final = re.compile(r"/(\^.*|.*\$|[^/]*)/([dgimsuvy]*)", re.DOTALL)
"""A pattern of JavaScript between slashes, with flags."""
_FLAGS_WITHOUT_EFFECT: Final = frozenset("dgu")


@functools.lru_cache(maxsize=4_096)
def schema_fault(text: str) -> str:
    """Return why a schema, or its default, can't be used; empty if both can. Results are cached.

    Args:
        text: The schema as JSON.

    Returns:
        The end of a sentence about the parameter, such as `has …`.
    """
    schema: dict[str, Any] = json.loads(text)
    try:
        validator = jsonschema_rs.validator_for(schema, retriever=_refuse_to_fetch, mask=_MASK)
    except jsonschema_rs.ValidationError as error:
        where = ".".join(str(part) for part in error.instance_path)
        about = f", at {where[:_MAX_TEXT]!r}" if where else ""
        return f"has no valid JSON Schema{about}: {error.message[:_MAX_TEXT]}"
    except (ValueError, RecursionError, TypeError) as error:
        return f"has no valid JSON Schema: {str(error).partition(chr(10))[0][:_MAX_TEXT]}"
    default = schema.get("default")
    if default is None:
        return ""
    misfit = next(validator.iter_errors(default), None)
    return (
        "" if misfit is None else f"has a 'default' that does not fit: {misfit.message[:_MAX_TEXT]}"
    )


@functools.lru_cache(maxsize=4_096)
def is_pattern(text: str) -> bool:
    """Return whether a text is a regular expression that workers check. Results are cached."""
    try:
        jsonschema_rs.validator_for({"pattern": text}, pattern_options=_PATTERNS)
    except ValueError:
        return False
    return True


def usable_pattern(text: str) -> str | None:
    """Return the pattern that is meant by one of a document; None if it can't be used.

    Some are written between slashes, as in JavaScript, and flags may follow them. What is returned
    matches all texts that the given one matches as it stands.
    """
    literal = _LITERAL.fullmatch(text)
    if literal is not None and not _FLAGS_WITHOUT_EFFECT.issuperset(literal[2]):
        return None
    pattern = text if literal is None else literal[1]
    return pattern if is_pattern(pattern) else None


def with_fitting_values(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that accepts its listed values and its type, if a value is not of the type.

    Some documents list the items of a list so, or texts that YAML reads as numbers, as versions.
    """
    types, values = schema.get("type"), schema.get("enum")
    names = [types] if isinstance(types, str) else types
    if not names or not isinstance(values, list) or not any(value is not None for value in values):
        return schema
    given = (value for value in values if value is not None)
    if all(any(_is_of(value, name) for name in names) for value in given):
        return schema
    rest = {key: value for key, value in schema.items() if key != "enum"}
    if names == ["array"]:
        items = schema.get("items", {})
        if not isinstance(items, dict) or "enum" in items:
            return rest
        return {**rest, "items": with_fitting_values({**items, "enum": values})}
    notes: dict[str, Any] = {key: rest.pop(key) for key in ("title", "description") if key in rest}
    return {**notes, "anyOf": [rest, {"enum": values}]}


def _is_of(value: object, name: str) -> bool:
    match name:
        case "integer" | "number":
            is_whole = not isinstance(value, float) or value.is_integer()
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            return is_number and (is_whole or name == "number")
        case _:
            kinds: dict[str, type] = {"string": str, "boolean": bool, "array": list, "object": dict}
            return isinstance(value, kinds.get(name, object))


def _refuse_to_fetch(uri: str) -> Any:
    raise ValueError(f"remote schemas are not fetched: {uri[:_MAX_TEXT]}")
