"""Readers of the keys of `python` and `builtin` servers: class, config, folders, hosts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container
from typing import Any, Final

from leaseway.control_plane.config.schema import credentials, fields, filters
from leaseway.control_plane.config.schema.issues import IssueReason, Where, shown
from leaseway.control_plane.config.schema.tables import mapping, unique_entries
from leaseway.control_plane.config.schema.values import (
    Reader,
    check_references,
    choice,
    list_of,
    plain_text,
    takes,
    text_of,
    text_schema,
)
from leaseway.control_plane.config.tree.yaml_tree import Entry, Items, Leaf, Table, Tree
from leaseway.spec.builtin import BUILTIN_TOOLS, FILE_TOOLS, command_words, host_fault
from leaseway.spec.model import Builtin
from leaseway.spec.name_filters import NameFilter
from leaseway.wire.bounds import KIB

MAX_CONFIG_TEXT: Final = 64 * KIB
"""Characters of a `config` as JSON; a process takes no variable over 128 KiB."""

MAX_ENTRIES: Final = 100
_MAX_DEPTH: Final = 16
_MAX_PATH: Final = 4_096
_MAX_NUMBER: Final = 2**63
_IDENTIFIER: Final = r"[A-Za-z_][A-Za-z0-9_]*"
_MODULE: Final = re.compile(rf"{_IDENTIFIER}(\.{_IDENTIFIER})*")
_REFERENCES: Final = ("env", "secret", "file")


def _named(rule: re.Pattern[str], words: str) -> Reader[str]:
    plain = plain_text(longest=1_024, empty=False)

    @takes(plain.schema | {"pattern": f"^{rule.pattern}$"})
    def read(node: Tree, where: Where) -> str | None:
        text = plain(node, where)
        if text is None or rule.fullmatch(text):
            return text
        message = f"{shown(where.key)} must be {words}, but is {shown(text)}."
        where.error(node.at, IssueReason.BAD_VALUE, message)
        return None

    return read


module: Final = _named(_MODULE, "a module as in an import statement, such as tools.weather")
"""Reads the module of a Python server."""

class_name: Final = _named(re.compile(_IDENTIFIER), "the name of a class")
"""Reads its class."""


@takes({"type": "object"})
def config(node: Tree, where: Where) -> str | None:
    """Read what a class is handed: any mapping, as JSON in which references stay references."""
    if mapping(node, where) is None:
        return None
    tree = _plain(node, where, 0)
    if tree is _REFUSED:
        return None
    text = json.dumps(tree, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    if len(text) <= MAX_CONFIG_TEXT:
        return text
    message = f"{shown(where.key)} is longer than {MAX_CONFIG_TEXT} characters as JSON."
    where.error(node.at, IssueReason.BAD_VALUE, message)
    return None


_BUILTIN_NAMES: Final = list_of(choice(*BUILTIN_TOOLS), MAX_ENTRIES)


@takes(
    {
        "anyOf": [
            filters.tools.schema,
            {
                "description": "The tools that are on, of a builtin server.",
                **_BUILTIN_NAMES.schema,
                "minItems": 1,
            },
        ]
    }
)
def tools(node: Tree, where: Where) -> NameFilter | None:
    """Read which tools pass; of a builtin server, where a list does, which are on at all."""
    if where.transport != "builtin":
        return filters.tools(node, where)
    if isinstance(node, Items):
        names = _BUILTIN_NAMES(node, where)
        found: NameFilter | None = NameFilter(whitelist=tuple(dict.fromkeys(names or ())))
        if names is None or len(names) < len(node.items):
            return None
    else:
        found = filters.tools(node, where)
    if found is None or (found.whitelist and any(found.passes(name) for name in BUILTIN_TOOLS)):
        return found
    message = (
        f"{shown(where.key)} switches on no tool: name those that are wanted, of"
        f" {', '.join(BUILTIN_TOOLS)}."
    )
    where.error(node.at, IssueReason.BAD_VALUE, message)
    return None


def _entry(fault_of: Callable[[str], str | None]) -> Reader[str]:
    @takes(text_schema(longest=_MAX_PATH, empty=False))
    def read(node: Tree, where: Where) -> str | None:
        text = text_of(node, where, longest=_MAX_PATH, empty=False)
        if text is None:
            return None
        check_references(node, where)
        fault = None if "${" in text else fault_of(text)
        if fault is None:
            return text
        where.error(node.at, IssueReason.BAD_VALUE, f"{shown(where.key)}: {fault}")
        return None

    return read


def _command_fault(text: str) -> str | None:
    try:
        command_words(text)
    except ValueError as error:
        return str(error)
    return None


def _root_fault(text: str) -> str | None:
    return f"{text!r:.200} is no folder." if text.startswith("-") else None


def _some(read: Reader[tuple[str, ...]]) -> Reader[tuple[str, ...]]:
    @takes(read.schema | {"minItems": 1})
    def read_some(node: Tree, where: Where) -> tuple[str, ...] | None:
        if isinstance(node, Items) and not node.items:
            message = f"{shown(where.key)} is empty; write at least one entry, or remove the key."
            where.error(node.at, IssueReason.BAD_VALUE, message)
            return None
        return read(node, where)

    return read_some


roots: Final = _some(list_of(_entry(_root_fault), MAX_ENTRIES))
"""Reads the folders that file tools may reach."""

commands: Final = _some(list_of(_entry(_command_fault), MAX_ENTRIES))
"""Reads the command lines that may be executed."""

hosts: Final = _some(list_of(_entry(host_fault), MAX_ENTRIES))
"""Reads the hosts that may be asked."""


def switched_on(found: NameFilter, given: Builtin) -> Builtin:
    on = tuple(name for name in BUILTIN_TOOLS if found.whitelist and found.passes(name))
    return Builtin(on, given.roots, given.commands, given.hosts)


def check_builtin(server: Entry, given: Builtin, written: Container[str], where: Where) -> None:
    """Report what the tools that are on lack, and what serves none of them.

    Args:
        server: The entry.
        given: What could be read of it.
        written: The keys that it has.
        where: Its place.
    """
    on = set(given.tools)
    of_files = next((name for name in FILE_TOOLS if name in on), None)
    runs = "execute_command" in on
    if of_files and "roots" not in written:
        text = f"The tool {of_files} needs 'roots': the folders that it may reach."
        where.missing(server.at, "roots", text)
    if runs and "commands" not in written:
        text = "The tool execute_command needs 'commands': what it may execute, as 'git log *'."
        where.missing(server.at, "commands", text)
    for key, values, needed in (
        ("roots", given.roots, of_files or runs),
        ("commands", given.commands, runs),
        ("hosts", given.hosts, "http_get" in on),
    ):
        if values and not needed:
            place = where.child(key, server.at)
            at = where.log.places.get(place.key, server.at)
            message = f"{key!r} has no effect: no tool that is on uses it."
            place.warning(at, IssueReason.KEY_WITHOUT_EFFECT, message)


class _Refused:
    """Stands for what was reported; None is a value of a config."""


_REFUSED: Final = _Refused()


def _plain(node: Tree, where: Where, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        message = f"{shown(where.key)} is nested deeper than {_MAX_DEPTH}."
        where.error(node.at, IssueReason.BAD_VALUE, message)
        return _REFUSED
    match node:
        case Table():
            return _plain_table(node, where, depth)
        case Items():
            items = [
                _plain(item, where.item(index, item.at), depth + 1)
                for index, item in enumerate(node.items)
            ]
            return _REFUSED if _REFUSED in items else items
        case _:
            return _plain_leaf(node, where)


def _plain_table(node: Table, where: Where, depth: int) -> Any:
    entries = unique_entries(node, where)
    if depth and len(entries) == 1 and entries[0].name in _REFERENCES:
        value = fields.reference(node, where)
        return _REFUSED if value is None else {value.kind: value.text}
    read = {
        entry.name: _plain(entry.value, where.child(entry.name, entry.value.at), depth + 1)
        for entry in entries
    }
    return _REFUSED if _REFUSED in read.values() else read


def _plain_leaf(node: Leaf, where: Where) -> Any:
    value = node.value
    if isinstance(value, str):
        text = text_of(node, where)
        if text is None:
            return _REFUSED
        check_references(node, where)
        name = where.key.rpartition(".")[2]
        fields.warn_of_credential(node, where, credentials.credential_kind(name, text))
        return text
    wide = isinstance(value, int) and abs(value) > _MAX_NUMBER
    if wide or (isinstance(value, float) and not -1e308 < value < 1e308):
        message = f"{shown(where.key)} is no number that JSON can hold."
        where.error(node.at, IssueReason.BAD_VALUE, message)
        return _REFUSED
    return value
