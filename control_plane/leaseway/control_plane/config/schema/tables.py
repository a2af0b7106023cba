"""Mappings with known keys, described as data: which keys there are and what reads each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final, TypeVar

from leaseway.control_plane.config.schema.issues import IssueReason, Where, quoted
from leaseway.control_plane.config.schema.values import (
    BadValue,
    Reader,
    Schema,
    reader,
    reader_of,
    suggestion,
    wrong_type,
)
from leaseway.control_plane.config.tree.yaml_tree import Position, Table, TableEntry, Tree
from leaseway.spec import keys as declarations

# Keys of other formats whose spelling is too different to suggest ours.
_SYNONYMS: Final[Mapping[str, str]] = {
    "type": "transport",
    "cmd": "command",
    "endpoint": "url",
    "environment": "env",
    "workingDirectory": "cwd",
    "working_dir": "cwd",
    "working_directory": "cwd",
    "shared": "truely-stateless",
    "stateless": "truely-stateless",
    "desc": "description",
    "whitelist": "tools",
    "blacklist": "tools",
    "allowedTools": "tools",
    "disabledTools": "tools",
    "includeTools": "tools",
    "excludeTools": "tools",
    "allow": "whitelist",
    "include": "whitelist",
    "deny": "blacklist",
    "exclude": "blacklist",
    "prefix": "transform",
    "suffix": "transform",
    "timeout": "call_timeout",
    "mcpServers": "servers",
}


_NO_READERS: Final[Mapping[str, Reader[Any]]] = {}

_T = TypeVar("_T")


@dataclass(frozen=True)
class Key:
    """One key of a mapping.

    Attributes:
        name: Its spelling in the file.
        read: Reads its value.
        field: The value's field in the typed model; by default the name.
        about: Its description for editors.
    """

    name: str
    read: Reader[Any]
    field: str = ""
    _: KW_ONLY
    about: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "field", self.field or self.name)

    @property
    def schema(self) -> Schema:
        schema = self.read.schema
        about = " ".join(filter(None, (self.about, schema.get("description"))))
        return schema | ({"description": about} if about else {})


Keys = Mapping[str, Key]
"""The keys of a mapping, by name."""


def keyed(*keys: Key) -> Keys:
    return {key.name: key for key in keys}


def schema_of(keys: Keys, *, required: Sequence[str] = ()) -> Schema:
    """Return the JSON Schema of a mapping that has these keys and no others."""
    schema: Schema = {
        "type": "object",
        "properties": {name: key.schema for name, key in keys.items()},
        "additionalProperties": False,
    }
    return schema | ({"required": list(required)} if required else {})


def unique_entries(
    table: Table, where: Where, reject: Callable[[Where, TableEntry, Position], None] | None = None
) -> list[TableEntry]:
    """Return a mapping's entries, the first of each name; repeated ones are reported."""
    first: dict[str, TableEntry] = {}
    for entry in table.entries:
        kept = first.setdefault(entry.name, entry)
        if kept is not entry:
            (reject or _report_repeated)(where, entry, kept.at)
    return list(first.values())


def entries_of(
    node: Tree, where: Where, limit: int | None = None, what: str = "entries"
) -> list[TableEntry]:
    """Return a mapping's entries, the first of each name; repeated ones are reported.

    Raises:
        BadValue: The value is not a mapping, or has more entries than the limit.
    """
    if not isinstance(node, Table):
        raise wrong_type(node, where, "a mapping")
    entries = unique_entries(node, where)
    if limit is not None and len(entries) > limit:
        raise BadValue(f"{quoted(where.key)} has {len(entries)} {what}; {limit} are allowed.")
    return entries


def read_table(
    entries: Sequence[TableEntry], keys: Keys, where: Where, what: str
) -> dict[str, Any]:
    """Return the accepted values of a mapping's unique entries, by `Key.field`.

    `what` is the mapping's noun in messages: `a server`.
    """
    values: dict[str, Any] = {}
    for entry in entries:
        place = where.child(entry)
        key = keys.get(entry.name)
        if key is None:
            near = _SYNONYMS.get(entry.name, "")
            hint = f"did you mean '{near}'?" if near in keys else suggestion(entry.name, keys)
            message = f"{quoted(entry.name)} is not a key of {what}: {hint}"
            place.error(entry.at, IssueReason.UNKNOWN_KEY, message)
            continue
        value = key.read(entry.value, place)
        if value is not None:
            values[key.field] = value
    return values


