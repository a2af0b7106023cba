"""The parts of input schemas as the APIs of models accept them. Pure.

Anthropic and OpenAI refuse all tools of a request for one part of one schema that JSON Schema
2020-12 does not have: the forms of older drafts, types of programming languages, null for what is
absent. OpenAI also does for a list that says nothing of its items, and for a regular expression
that looks around. Older forms are written in the new one here, and what cannot be is left out: the
worker still checks calls against the server's own schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from leaseway.wire.listing.schema_keywords import is_valid
from leaseway.wire.messages.json_schema import CONDITIONS, DATA, LISTS, MAPS, MEMBERS, TYPES
from leaseway.wire.text.regular_expressions import has_lookaround

_MAX_DEPTH: Final = 64
_LEFT_OUT: Final = object()
_SINGLE: Final = frozenset({*MEMBERS, *CONDITIONS, "items"})
_ANNOTATIONS: Final = frozenset({"title", "description", "$comment"})
_BOUNDS: Final = {"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"}
_MEANT: Final[Mapping[str, str]] = {
    **{name: name for name in TYPES},
    "str": "string",
    "text": "string",
    "int": "integer",
    "float": "number",
    "double": "number",
    "bool": "boolean",
    "list": "array",
    "dict": "object",
    "none": "null",
}
"""Types by what other languages call them, in lower case."""


def with_accepted_parts(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a tool's input schema without parts that models' APIs refuse.

    It is the same object if there are none.
    """
    accepted: dict[str, Any] = _accepted(schema, 0)
    if accepted is not schema and "2020-12" not in str(accepted.get("$schema", "2020-12")):
        del accepted["$schema"]  # it names the draft of what was written anew
    return accepted


def _accepted(schema: Any, depth: int) -> Any:
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return schema
    current = _in_new_form(schema)
    changed: dict[str, Any] = {}
    for keyword, value in current.items():
        part = _part(keyword, value, depth)
        if part is not value:
            changed[keyword] = part
    if changed:
        current = {**current, **changed}
        for keyword in changed:
            if current[keyword] is _LEFT_OUT:
                del current[keyword]
    kind = current.get("type")
    if "items" not in current and (kind == "array" or (isinstance(kind, list) and "array" in kind)):
        current = {**current, "items": {}}
    return current


def _part(keyword: str, value: Any, depth: int) -> Any:
    """Return the accepted value of a keyword: the same object if it is accepted as it is."""
    if keyword in MAPS and isinstance(value, dict):
        return _each(value, depth) if keyword != "dependencies" else value
    if keyword in _SINGLE and isinstance(value, dict):
        return _accepted(value, depth + 1)
    if keyword in LISTS and isinstance(value, list) and value:
        parts = [_accepted(item, depth + 1) for item in value]
        return value if all(map(_is_same, parts, value)) else parts
    if keyword == "pattern" and isinstance(value, str) and has_lookaround(value):
        return _LEFT_OUT
    if keyword in _ANNOTATIONS:
        return value if isinstance(value, str) else _LEFT_OUT
    if keyword in DATA and keyword != "enum":
        return value
    return value if is_valid(keyword, value) else _LEFT_OUT


def _each(schemas: dict[str, Any], depth: int) -> dict[str, Any]:
    """Return named schemas; what is none says nothing of its value."""
    parts = {
        name: _accepted(part, depth + 1) if isinstance(part, dict | bool) else {}
        for name, part in schemas.items()
    }
    return schemas if all(map(_is_same, parts.values(), schemas.values())) else parts


def _is_same(one: object, other: object) -> bool:
    return one is other


def _in_new_form(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without what older drafts and other languages write otherwise."""
    new: dict[str, Any] = {}
    items = schema.get("items")
    if isinstance(items, list):
        new |= {"prefixItems": items, "items": schema.get("additionalItems", {})}
    for exclusive, inclusive in _BOUNDS.items():
        if schema.get(exclusive) is True:
            new |= {exclusive: schema.get(inclusive), inclusive: None}
    kind = schema.get("type")
    if kind is not None and not is_valid("type", kind):
        new["type"] = _types(kind)
    return {**schema, **new} if new else schema


def _types(written: Any) -> str | list[str] | None:
    """Return the types that are meant, or None if any of them is unknown."""
    if isinstance(written, str):
        return _MEANT.get(written.lower())
    if not isinstance(written, list):
        return None
    meant = [_MEANT.get(kind.lower()) if isinstance(kind, str) else None for kind in written]
    known = [kind for kind in dict.fromkeys(meant) if kind is not None]
    return known if None not in meant and known else None
