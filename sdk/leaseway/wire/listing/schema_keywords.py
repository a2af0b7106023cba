"""What the values of the keywords of JSON Schema are (2020-12, and what older drafts add). Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from leaseway.wire.messages.json_schema import TYPES
from leaseway.wire.text.regular_expressions import is_javascript

_MAX_PATTERN: Final = 10_000
_anchor: Final = re.compile(r"[a-zA-Z_][-a-zA-Z0-9._]*").fullmatch


def is_valid(keyword: str, value: Any) -> bool:
    """Return whether a keyword may have a value; any value of an unknown keyword is valid."""
    check = _KEYWORDS.get(keyword)
    return check is None or check(value)


def is_pattern(value: Any) -> bool:
    """Return whether a value is a regular expression that is not too long."""
    return isinstance(value, str) and len(value) <= _MAX_PATTERN and is_javascript(value)


def _is_schema(value: Any) -> bool:
    return isinstance(value, dict | bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_size(value: Any) -> bool:
    return _is_number(value) and value >= 0 and value % 1 == 0


def _is_positive(value: Any) -> bool:
    return _is_number(value) and value > 0


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _is_choice(value: Any) -> bool:
    return isinstance(value, list) and bool(value)


def _are_schemas(value: Any) -> bool:
    return _is_choice(value) and all(map(_is_schema, value))


def _is_map(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_schema, value.values()))


def _is_type(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(isinstance(item, str) and item in TYPES for item in value)
    return isinstance(value, str) and value in TYPES


def _is_anchor(value: Any) -> bool:
    return isinstance(value, str) and _anchor(value) is not None


def _are_items(value: Any) -> bool:
    return _is_schema(value) or (isinstance(value, list) and all(map(_is_schema, value)))


def _is_pattern_map(value: Any) -> bool:
    return _is_map(value) and all(map(is_pattern, value))


def _are_dependencies(value: Any) -> bool:
    return isinstance(value, dict) and all(
        _are_items(item) or _is_list(item) for item in value.values()
    )


_KEYWORDS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "type": _is_type,
    "enum": _is_choice,
    "properties": _is_map,
    "patternProperties": _is_pattern_map,
    "additionalProperties": _is_schema,
    "propertyNames": _is_schema,
    "required": _is_list,
    "dependencies": _are_dependencies,
    "dependentRequired": _are_dependencies,
    "dependentSchemas": _is_map,
    "items": _are_items,
    "prefixItems": _are_schemas,
    "additionalItems": _is_schema,
    "unevaluatedItems": _is_schema,
    "unevaluatedProperties": _is_schema,
    "contains": _is_schema,
    "allOf": _are_schemas,
    "anyOf": _are_schemas,
    "oneOf": _are_schemas,
    "not": _is_schema,
    "if": _is_schema,
    "then": _is_schema,
    "else": _is_schema,
    "$defs": _is_map,
    "definitions": _is_map,
    "pattern": is_pattern,
    "format": _is_text,
    "minimum": _is_number,
    "maximum": _is_number,
    "exclusiveMinimum": _is_number,
    "exclusiveMaximum": _is_number,
    "multipleOf": _is_positive,
    "minLength": _is_size,
    "maxLength": _is_size,
    "minItems": _is_size,
    "maxItems": _is_size,
    "minContains": _is_size,
    "maxContains": _is_size,
    "minProperties": _is_size,
    "maxProperties": _is_size,
    "uniqueItems": _is_flag,
    "nullable": _is_flag,
    "examples": _is_list,
    "deprecated": _is_flag,
    "readOnly": _is_flag,
    "writeOnly": _is_flag,
    "contentEncoding": _is_text,
    "contentMediaType": _is_text,
    "$id": _is_text,
    "$schema": _is_text,
    "$recursiveAnchor": _is_text,
    "$ref": _is_text,
    "$dynamicRef": _is_text,
    "$anchor": _is_anchor,
    "$dynamicAnchor": _is_anchor,
}
