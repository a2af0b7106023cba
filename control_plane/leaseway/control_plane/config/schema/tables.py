"""Mappings with known keys, described as data: which keys there are and what reads each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from leaseway.control_plane.config.schema.issues import IssueReason, Where, shown
from leaseway.control_plane.config.schema.values import Reader, Schema, kind_of, suggestion
from leaseway.control_plane.config.tree.yaml_tree import Entry, Position, Table, Tree
from leaseway.spec.transports import is_registered

# What people write who come from other formats, where spelling alone would not lead them.
_SYNONYMS: Final[Mapping[str, str]] = {
    "type": "transport",
    "environment": "env",
    "whitelist": "tools",
    "blacklist": "tools",
    "prefix": "transform",
    "suffix": "transform",
    "timeout": "call_timeout",
    "mcpServers": "servers",
}


_T = TypeVar("_T")


@dataclass(frozen=True)
class Key:
    """One key of a mapping.

    Attributes:
        name: As it is written in the file.
        read: What reads its value.
        field: Where the value goes in the typed model.
        transports: The transports that it is for, or None for all.
        required_by: The transports that do not work without it.
        reaches_registered: Whether a transport that another package registers gets it, too.
        instead: The key beside which it is not required, or empty.
        about: What editors say of it.
    """

    name: str
    read: Reader[Any]
    field: str
    transports: frozenset[str] | None = None
    required_by: frozenset[str] = frozenset()
    reaches_registered: bool = True
    instead: str = ""
    about: str = ""

    @property
    def schema(self) -> Schema:
        return self.read.schema | ({"description": self.about} if self.about else {})

    def is_for(self, transport: str) -> bool:
        if self.transports is None or transport in self.transports:
            return True
        return self.reaches_registered and is_registered(transport)


Keys = Mapping[str, Key]
"""The keys of a mapping, by name."""


def keyed(*keys: Key) -> Keys:
    return {key.name: key for key in keys}


def schema_of(keys: Keys, *, required: Sequence[str] = ()) -> Schema:
    """Return the JSON Schema of a mapping that has these keys and no others."""
    made: Schema = {
        "type": "object",
        "properties": {name: key.schema for name, key in keys.items()},
        "additionalProperties": False,
    }
    return made | ({"required": list(required)} if required else {})


def mapping(node: Tree, where: Where) -> Table | None:
    if isinstance(node, Table):
        return node
    message = f"{shown(where.key)} must be a mapping, but it is {kind_of(node)}."
    where.error(node.at, IssueReason.WRONG_TYPE, message)
    return None


def unique_entries(
    table: Table, where: Where, refuse: Callable[[Where, Entry, Position], None] | None = None
) -> list[Entry]:
    """Return a mapping's entries, the first of each name; repeated ones are reported."""
    first: dict[str, Entry] = {}
    for entry in table.entries:
        kept = first.setdefault(entry.name, entry)
        if kept is not entry:
            (refuse or _repeated)(where, entry, kept.at)
    return list(first.values())


def read_table(entries: Sequence[Entry], keys: Keys, where: Where, what: str) -> dict[str, Any]:
    """Read a mapping's entries by their keys.

    Args:
        entries: Unique entries.
        keys: The known keys, by name.
        where: The mapping's place.
        what: What the mapping is, for messages: `a server`.

    Returns:
        The values that are not refused, by `Key.field`.
    """
    values: dict[str, Any] = {}
    for entry in entries:
        place = where.child(entry.name, entry.value.at)
        key = keys.get(entry.name)
        if key is None:
            near = _SYNONYMS.get(entry.name, "")
            hint = f"did you mean '{near}'?" if near in keys else suggestion(entry.name, keys)
            message = f"{shown(entry.name)} is no key of {what}: {hint}"
            place.error(entry.at, IssueReason.UNKNOWN_KEY, message)
            continue
        value = key.read(entry.value, place)
        if value is not None:
            values[key.field] = value
    return values


def record(keys: Keys, build: Callable[..., _T], what: str) -> Reader[_T]:
    """Return a reader of a small mapping, all of whose keys are optional."""

    def read(node: Tree, where: Where) -> _T | None:
        table = mapping(node, where)
        if table is None:
            return None
        return build(**read_table(unique_entries(table, where), keys, where, what))

    return Reader(read, schema_of(keys))


def _repeated(where: Where, entry: Entry, first: Position) -> None:
    place = where.child(entry.name, entry.value.at)
    message = f"{shown(entry.name)} is set twice, first on line {first.line}; remove one."
    place.error(entry.at, IssueReason.DUPLICATE_KEY, message)
