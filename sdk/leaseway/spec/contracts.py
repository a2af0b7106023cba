"""What callers depend on in the definition of a tool or prompt. Pure.

Two processes of one server often describe the same tool differently: with a process id or a date in
a text, with the members of a set in another order, with other names below `$defs`. A call depends
on none of these. It depends on which values the schemas accept, on the hints that decide about
retries and approvals, and on how the tool is executed.

Definitions that can't be read depend on every byte.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from leaseway.wire.json_pointer import escaped
from leaseway.wire.messages.json_schema import (
    CHOICES,
    CONDITIONS,
    DEFINITIONS,
    MEMBERS,
    PROPERTIES,
    TOOL_HINTS,
)

_decode = msgspec.json.Decoder().decode
_MAX_DEPTH: Final = 200
"""Levels of a schema; a deeper one is compared as it is written."""
_MAX_READ: Final = 128 * 1024
"""Bytes of a definition whose schemas are read; in a larger one only its own texts are left out."""
_ROUNDS: Final = 12
"""How often definitions are told apart by their references; beyond it their names count."""

_TEXTS: Final = ("title", "description", "icons", "_meta")

_SETS: Final = ("enum", "required", "type")


def same_contract(one: bytes, other: bytes) -> bool:
    """Return whether callers of a tool can use either of its definitions.

    Args:
        one: A definition as its server listed it, as JSON.
        other: Another one of the same tool.
    """
    if one == other:
        return True
    try:
        first, second = _decode(one), _decode(other)
        if not isinstance(first, dict) or not isinstance(second, dict):
            return bool(first == second)
        # Nearly always only a text of the tool itself differs, and no schema has to be read.
        if _without_texts(first) == _without_texts(second):
            return True
        if max(len(one), len(other)) > _MAX_READ:
            return False
        return any(
            _contract(first, naming) == _contract(second, naming) for naming in (_as_named, _names)
        )
    except (ValueError, RecursionError):
        return False


def same_content(one: bytes, other: bytes) -> bool:
    """Return whether two definitions differ only in the order in which they list members."""
    if one == other:
        return True
    try:
        return bool(_ordered(_decode(one), 0) == _ordered(_decode(other), 0))
    except (ValueError, RecursionError):
        return False


def same_items(recorded: Iterable[bytes], listed: Iterable[bytes]) -> bool:
    """Return whether two lists of prompts or resources differ at most in texts and order."""
    if recorded == listed:
        return True
    try:
        one, other = (
            sorted(_text(_without_notes(_decode(item))) for item in items)
            for items in (recorded, listed)
        )
    except (ValueError, RecursionError):
        return False
    return one == other


def _without_texts(tool: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in tool.items() if key not in _TEXTS}
    hints = kept.pop("annotations", None)
    if isinstance(hints, dict):
        kept["annotations"] = {key: value for key, value in hints.items() if key != "title"}
    return kept


def _contract(
    tool: Mapping[str, Any], naming: Callable[[Mapping[str, Any]], Mapping[str, str]]
) -> dict[str, Any]:
    hints = tool.get("annotations")
    hints = hints if isinstance(hints, dict) else {}
    return {
        "name": tool.get("name"),
        "hints": {name: hints.get(name) is True for name in TOOL_HINTS if name in hints},
        "execution": tool.get("execution"),
        "input": _schema_contract(tool.get("inputSchema"), naming),
        "output": _schema_contract(tool.get("outputSchema"), naming),
    }


def _schema_contract(schema: Any, naming: Callable[[Mapping[str, Any]], Mapping[str, str]]) -> str:
    """Return a text that is equal for JSON Schemas that accept the same values.

    Texts, examples, the values of defaults, the order of sets and of alternatives and the names of
    definitions do not matter. A property with a default may be omitted, so whether there is one
    does.

    Args:
        naming: Returns names for the schema's definitions by their references.

    Raises:
        RecursionError: The schema is nested too deeply.
    """
    found: dict[str, Any] = {}
    _collect(schema, "#", found, 0)
    names = naming(found)
    definitions = {
        names.get(place, place): _text(_canonical(target, names, 0))
        for place, target in found.items()
    }
    return _text([_canonical(schema, names, 0), definitions])


def _as_named(found: Mapping[str, Any]) -> Mapping[str, str]:
    return {}


def _names(found: Mapping[str, Any]) -> Mapping[str, str]:
    """Return names that are equal for definitions that accept the same."""
    # Definitions are told apart by what they refer to, and this in turn by what it refers to,
    # until a round tells no more of them apart.
    names = dict.fromkeys(found, "")
    known = 0
    for _ in range(_ROUNDS):
        texts = {place: _text(_canonical(target, names, 0)) for place, target in found.items()}
        numbers = {text: str(at) for at, text in enumerate(sorted(set(texts.values())))}
        names = {place: numbers[text] for place, text in texts.items()}
        if len(numbers) == known:
            return names
        known = len(numbers)
    return {}


def _collect(schema: Any, place: str, found: dict[str, Any], depth: int) -> None:
    """Collect the definitions of a schema by the references to them."""
    if not isinstance(schema, dict):
        return
    if depth == 0:
        found[place] = schema
    for key in DEFINITIONS:
        named = schema.get(key)
        for name, target in named.items() if isinstance(named, dict) else ():
            inside = f"{place}/{key}/{escaped(name)}"
            found[inside] = target
            if depth < _MAX_DEPTH:
                _collect(target, inside, found, depth + 1)


def _canonical(schema: Any, names: Mapping[str, str], depth: int) -> Any:
    if not isinstance(schema, dict):
        return schema
    if depth > _MAX_DEPTH:
        raise RecursionError
    kept: dict[str, Any] = {}
    for key, part in schema.items():
        rule = _RULES.get(key)
        if rule is not None and part not in ([], {}):
            kept[key] = rule(part, names, depth + 1)
    return kept or True


def _schemas(part: Any, names: Mapping[str, str], depth: int) -> Any:
    if isinstance(part, list):
        return [_canonical(item, names, depth) for item in part]
    return _canonical(part, names, depth)


def _properties(part: Any, names: Mapping[str, str], depth: int) -> Any:
    if not isinstance(part, dict):
        return part
    return {
        name: [
            _canonical(member, names, depth),
            isinstance(member, dict) and "default" in member,
        ]
        for name, member in part.items()
    }


def _choices(part: Any, names: Mapping[str, str], depth: int) -> Any:
    if not isinstance(part, list):
        return part
    return sorted(_text(_canonical(item, names, depth)) for item in part)


def _set(part: Any, names: Mapping[str, str], depth: int) -> Any:
    return sorted(map(_text, part if isinstance(part, list) else [part]))


def _sets(part: Any, names: Mapping[str, str], depth: int) -> Any:
    if not isinstance(part, dict):
        return part
    return {name: _set(member, names, depth) for name, member in part.items()}


def _reference(part: Any, names: Mapping[str, str], depth: int) -> Any:
    known = names.get(part) if isinstance(part, str) else None
    return part if known is None else f"definition {known}"


def _as_written(part: Any, names: Mapping[str, str], depth: int) -> Any:
    return part


_RULES: Final[Mapping[str, Callable[[Any, Mapping[str, str], int], Any]]] = {
    **dict.fromkeys(
        ("items", "prefixItems", *MEMBERS, *CONDITIONS),
        _schemas,
    ),
    **dict.fromkeys((*PROPERTIES, "dependentSchemas"), _properties),
    **dict.fromkeys(CHOICES, _choices),
    **dict.fromkeys(_SETS, _set),
    "dependentRequired": _sets,
    "$ref": _reference,
    **dict.fromkeys(
        ("const", "format", "pattern", "multipleOf", "minimum", "maximum", "exclusiveMinimum",
         "exclusiveMaximum", "minLength", "maxLength", "minItems", "maxItems", "uniqueItems",
         "minContains", "maxContains", "minProperties", "maxProperties", "contentEncoding",
         "contentMediaType", "x-mcp-header", "$id", "id", "$anchor", "$dynamicRef",
         "$dynamicAnchor"),
        _as_written,
    ),
}  # fmt: skip
"""How each keyword that decides what a schema accepts is compared; no other one matters."""


def _ordered(value: Any, depth: int, key: str = "") -> Any:
    """Return a definition with its sets in one order."""
    if depth > _MAX_DEPTH:
        raise RecursionError
    if isinstance(value, dict):
        return {name: _ordered(member, depth + 1, name) for name, member in value.items()}
    if isinstance(value, list):
        items = [_ordered(item, depth + 1) for item in value]
        return sorted(items, key=_text) if key in (*_SETS, *CHOICES) else items
    return value


_NOTES: Final = (*_TEXTS, "annotations", "size")


def _without_notes(item: Any) -> Any:
    if not isinstance(item, dict):
        return item
    kept = {key: value for key, value in item.items() if key not in _NOTES}
    arguments = kept.get("arguments")
    if isinstance(arguments, list):
        kept["arguments"] = sorted(_text(_without_notes(argument)) for argument in arguments)
    return kept


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
