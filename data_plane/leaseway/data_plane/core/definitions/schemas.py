"""The schemas of tools, as official clients accept them, with the same meaning. Pure.

They require that arguments are an object of described properties, and some compile every schema of
results before they list anything. A keyword that says nothing there is dropped or spelled out.
"""

from __future__ import annotations

import functools
import re
import warnings
from typing import Any, Final
from urllib.parse import unquote

import jsonschema_rs

from leaseway.data_plane.core.definitions.members import Changes
from leaseway.wire.bounds import KIB
from leaseway.wire.json_pointer import at_pointer
from leaseway.wire.listing.schema_keywords import is_pattern, is_valid
from leaseway.wire.messages.json_schema import DATA, MAPS
from leaseway.wire.messages.portable_json import encode

_NEWEST: Final = "https://json-schema.org/draft/2020-12/schema"
_DRAFTS: Final = {
    "draft/2020-12": _NEWEST,
    "draft/2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft-07": "http://json-schema.org/draft-07/schema#",
    "draft-06": "http://json-schema.org/draft-06/schema#",
}
"""The meta-schemas of the drafts that official clients know, by what names them."""
_is_draft: Final = re.compile(r"https?://json-schema\.org/([^/]+(?:/[^/]+)?)/schema#?").fullmatch
_MAX_SIZE: Final = 64 * KIB
"""Bytes of a schema that is corrected, on the event loop."""
_MAX_WRONG: Final = 64
"""Keywords that are corrected in one schema."""
_OF_NAMES: Final = frozenset({"required"})
"""Keywords whose values are names, each once."""


def leave_out_invalid(schema: dict[str, Any], path: str, changes: Changes) -> None:
    """Leave out the keywords of a schema whose values its draft does not have, in place.

    An unknown draft is left out, too: official clients for JavaScript refuse its schema.

    Args:
        schema: The schema.
        path: What it is, for operators.
        changes: Where that is recorded.
    """
    draft = _draft_of(schema.get("$schema", _NEWEST))
    if draft is None:
        changes.add(f"{path} is of a draft that clients do not know")
        del schema["$schema"]
    check = _check_of(draft or _NEWEST)
    if check.is_valid(schema) or len(encode(schema)) > _MAX_SIZE:
        return
    for _ in range(_MAX_WRONG):
        try:
            check.validate(schema)  # all errors at once would each have a copy of what is wrong
            return
        except jsonschema_rs.ValidationError as error:
            place = tuple(error.instance_path)
        if not place:
            return
        changes.add(f"{path} has a keyword with a wrong value ({_keyword(place)})")
        _leave_out(schema, place)


def _draft_of(name: Any) -> str | None:
    found = _is_draft(name) if isinstance(name, str) else None
    return _DRAFTS.get(found[1]) if found is not None else None


@functools.cache
def _check_of(draft: str) -> Any:
    return jsonschema_rs.validator_for({"$schema": draft, "$ref": draft})


def _keyword(place: tuple[str | int, ...]) -> str:
    return next((str(step)[:40] for step in reversed(place) if isinstance(step, str)), "")


def _leave_out(schema: dict[str, Any], place: tuple[str | int, ...]) -> None:
    """Leave out what is at a place, if it is still there."""
    *way, last = place
    parent: Any = schema
    for step in way:
        try:
            parent = parent[step]
        except (KeyError, IndexError, TypeError):
            return
    if isinstance(parent, list) and way and way[-1] in _OF_NAMES:
        parent[:] = [name for name in parent if isinstance(name, str)]
    elif isinstance(parent, list):
        if isinstance(last, int) and last < len(parent):
            parent[last] = {}
    elif isinstance(parent, dict) and way and way[-1] in MAPS:
        parent[last] = {}
    elif isinstance(parent, dict) and last in _OF_NAMES and isinstance(parent.get(last), list):
        parent[last] = [*dict.fromkeys(name for name in parent[last] if isinstance(name, str))]
    elif isinstance(parent, dict) and last in parent:
        value = parent.pop(last)
        if last == "items" and isinstance(value, list):  # as older drafts have it
            parent |= {"prefixItems": value} if value else {}
            if "additionalItems" in parent:
                parent["items"] = parent.pop("additionalItems")


_FROM_OBJECTS: Final = frozenset({"properties", "required", "additionalProperties"})
_MAX_SUBSCHEMAS: Final = 20_000
_MAX_HOPS: Final = 32
"""References from one to the next, without anything between them."""


def input_schema(given: Any, changes: Changes) -> dict[str, Any]:
    """Return the schema of a tool's arguments, which are always an object."""
    if not isinstance(given, dict):
        changes.add("inputSchema is no object")
        return {"type": "object", "not": {}} if given is False else {"type": "object"}
    schema: dict[str, Any] = given
    if schema.get("type") != "object":
        changes.add("inputSchema has not the type object")
        schema = {"type": "object", **schema}
        schema["type"] = "object"
    _read_keywords(schema, "inputSchema", changes)
    return schema


