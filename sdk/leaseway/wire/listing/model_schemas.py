"""Input schemas as the APIs of models accept them. Pure.

Anthropic and OpenAI refuse a whole request for one tool whose input schema has a choice at its
root, OpenAI for one that says no properties, and Anthropic for one argument whose name has other
characters than `argument_name` leaves. Here the branches of a choice become one: it requires what
all of them do, and an argument may be what any of them says of it. The worker still checks calls
against the server's own schema, and says what is wrong with them.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from leaseway.wire.json_pointer import at_fragment
from leaseway.wire.listing.model_parts import with_accepted_parts
from leaseway.wire.messages.json_schema import CHOICES

_NOT_IN_ARGUMENTS: Final = re.compile(r"[^A-Za-z0-9_.-]+")
MAX_ARGUMENT_NAME: Final = 64
_is_accepted: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}").fullmatch
_REFUSED: Final = frozenset({*CHOICES, "not", "enum", "const"})
"""Keywords that APIs refuse at a root."""
_NAMING: Final = frozenset(
    {"dependentRequired", "dependentSchemas", "dependencies", "if", "then", "else"}
)
"""Other keywords of a root that name properties."""
_ALTERNATIVES: Final = ("anyOf", "oneOf")
_SHARED: Final = ("type", "title", "description")
_MAX_ALTERNATIVES: Final = 16
"""Definitions of one argument; with more of them it may be anything."""
_MAX_SUBSCHEMAS: Final = 200
_MAX_DEPTH: Final = 20
_MAX_HINT: Final = 500
"""Characters of a sentence about a choice."""


def argument_name(name: str) -> str:
    """Return the nearest name that models' APIs accept for an argument; empty if there is none."""
    return _NOT_IN_ARGUMENTS.sub("_", name).strip("_")[:MAX_ARGUMENT_NAME]


class ModelSchema(NamedTuple):
    """An input schema whose parts, and names of arguments, models' APIs accept.

    Attributes:
        schema: The schema; the server's own object if nothing had to be changed.
        names: The server's names of the renamed arguments, by the new ones.
    """

    schema: dict[str, Any]
    names: Mapping[str, str]

    def server_arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return a model's arguments with the server's names."""
        return {self.names.get(name, name): value for name, value in arguments.items()}


def with_accepted_names(schema: dict[str, Any]) -> ModelSchema:
    """Return a tool's input schema with parts, and names of arguments, that models' APIs accept."""
    schema = with_accepted_parts(schema)
    flat = with_plain_root(schema)
    properties = flat.get("properties")
    if not isinstance(properties, dict) or all(map(_is_accepted, properties)):
        return ModelSchema(schema, {})
    names: dict[str, str] = {}
    unused = _UnusedNames(properties)
    for name in properties:
        if not _is_accepted(name):
            names[unused.like(name)] = name
    accepted = {name: new for new, name in names.items()}
    renamed = {name: value for name, value in flat.items() if name not in _NAMING}
    renamed["properties"] = {
        accepted.get(name, name): _titled(name, defined) if name in accepted else defined
        for name, defined in properties.items()
    }
    required = flat.get("required")
    if isinstance(required, list):
        texts = [name for name in required if isinstance(name, str)]
        renamed["required"] = [accepted.get(name, name) for name in texts]
    return ModelSchema(renamed, names)


class _UnusedNames:
    """Finds accepted names that no argument has yet."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)
        self._next: Counter[str] = Counter()

    def like(self, name: str) -> str:
        """Return the nearest unused name, which is used from now on."""
        unused = stem = argument_name(name) or "argument"
        while unused in self._taken:
            self._next[stem] += 1
            suffix = f"_{self._next[stem] + 1}"
            unused = stem[: MAX_ARGUMENT_NAME - len(suffix)] + suffix
        self._taken.add(unused)
        return unused


def _titled(name: str, defined: Any) -> Any:
    """Return the definition of a renamed argument, which tells a model the server's name."""
    return {"title": name, **defined} if isinstance(defined, dict) else defined