def by_name(
    value: Reader[_T],
    limit: int,
    fault_of: Callable[[str], str | None] | None = None,
    *,
    what: str = "entries",
    accepted: Callable[[TableEntry, Where], None] | None = None,
) -> Reader[dict[str, _T]]:
    """Return a reader of a mapping of any names to values of one kind.

    Args:
        limit: How many there may be; messages call them `what`.
        fault_of: Returns why a text is no name: the end of a sentence that begins with the text.
        accepted: Is told each entry whose name and value are right, to warn of it.
    """

    @reader({"type": "object", "maxProperties": limit, "additionalProperties": value.schema})
    def read(node: Tree, where: Where) -> dict[str, _T]:
        values: dict[str, _T] = {}
        for entry in entries_of(node, where, limit, what):
            place = where.child(entry)
            fault = fault_of(entry.name) if fault_of else None
            if fault:
                message = f"{quoted(entry.name)} under {quoted(where.key)} {fault}."
                place.error(entry.at, IssueReason.BAD_VALUE, message)
                continue
            found = value(entry.value, place)
            if found is not None:
                values[entry.name] = found
                if accepted:
                    accepted(entry, place)
        return values

    return read


def record(
    keys: Keys, build: Callable[..., _T], what: str, *, required: Sequence[str] = ()
) -> Reader[_T]:
    """Return a reader of a mapping, which passes the accepted values to `build` by `Key.field`.

    `what` is the mapping's noun in messages: `a rule`.
    """

    @reader(schema_of(keys, required=required))
    def read(node: Tree, where: Where) -> _T:
        entries = entries_of(node, where)
        values = read_table(entries, keys, where, what)
        names = {entry.name for entry in entries}
        for name in required:
            if name not in names:
                where.missing(node.at, name, f"{quoted(where.key)} needs {name!r}.")
        if any(keys[name].field not in values for name in required):
            raise BadValue  # already reported
        return build(**values)

    return read


def record_of(
    declared: Iterable[declarations.Key],
    build: Callable[..., _T],
    what: str,
    readers: Mapping[str, Reader[Any]] = _NO_READERS,
    *,
    form: str = "",
) -> Reader[_T]:
    """Return a reader of a mapping whose keys the spec declares.

    Args:
        declared: The keys; of those for some forms only, the form's own.
        build: Makes the value of those that are given, by `Key.path`.
        what: The mapping's noun in messages: `a rule`.
        readers: The readers of keys that no shape describes, by the name of the key.
        form: Which of several mappings it is, such as a grant of `auth`.
    """
    accepted = [key for key in declared if not key.only or form in key.only]
    keys = keys_from(accepted, readers)
    return record(keys, build, what, required=required_of(accepted, form))


def keys_from(
    declared: Iterable[declarations.Key], readers: Mapping[str, Reader[Any]] = _NO_READERS
) -> Keys:
    """Return keys that the spec declares, with the readers of those that no shape describes."""
    return keyed(
        *(
            Key(
                key.name,
                reader_of(key.shape, readers.get(key.name)),
                key.path or key.name,
                about=key.description,
            )
            for key in declared
        )
    )


def required_of(declared: Iterable[declarations.Key], form: str = "") -> list[str]:
    """Return the names of the keys that each mapping of a form needs."""
    return [key.name for key in declared if key.required or form in key.required_by]


def _report_repeated(where: Where, entry: TableEntry, first: Position) -> None:
    place = where.child(entry)
    message = f"{quoted(entry.name)} is set twice, first on line {first.line}; remove one."
    place.error(entry.at, IssueReason.DUPLICATE_KEY, message)


def warn_of_key(key: str, server: TableEntry, where: Where, message: str) -> None:
    """Warn of a key of a server's entry that has no effect."""
    place, at = where.find(key, server.at)
    place.warning(at, IssueReason.KEY_WITHOUT_EFFECT, message)