def output_schema(given: Any, changes: Changes, *, modern: bool) -> dict[str, Any] | None:
    """Return the schema of a tool's structured results; None for one that clients cannot use.

    Until 2025-11-25 results are objects, so that a schema of such a server without a type is
    understood like that.
    """
    if not isinstance(given, dict):
        changes.add("outputSchema is no object")
        return None
    schema: dict[str, Any] = given
    leave_out_invalid(schema, "outputSchema", changes)
    kind = schema.get("type")
    means_object = kind is None and (not modern or not _FROM_OBJECTS.isdisjoint(schema))
    if means_object or (not modern and isinstance(kind, list) and "object" in kind):
        changes.add("outputSchema has not the type object")
        schema = {"type": "object", **schema}
        schema["type"] = "object"
    _read_keywords(schema, "outputSchema", changes)
    fault = _Usable(schema, changes).fault()
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
            for name, defined in properties.items():
                if not isinstance(defined, dict):
                    changes.add(f"a property of {path} is no object")
                    properties[name] = {"not": {}} if defined is False else {}
        else:
            changes.dropped(f"{path}.properties", schema.pop("properties"))
    if "required" in schema:
        required = schema["required"]
        if not isinstance(required, list):
            changes.dropped(f"{path}.required", schema.pop("required"))
        elif not all(isinstance(name, str) for name in required):
            changes.add(f"{path}.required names something that is no text")
            schema["required"] = [name for name in required if isinstance(name, str)]


_NOT_SUPPORTED: Final = frozenset({"id", "$async"})
"""Keywords on which clients that compile schemas stop."""


def _is_pattern_of_all(value: Any) -> bool:
    """Return whether clients in JavaScript and in Python read a regular expression."""
    if not is_pattern(value):
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about what will mean something else one day
        try:
            re.compile(value)
        except (re.error, OverflowError, RecursionError):
            return False
    return True


class _Usable:
    """Finds out whether clients can compile a schema; does not compile it, which may take long.

    A pattern that is none for one of them is left out: results are described less exactly then.
    """

    def __init__(self, root: dict[str, Any], changes: Changes) -> None:
        self._root = root
        self._changes = changes
        self._anchors: dict[str, dict[str, Any]] = {}
        self._referring: list[dict[str, Any]] = []

    def fault(self) -> str:
        """Return why the schema cannot be compiled, or an empty text."""
        count = 0
        remaining: list[Any] = [self._root]
        while remaining:
            schema = remaining.pop()
            count += 1
            if count > _MAX_SUBSCHEMAS:
                return "it is too long"
            if not isinstance(schema, dict):
                continue
            if "pattern" in schema and not _is_pattern_of_all(schema["pattern"]):
                del schema["pattern"]
                self._changes.add("a pattern in outputSchema is none in every language")
            self._bound_tuple(schema)
            fault = self._keyword_fault(schema)
            if fault:
                return fault
            for name, value in schema.items():
                if isinstance(value, dict) and name not in DATA:
                    remaining += value.values() if name in MAPS else (value,)
                elif isinstance(value, list) and name not in DATA:
                    remaining += value
        return next(filter(None, map(self._reference_fault, self._referring)), "")

    def _bound_tuple(self, schema: dict[str, Any]) -> None:
        """Say with a length that a list has no further items.

        Clients of draft-07 read `items` without `prefixItems`, as a list that is always empty.
        """
        first = schema.get("prefixItems")
        if schema.get("items") is False and isinstance(first, list):
            del schema["items"]
            schema["maxItems"] = min(len(first), schema.get("maxItems", len(first)))
            self._changes.any = True

    def _keyword_fault(self, schema: dict[str, Any]) -> str:
        if schema is not self._root and "$id" in schema:
            return "a part of it has its own $id"
        for name, value in schema.items():
            if name in _NOT_SUPPORTED or (name == "nullable" and "type" not in schema):
                return f"{name} is not supported there"
            if not is_valid(name, value):
                return f"{name} has a wrong value"
        if "$ref" in schema or "$dynamicRef" in schema:
            self._referring.append(schema)
        for name in ("$anchor", "$dynamicAnchor"):
            if name in schema and self._anchors.setdefault(schema[name], schema) is not schema:
                return f"two parts of it have the anchor {schema[name][:80]}"
        return ""

    def _reference_fault(self, schema: dict[str, Any]) -> str:
        """Follow the references of a schema, and those of what they refer to."""
        for name in ("$ref", "$dynamicRef"):
            target: Any = schema
            for _ in range(_MAX_HOPS):
                if not isinstance(target, dict) or name not in target:
                    break
                reference = target[name]
                target = self._resolve(reference)
                if not isinstance(target, dict | bool):
                    return f"there is no {reference[:80]!a} in it"
            else:
                return "a reference leads back to itself"
        return ""

    def _resolve(self, reference: str) -> Any:
        """Return what a reference within the schema refers to, or None."""
        if not reference.startswith("#"):
            return None
        pointer = unquote(reference[1:])
        if not pointer.startswith("/"):
            return self._anchors.get(pointer) if pointer else self._root
        return at_pointer(self._root, pointer)