def with_plain_root(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a tool's input schema with `properties` and no choices at its root.

    It is the same object if it is so already. A tool without arguments may say no properties, but
    frameworks, too, look for them. The properties of all branches of choices are its properties
    then, and it requires what each branch does. A reference at the root is a branch, too: models'
    APIs do not look for properties behind it.
    """
    if _REFUSED.isdisjoint(schema) and "$ref" not in schema:
        return schema if "properties" in schema else {**schema, "properties": {}}
    flat = {name: value for name, value in schema.items() if name not in _REFUSED | {"$ref"}}
    flat.setdefault("properties", {})
    try:
        found = _Gathering(schema).members(schema)
    except _TooMany:
        return flat
    if schema.get("additionalProperties") is False:  # then the branches add none
        own = schema.get("properties")
        found.keep(own if isinstance(own, dict) else {})
    if found.properties:
        flat["properties"] = found.properties
    if found.required:
        flat["required"] = list(found.required)
    hints = [hint for choice in found.choices if (hint := _hint(choice))]
    if hints:
        description = schema.get("description")
        before = [description] if isinstance(description, str) and description else []
        flat["description"] = " ".join([*before, *hints])
    return flat


@dataclass
class _Members:
    """What schemas say of an object.

    Attributes:
        properties: The definitions of its properties.
        required: The names of required properties, in order.
        choices: For each choice what its branches require beyond what all of them do.
    """

    properties: dict[str, Any] = field(default_factory=dict)
    required: dict[str, None] = field(default_factory=dict)
    choices: list[list[tuple[str, ...]]] = field(default_factory=list)

    def add(self, other: _Members) -> None:
        """Add what another schema for the same object says."""
        for name, defined in other.properties.items():
            self.properties.setdefault(name, defined)  # of two that both hold, one is wide enough
        self.required |= other.required
        self.choices += other.choices

    def keep(self, names: Container[str]) -> None:
        """Drop all other properties."""
        self.properties = {name: each for name, each in self.properties.items() if name in names}
        self.required = {name: None for name in self.required if name in names}


class _TooMany(Exception):
    """A schema has too many parts."""


class _Gathering:
    """Gathers what the parts of a schema that hold for the object itself say of its members.

    Args:
        root: The schema to which references are relative.
    """

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._left = _MAX_SUBSCHEMAS

    def members(self, schema: Any, depth: int = 0) -> _Members:
        """Return what a schema says.

        Raises:
            _TooMany: It has too many parts.
        """
        self._left -= 1
        if self._left < 0 or depth > _MAX_DEPTH:
            raise _TooMany
        found = _Members()
        if not isinstance(schema, dict):
            return found
        properties = schema.get("properties")
        if isinstance(properties, dict):
            found.properties.update(properties)
        required = schema.get("required")
        if isinstance(required, list):
            found.required |= dict.fromkeys(name for name in required if isinstance(name, str))
        if "$ref" in schema:
            found.add(self.members(at_fragment(self._root, schema["$ref"]), depth + 1))
        for part in _branches(schema, "allOf"):
            found.add(self.members(part, depth + 1))
        for keyword in _ALTERNATIVES:
            branches = [self.members(part, depth + 1) for part in _branches(schema, keyword)]
            if branches:
                found.add(_either_of(branches))
        return found


def _branches(schema: dict[str, Any], keyword: str) -> list[Any]:
    branches = schema.get(keyword)
    return branches if isinstance(branches, list) else []


def _either_of(branches: list[_Members]) -> _Members:
    """Return what holds for an object that fits one of several."""
    found = _Members()
    for branch in branches:
        for name, defined in branch.properties.items():
            known = found.properties.get(name)
            found.properties[name] = defined if known is None else _either(known, defined)
    first, *others = branches
    found.required = {
        name: None for name in first.required if all(name in branch.required for branch in others)
    }
    needs = [
        tuple(name for name in branch.required if name not in found.required) for branch in branches
    ]
    if all(needs):
        found.choices.append(list(dict.fromkeys(needs)))
    return found


def _either(one: Any, other: Any) -> Any:
    """Return a definition of a value that fits one of two."""
    if one == other or other is False:
        return one
    if one is False:
        return other
    if not isinstance(one, dict) or not isinstance(other, dict):
        return {}
    if _values(one) and _values(other):
        same = {name: one[name] for name in _SHARED if name in one and one[name] == other.get(name)}
        values = {json.dumps(value): value for value in (*_values(one), *_values(other))}
        return {**same, "enum": list(values.values())}
    known = one["anyOf"] if one.keys() == {"anyOf"} else [one]
    if other in known:
        return one
    return {"anyOf": [*known, other]} if len(known) < _MAX_ALTERNATIVES else {}


def _values(defined: dict[str, Any]) -> list[Any]:
    """Return the values that a definition lists; empty if it lists none."""
    listed = [defined["const"]] if "const" in defined else defined.get("enum")
    return listed if isinstance(listed, list) else []


def _hint(choice: Iterable[tuple[str, ...]]) -> str:
    """Return a sentence about a choice for a model; empty if it would be long."""
    sets = [" and ".join(names) for names in choice]
    hint = f"Pass one of: {'; '.join(sets)}."
    return hint if len(sets) > 1 and len(hint) <= _MAX_HINT else ""
