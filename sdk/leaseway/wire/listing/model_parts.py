"""The parts of input schemas as the APIs of models accept them. Pure.

Anthropic and OpenAI refuse all tools of a request for one part of one schema that JSON Schema
2020-12 does not have: the forms of older drafts, types of programming languages, null for what is
absent. So do OpenAI and LangChain for a reference that leads nowhere, OpenAI for a list that says
nothing of its items, and for a regular expression that looks around, and agent frameworks for a
value of several types, or true in place of a schema. These forms are written in another one here,
and what cannot be is left out: the worker still checks calls against the server's own schema. What
remains allows all that the whole does: a negation or condition goes with its part, and exactly one
of several schemas becomes any of them.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, Final

from leaseway.wire.json_pointer import at_fragment
from leaseway.wire.listing.schema_keywords import is_valid
from leaseway.wire.listing.type_choices import as_choice, with_type_of_values
from leaseway.wire.messages.json_schema import (
    CHOICES,
    CONDITIONS,
    LISTS,
    MAPS,
    MEMBERS,
    PROPERTIES,
    TYPES,
)
from leaseway.wire.text.regular_expressions import has_lookaround

_MAX_DEPTH: Final = 64
_LEFT_OUT: Final = object()
_SINGLE: Final = frozenset({*MEMBERS, *CONDITIONS, "items"})
_NARROWING: Final = frozenset({"not", "if"})
"""Keywords that allow less if their schema allows more."""
_EVALUATING: Final = frozenset(
    {*CHOICES, *CONDITIONS, *PROPERTIES, "dependentSchemas", "additionalProperties", "$ref"}
    | {"items", "prefixItems", "additionalItems", "contains", "$dynamicRef"}
)
"""Keywords whose members `unevaluatedProperties` and `unevaluatedItems` leave alone."""
_UNEVALUATED: Final = ("unevaluatedProperties", "unevaluatedItems")
_ANNOTATIONS: Final = frozenset({"title", "description", "$comment"})
_BOUNDS: Final = {"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"}
_USUAL: Final[Mapping[str, type]] = {
    **dict.fromkeys(("type", "title", "description", "format", "$schema", "default"), str),
    **dict.fromkeys(("minimum", "maximum"), int),
    **dict.fromkeys(("additionalProperties", "default", "nullable"), bool),
}
"""Values that are accepted without a look; a type is one of `TYPES` by then."""
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
    parts = _Parts()
    accepted: dict[str, Any] = parts.accepted(schema)
    broken = parts.broken_in(accepted)
    if any(_leads(schema, name) for name in broken):  # into a part of a value of several types
        parts = _Parts(lists_types=True)
        accepted = parts.accepted(schema)
        broken = parts.broken_in(accepted)
    if broken or (parts.widened and parts.references):
        parts = _Parts(broken, lists_types=True, may_lead_wider=True)
        accepted = parts.accepted(accepted)
        broken = parts.broken_in(accepted)  # also those into a part that has another name by now
        accepted = _Parts(broken, lists_types=True, may_lead_wider=True).accepted(accepted)
    if accepted is not schema and "2020-12" not in str(accepted.get("$schema", "2020-12")):
        del accepted["$schema"]  # it names the draft of what was written anew
    return accepted


def _leads(schema: dict[str, Any], reference: str) -> bool:
    """Return whether a reference leads to a schema in its own document."""
    return isinstance(at_fragment(schema, reference), dict | bool)


class _Parts:
    """Finds the accepted parts of one schema.

    Args:
        broken: References that are left out.
        lists_types: Whether values of several types stay in that form.
        may_lead_wider: Whether what references lead to may allow more than before.

    Attributes:
        references: Those of the parts.
        widened: How many parts may allow more than before.
    """

    def __init__(
        self,
        broken: Container[str] = (),
        *,
        lists_types: bool = False,
        may_lead_wider: bool = False,
    ) -> None:
        self.references: set[str] = set()
        self._broken = broken
        self._forgotten = 0
        """How many parts are left out that say which members of a value are known."""
        self.widened = 0
        self._lists_types = lists_types
        self._may_lead_wider = may_lead_wider

    def broken_in(self, accepted: dict[str, Any]) -> set[str]:
        """Return the references that lead nowhere in the accepted schema."""
        return {name for name in self.references if not _leads(accepted, name)}

    def accepted(self, schema: Any, depth: int = 0) -> Any:
        """Return an accepted part: the same object if it is accepted as it is."""
        if not isinstance(schema, dict) or depth > _MAX_DEPTH:
            return schema
        current = _in_new_form(schema) if _is_of_another_form(schema) else schema
        changed, overlaps = self._changed(current, schema, depth)
        if changed:
            current = {**current, **changed}
            for keyword in changed:
                if current[keyword] is _LEFT_OUT:
                    del current[keyword]
        if overlaps and "oneOf" in current:
            current = dict(current)
            current.setdefault("anyOf", current.pop("oneOf"))
        kind = current.get("type")
        if kind is None and depth > 0:
            return with_type_of_values(current)
        is_list = kind == "array" or (isinstance(kind, list) and "array" in kind)
        if is_list and "items" not in current:
            current = {**current, "items": {}}
        is_choice = isinstance(kind, list) and depth > 0  # clients look for a root's type
        return as_choice(current) if is_choice and not self._lists_types else current

    def _changed(
        self, current: dict[str, Any], schema: dict[str, Any], depth: int
    ) -> tuple[dict[str, Any], bool]:
        """Return the values that change, and whether more than one part of `oneOf` may fit."""
        changed: dict[str, Any] = {}
        overlaps = False
        forgotten = self._forgotten
        for keyword, value in current.items():
            if _USUAL.get(keyword) is type(value):
                continue
            before = self.widened
            part = self._value(keyword, value, depth)
            if self.widened > before:
                overlaps = overlaps or keyword == "oneOf"
                part = _LEFT_OUT if keyword in _NARROWING else part
                if keyword == "contains" and "maxContains" in current:  # more items fit it
                    changed["maxContains"] = _LEFT_OUT
            if part is not value:
                changed[keyword] = part
            is_said = schema.get(keyword) is not None and keyword not in _ANNOTATIONS
            self.widened += is_said and part is _LEFT_OUT
            self._forgotten += keyword in _EVALUATING and part is _LEFT_OUT
        if self._forgotten > forgotten:
            unevaluated = [keyword for keyword in _UNEVALUATED if keyword in current]
            changed |= dict.fromkeys(unevaluated, _LEFT_OUT)
            self.widened += len(unevaluated)
        return changed, overlaps

    def _value(self, keyword: str, value: Any, depth: int) -> Any:
        """Return the accepted value of a keyword: the same object if it is accepted as it is."""
        if keyword in MAPS and isinstance(value, dict):
            return self._each(value, depth) if keyword != "dependencies" else value
        if keyword in _SINGLE and isinstance(value, dict):
            return self.accepted(value, depth + 1)
        if keyword == "items" and value is True:
            return {}
        if keyword in LISTS and isinstance(value, list) and value:
            parts = [self.accepted(item, depth + 1) for item in value]
            return value if all(map(_is_same, parts, value)) else parts
        if keyword == "$ref" and isinstance(value, str):
            self.references.add(value)
            self.widened += self._may_lead_wider
            return _LEFT_OUT if value in self._broken else value
        if keyword == "required" and isinstance(value, list):
            names = [name for name in dict.fromkeys(map(_name, value)) if name is not None]
            return value if names == value else names
        return value if _is_accepted(keyword, value) else _LEFT_OUT

    def _each(self, schemas: dict[str, Any], depth: int) -> dict[str, Any]:
        """Return named schemas; what is none says nothing of its value."""
        parts = {
            name: self.accepted(part, depth + 1) if isinstance(part, dict) or part is False else {}
            for name, part in schemas.items()
        }
        return schemas if all(map(_is_same, parts.values(), schemas.values())) else parts


def _is_accepted(keyword: str, value: Any) -> bool:
    """Return whether a value that holds no schemas is accepted."""
    if keyword == "pattern" and isinstance(value, str) and has_lookaround(value):
        return False
    if keyword in _ANNOTATIONS:
        return isinstance(value, str)
    return is_valid(keyword, value)


def _name(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _is_same(one: object, other: object) -> bool:
    return one is other


def _is_of_another_form(schema: dict[str, Any]) -> bool:
    kind = schema.get("type")
    is_named = kind is None or (isinstance(kind, str) and kind in TYPES)
    return (
        not is_named
        or isinstance(schema.get("items"), list)
        or any(schema.get(keyword) is True for keyword in _BOUNDS)
    )


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
