"""The forms that servers ask people to fill in, as official clients accept them. Pure.

Such a form is a flat object of texts, numbers, flags and choices (2025-11-25,
client/elicitation#requested-schema). Servers that derive it from a class say the same by
references, by a choice with null for what is optional, and by choices without a type; clients in
JavaScript reject the whole request for one of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from leaseway.wire.json_pointer import at_fragment

_MAX_FIELDS: Final = 200
_MAX_STEPS: Final = 8
"""Forms of one field that are written anew, each after another, such as a reference to a choice."""

_NULL: Final = {"type": "null"}
_CHOICES: Final = ("anyOf", "oneOf")
_FORMATS: Final = ("email", "uri", "date", "date-time")
_TYPES: Final[Mapping[str, type | tuple[type, ...]]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
}


def corrected_form(form: Any) -> Any:
    """Return the schema of a form in the words of MCP: the same object if it is written so."""
    if not isinstance(form, dict):
        return form
    fields = form.get("properties", {})
    if not isinstance(fields, dict) or len(fields) > _MAX_FIELDS:
        return form
    corrected = {name: _field(field, form) for name, field in fields.items()}
    required = form.get("required", [])
    has_all = form.get("type") == "object" and "properties" in form and isinstance(required, list)
    if has_all and corrected == fields:
        return form
    new = {**form, "type": "object", "properties": corrected}
    if not isinstance(required, list):
        del new["required"]
    return new


def _field(field: Any, form: dict[str, Any], *, is_item: bool = False) -> Any:
    """Return the schema of one field, or of an item of one."""
    if not isinstance(field, dict):
        return field
    for _ in range(_MAX_STEPS):
        simpler = _simpler(field, form, is_item)
        if simpler == field:
            break
        field = simpler
    if not is_item and isinstance(field.get("items"), dict):  # an item of a form is no list
        field = {**field, "items": _field(field["items"], form, is_item=True)}
    return _without_wrong(field)


def _simpler(field: dict[str, Any], form: dict[str, Any], is_item: bool) -> dict[str, Any]:
    """Return a schema with the same meaning that is one step nearer to what MCP has."""
    field = {name: value for name, value in field.items() if value is not None}
    rest = dict(field)
    if "$ref" in field:
        target = at_fragment(form, str(rest.pop("$ref")))
        return {**target, **rest} if isinstance(target, dict) else field
    for keyword in (*_CHOICES, "allOf"):
        branches = field.get(keyword)
        if isinstance(branches, list):
            kept = [branch for branch in branches if branch != _NULL]
            if len(kept) == 1 and isinstance(kept[0], dict) and "const" not in kept[0]:
                del rest[keyword]
                return {**kept[0], **rest}
            if len(kept) < len(branches):
                return {**field, keyword: kept}
    kinds = field.get("type")
    if isinstance(kinds, list) and "null" in kinds:
        named = [kind for kind in kinds if kind != "null"]
        return {**field, "type": named[0] if len(named) == 1 else named}
    return _typed(field, is_item=is_item)


def _typed(field: dict[str, Any], *, is_item: bool) -> dict[str, Any]:
    """Return a choice of texts with its type, and with a title for each."""
    values = field.get("enum")
    if isinstance(values, list):
        texts = [value for value in values if value is not None]
        if texts and all(isinstance(value, str) for value in texts):
            return {**field, "type": "string", "enum": texts}
    for keyword in _CHOICES:
        branches = field.get(keyword)
        if isinstance(branches, list) and branches and all(map(_is_text, branches)):
            titled = [{"title": branch["const"], **branch} for branch in branches]
            rest = {name: value for name, value in field.items() if name != keyword}
            return (
                {**rest, "anyOf": titled}
                if is_item
                else {**rest, "type": "string", "oneOf": titled}
            )
    return field


def _without_wrong(field: dict[str, Any]) -> dict[str, Any]:
    """Return a field without a format that forms do not have, and a default of another type."""
    rest = dict(field)
    if field.get("format", "email") not in _FORMATS:
        del rest["format"]
    kind = _TYPES.get(str(field.get("type")))
    is_flag = isinstance(field.get("default"), bool)
    if (
        kind
        and "default" in field
        and (not isinstance(field["default"], kind) or is_flag is not (kind is bool))
    ):
        del rest["default"]
    return rest


def _is_text(branch: Any) -> bool:
    return isinstance(branch, dict) and isinstance(branch.get("const"), str)
