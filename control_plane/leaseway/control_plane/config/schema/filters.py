"""Readers of what decides which tools, prompts and resources register, and as what (DESIGN §2)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from leaseway.control_plane.config.schema.issues import IssueReason, Where, shown
from leaseway.control_plane.config.schema.tables import (
    Key,
    keyed,
    mapping,
    read_table,
    record,
    schema_of,
    unique_entries,
)
from leaseway.control_plane.config.schema.values import (
    Reader,
    kind_of,
    list_of,
    plain_text,
    suggestion,
    takes,
)
from leaseway.control_plane.config.tree.yaml_tree import Entry, Leaf, Table, Tree
from leaseway.spec.model import Transform
from leaseway.spec.name_filters import NameFilter

SERVER_PLACEHOLDER: Final = "{server}"
"""Stands for the server's id in what a transform adds or removes."""

MAX_PATTERNS: Final = 1_000
MAX_PATTERN: Final = 1_024
MAX_TRANSFORMS: Final = 100

_PATTERN: Final = re.compile(r"[a-zA-Z0-9_*-]*")
_NAME_PART: Final = re.compile(r"[a-zA-Z0-9_-]*")
_NAME_LENGTH: Final = 64


def _no_fault(text: str) -> str:
    return ""


def name_pattern_fault(text: str) -> str:
    """Return why a pattern can match no name of a tool or a prompt, or an empty text."""
    if not _PATTERN.fullmatch(text):
        return "names hold a-z, A-Z, 0-9, '_' and '-', and only '*' is special"
    if len(text.replace("*", "")) > _NAME_LENGTH:
        return f"names have at most {_NAME_LENGTH} characters"
    return ""


def _filter(key: str, noun: str, fault_of: Callable[[str], str]) -> Reader[NameFilter]:
    """Return a reader of the filter under a key; `fault_of` says why a pattern matches nothing."""
    plain = plain_text(longest=MAX_PATTERN)

    @takes(plain.schema)
    def read(node: Tree, where: Where) -> str | None:
        text = plain(node, where)
        if text is None:
            return None
        if not text:
            fault = f"is empty; write '*' to match every {noun}"
        elif why := fault_of(text):
            fault = f"can match no {noun}: {why}"
        else:
            return text
        # It is kept: a whitelist without it might be no whitelist at all.
        where.warning(node.at, IssueReason.BAD_PATTERN, f"The pattern {shown(text)} {fault}.")
        return text

    patterns = list_of(read, MAX_PATTERNS)
    keys = keyed(
        Key("whitelist", patterns, "whitelist"),
        Key("blacklist", patterns, "blacklist"),
    )
    return record(keys, NameFilter, f"'{key}'")


tools: Final = _filter("tools", "tool", name_pattern_fault)
"""Reads a `NameFilter` of original names."""

prompts: Final = _filter("prompts", "prompt", name_pattern_fault)
"""Reads the same of prompts."""

resources: Final = _filter("resources", "resource", _no_fault)
"""Reads a `NameFilter` of URIs, which may hold anything."""


@takes({"type": "string", "pattern": r"^([a-zA-Z0-9_-]|\{server\})*$"})
def _part(node: Tree, where: Where) -> str | None:
    text = plain_text(longest=1_024)(node, where)
    if text is None or _NAME_PART.fullmatch(text.replace(SERVER_PLACEHOLDER, "")):
        return text
    message = (
        f"{shown(text)} can be part of no tool name: names hold a-z, A-Z, 0-9, '_' and '-', and"
        f" only {SERVER_PLACEHOLDER} is replaced."
    )
    where.error(node.at, IssueReason.BAD_TRANSFORM, message)
    return None


_REPLACEMENT: Final = keyed(Key("remove", _part, "remove"), Key("add", _part, "add"))


@takes({"anyOf": [_part.schema, schema_of(_REPLACEMENT, required=("remove",))]})
def _prefix(node: Tree, where: Where) -> Transform | None:
    if isinstance(node, Leaf):
        text = _part(node, where)
        return None if text is None else Transform("prefix", text)
    table = mapping(node, where)
    if table is None:
        return None
    values = read_table(unique_entries(table, where), _REPLACEMENT, where, "a prefix")
    if not any(entry.name == "remove" for entry in table.entries):
        where.missing(node.at, "remove", f"{shown(where.key)} needs 'remove' beside 'add'.")
    return Transform("prefix", values.get("add", ""), values.get("remove", ""))


@takes(_part.schema)
def _suffix(node: Tree, where: Where) -> Transform | None:
    text = _part(node, where)
    return None if text is None else Transform("suffix", text)


_STEPS: Final = keyed(Key("suffix", _suffix, "suffix"), Key("prefix", _prefix, "prefix"))


@takes({"anyOf": [schema_of(keyed(key), required=(key.name,)) for key in _STEPS.values()]})
def _transform(node: Tree, where: Where) -> Transform | None:
    entry = _only_entry(node, where)
    if entry is None:
        return None
    place = where.child(entry.name, entry.value.at)
    step = _STEPS.get(entry.name)
    if step is None:
        message = f"{shown(entry.name)} is no transform: {suggestion(entry.name, _STEPS)}"
        place.error(entry.at, IssueReason.UNKNOWN_KEY, message)
        return None
    read: Transform | None = step.read(entry.value, place)
    return read


def _only_entry(node: Tree, where: Where) -> Entry | None:
    entries = unique_entries(node, where) if isinstance(node, Table) else []
    if len(entries) == 1:
        return entries[0]
    found = f"has {len(entries)} keys" if isinstance(node, Table) else f"is {kind_of(node)}"
    message = (
        f"{shown(where.key)} must be one of {{prefix: TEXT}}, {{prefix: {{remove: TEXT, add:"
        f" TEXT}}}} and {{suffix: TEXT}}, but it {found}. Write steps as items of the list."
    )
    where.error(node.at, IssueReason.BAD_TRANSFORM, message)
    return None


transforms: Final = list_of(_transform, MAX_TRANSFORMS)
"""Reads a tuple of `Transform`, in which `{server}` still stands."""


def for_server(steps: Sequence[Transform], server_id: str) -> tuple[Transform, ...]:
    """Return transforms with `{server}` replaced by a server's id."""
    return tuple(
        replace(
            step,
            add=step.add.replace(SERVER_PLACEHOLDER, server_id),
            remove=step.remove.replace(SERVER_PLACEHOLDER, server_id),
        )
        for step in steps
    )
