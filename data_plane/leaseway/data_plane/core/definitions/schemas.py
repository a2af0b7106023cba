"""The schemas of tools, as official clients accept them, with the same meaning. Pure.

They require that arguments are an object of described properties, and some compile every schema of
results before they list anything. A keyword that says nothing there is dropped or spelled out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import unquote

import jsonschema_rs

from leaseway.data_plane.core.definitions.members import Changes

_TYPES: Final = ("object", "array", "string", "number", "integer", "boolean", "null")
_FROM_OBJECTS: Final = frozenset({"properties", "required", "additionalProperties"})
_MAX_PATTERN: Final = 10_000
_MAX_SUBSCHEMAS: Final = 20_000


def input_schema(schema: Any, changes: Changes) -> dict[str, Any]:
    """Return the schema of a tool's arguments, which are always an object."""
    if not isinstance(schema, dict):
        changes.add("inputSchema is no object")
        return {"type": "object", "not": {}} if schema is False else {"type": "object"}
    if schema.get("type") != "object":
        changes.add("inputSchema has not the type object")
        schema = {"type": "object", **schema}
        schema["type"] = "object"
    _read_keywords(schema, "inputSchema", changes)
    return schema


def output_schema(schema: Any, changes: Changes, *, modern: bool) -> dict[str, Any] | None:
    """Return the schema of a tool's structured results; None for one that clients cannot use.

    Until 2025-11-25 results are objects, so that a schema of such a server without a type is
    understood like that.
    """
    if not isinstance(schema, dict):
        changes.add("outputSchema is no object")
        return None
    given = schema.get("type")
    means_object = given is None and (not modern or not _FROM_OBJECTS.isdisjoint(schema))
    if means_object or (not modern and isinstance(given, list) and "object" in given):
        changes.add("outputSchema has not the type object")
        schema = {"type": "object", **schema}
        schema["type"] = "object"
    _read_keywords(schema, "outputSchema", changes)
    fault = _Usable(schema).fault()
    if fault:
        changes.add(f"outputSchema cannot be used ({fault})")
        return None
    if "$id" in schema:
        # Clients keep compiled schemas by their ids: that of another tool or server would be used.
        del schema["$id"]
        changes.any = True
    return schema


def _read_keywords(schema: dict[str, Any], path: str, changes: Changes) -> None:
    """Correct the keywords of a root that clients check themselves, in place."""
    if not isinstance(schema.get("$schema", ""), str):
        changes.dropped(f"{path}.$schema", schema.pop("$schema"))
    if "properties" in schema:
        properties = schema["properties"]
        if isinstance(properties, dict):
            for name, each in properties.items():
                if not isinstance(each, dict):
                    changes.add(f"a property of {path} is no object")
                    properties[name] = {"not": {}} if each is False else {}
        else:
            changes.dropped(f"{path}.properties", schema.pop("properties"))
    if "required" in schema:
        required = schema["required"]
        if not isinstance(required, list):
            changes.dropped(f"{path}.required", schema.pop("required"))
        elif not all(isinstance(name, str) for name in required):
            changes.add(f"{path}.required names something that is no text")
            schema["required"] = [name for name in required if isinstance(name, str)]


def _is_schema(value: Any) -> bool:
    return isinstance(value, dict | bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


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
        return bool(value) and all(isinstance(each, str) and each in _TYPES for each in value)
    return isinstance(value, str) and value in _TYPES


def _is_pattern(value: Any) -> bool:
    if not isinstance(value, str) or len(value) > _MAX_PATTERN:
        return False
    try:
        jsonschema_rs.validator_for({"pattern": value})
    except ValueError:
        return False
    return True


def _are_items(value: Any) -> bool:
    return _is_schema(value) or (isinstance(value, list) and all(map(_is_schema, value)))


def _is_pattern_map(value: Any) -> bool:
    return _is_map(value) and all(map(_is_pattern, value))


def _are_dependencies(value: Any) -> bool:
    return isinstance(value, dict) and all(
        _are_items(each) or _is_list(each) for each in value.values()
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
    "pattern": _is_pattern,
    "format": _is_text,
    "minimum": _is_number,
    "maximum": _is_number,
    "exclusiveMinimum": _is_number,
    "exclusiveMaximum": _is_number,
    "multipleOf": _is_number,
    "minLength": _is_number,
    "maxLength": _is_number,
    "minItems": _is_number,
    "maxItems": _is_number,
    "minContains": _is_number,
    "maxContains": _is_number,
    "minProperties": _is_number,
    "maxProperties": _is_number,
    "uniqueItems": _is_flag,
    "nullable": _is_flag,
    "$ref": _is_text,
    "$dynamicRef": _is_text,
    "$anchor": _is_text,
    "$dynamicAnchor": _is_text,
}
_MAPS: Final = frozenset(
    {"properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions"}
)
_DATA: Final = frozenset({"const", "enum", "default", "examples"})
_NOT_SUPPORTED: Final = frozenset({"id", "$async"})
"""Keywords on which clients that compile schemas stop."""


class _Usable:
    """Finds out whether clients can compile a schema; does not compile it, which may take long."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._anchors: set[str] = set()
        self._references: list[str] = []
        self._count = 0

    def fault(self) -> str:
        """Return why the schema cannot be compiled, or an empty text."""
        remaining: list[Any] = [self._root]
        while remaining:
            schema = remaining.pop()
            self._count += 1
            if self._count > _MAX_SUBSCHEMAS:
                return "it is too long"
            if not isinstance(schema, dict):
                continue
            fault = self._keyword_fault(schema)
            if fault:
                return fault
            for name, value in schema.items():
                if name in _DATA:
                    continue
                if isinstance(value, dict):
                    remaining += value.values() if name in _MAPS else (value,)
                elif isinstance(value, list):
                    remaining += value
        return next(
            (
                f"there is no {one[:80]!a} in it"
                for one in self._references
                if not self._resolves(one)
            ),
            "",
        )

    def _keyword_fault(self, schema: dict[str, Any]) -> str:
        if schema is not self._root and "$id" in schema:
            return "a part of it has its own $id"
        for name, value in schema.items():
            if name in _NOT_SUPPORTED or (name == "nullable" and "type" not in schema):
                return f"{name} is not supported there"
            is_valid = _KEYWORDS.get(name)
            if is_valid is not None and not is_valid(value):
                return f"{name} has a wrong value"
        for name in ("$ref", "$dynamicRef"):
            if name in schema:
                self._references.append(schema[name])
        for name in ("$anchor", "$dynamicAnchor"):
            if name in schema:
                self._anchors.add(schema[name])
        return ""

    def _resolves(self, reference: str) -> bool:
        if not reference.startswith("#"):
            return False
        pointer = unquote(reference[1:])
        if not pointer.startswith("/"):
            return not pointer or pointer in self._anchors
        value: Any = self._root
        for part in pointer[1:].split("/"):
            part = part.replace("~1", "/").replace("~0", "~")
            if isinstance(value, dict) and part in value:
                value = value[part]
            elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
                value = value[int(part)]
            else:
                return False
        return _is_schema(value)
