"""Schemas of several types as a choice of schemas of one type each. Pure.

The two forms mean the same. Semantic Kernel, DSPy and AutoGen refuse a whole list of tools for
`"type": ["string", "null"]`, as Rust and Go write it, LlamaIndex takes any such value for a text,
and LangChain4j forgets its items, values and description. All of them read the choice, which is
what pydantic writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Any, Final

_NUMERIC: Final = frozenset(
    {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "format"}
)
_KEYWORDS: Final[Mapping[str, frozenset[str]]] = {
    "string": frozenset({"pattern", "minLength", "maxLength", "format"}),
    "number": _NUMERIC,
    "integer": _NUMERIC,
    "array": frozenset(
        {
            *("items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"),
            *("contains", "minContains", "maxContains"),
        }
    ),
    "object": frozenset(
        {
            *("properties", "patternProperties", "additionalProperties", "propertyNames"),
            *("required", "minProperties", "maxProperties"),
            *("dependencies", "dependentRequired", "dependentSchemas"),
        }
    ),
}
"""Keywords that say something only of values of a type."""
_OF_ONE_TYPE: Final = frozenset[str]().union(*_KEYWORDS.values())
_VALUES: Final = frozenset({"enum", "const"})


_CLASSES: Final[Mapping[str, type[Any] | tuple[type[Any], ...]]] = {
    "string": str,
    "number": (int, float),
    "integer": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": NoneType,
}
"""What values of a type are in Python, where a boolean is a number, too."""


def as_choice(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema whose `type` is a list of known types without such a list.

    It is the same object if it has another choice already, or if no value fits it.
    """
    if "anyOf" in schema:
        return schema
    branches = [
        branch for kind in dict.fromkeys(schema["type"]) if (branch := _branch(schema, kind))
    ]
    if not branches:
        return schema
    left_out = _OF_ONE_TYPE | _VALUES | {"type"}
    common = {keyword: value for keyword, value in schema.items() if keyword not in left_out}
    return common | (branches[0] if len(branches) == 1 else {"anyOf": branches})


def with_type_of_values(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that lists texts, numbers or booleans with their type, which they imply.

    Valibot and ArkType write none, and AutoGen refuses a whole list of tools for a `const` without.
    It is the same object if its values are of several types, or others.
    """
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list) and values:
        for kind in ("string", "boolean", "integer", "number"):
            if all(_is_of(kind, value) for value in values):
                return {**schema, "type": kind}
    return schema


def _branch(schema: dict[str, Any], kind: str) -> dict[str, Any] | None:
    """Return what a schema says of values of one type; None if it allows none of them."""
    said = _KEYWORDS.get(kind, frozenset())
    branch = {keyword: value for keyword, value in schema.items() if keyword in said}
    if "const" in schema:
        if not _is_of(kind, schema["const"]):
            return None
        branch["const"] = schema["const"]
    if "enum" in schema:
        allowed = [value for value in schema["enum"] if _is_of(kind, value)]
        if not allowed:
            return None
        if kind != "null":
            branch["enum"] = allowed
    return {"type": kind, **branch}


def _is_of(kind: str, value: Any) -> bool:
    if not isinstance(value, _CLASSES[kind]) or isinstance(value, bool) is not (kind == "boolean"):
        return False
    return kind != "integer" or isinstance(value, int) or value.is_integer()
