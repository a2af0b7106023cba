"""Keys of servers that are the kit."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, Final

from leaseway.control_plane.config.schema import filters
from leaseway.control_plane.config.schema.issues import IssueReason, Where, quoted
from leaseway.control_plane.config.schema.tables import warn_of_key
from leaseway.control_plane.config.schema.values import (
    BadValue,
    Reader,
    checked,
    choice,
    list_of,
    reader,
    worker_text,
)
from leaseway.control_plane.config.tree.yaml_tree import Items, TableEntry, Tree
from leaseway.spec.filters.names import NO_FILTER, NameFilter
from leaseway.spec.kinds.builtin import Builtin
from leaseway.spec.kinds.confinement import NO_SANDBOX
from leaseway.spec.kinds.kit import (
    BUILTIN_TOOLS,
    FILE_TOOLS,
    command_fault,
    command_words,
    host_fault,
)
from leaseway.spec.model import Transform

MAX_ENTRIES: Final = 100
_MAX_PATH: Final = 4_096
_PREFIX: Final = "builtin."


_BUILTIN_NAMES: Final = list_of(choice(*BUILTIN_TOOLS), MAX_ENTRIES)


@reader(
    {
        "description": "The tools that are on, of a builtin server.",
        **_BUILTIN_NAMES.schema,
        "minItems": 1,
    }
)
def tools(node: Tree, where: Where) -> NameFilter:
    """Read the tools that are enabled: a list of them, or a filter as of every server."""
    if isinstance(node, Items):
        names = _BUILTIN_NAMES.read(node, where)
        if len(names) < len(node.items):
            raise BadValue  # already reported
        found = NameFilter(whitelist=tuple(dict.fromkeys(names)))
    else:
        found = filters.tools.read(node, where)
    if found.whitelist and any(found.passes(name) for name in BUILTIN_TOOLS):
        return found
    raise BadValue(
        f"{quoted(where.key)} enables no tool: name the tools that you want, of"
        f" {', '.join(BUILTIN_TOOLS)}."
    )


def _command_fault(text: str) -> str | None:
    try:
        command_words(text)
    except ValueError as error:
        return str(error)
    return None


def _root_fault(text: str) -> str | None:
    if text.startswith("~"):
        return f"{text!r:.200} is no home folder: write ${{HOME}} in the place of '~'."
    return f"{text!r:.200} is not a folder." if text.startswith("-") else None


def _entries(fault_of: Callable[[str], str | None]) -> Reader[tuple[str, ...]]:
    """Return a reader of a list that is not empty."""

    def fault_in(entry: str) -> str | None:
        fault = None if "${" in entry else fault_of(entry)
        return None if fault is None else f"is not valid: {fault}"

    entry = checked(worker_text(longest=_MAX_PATH, empty=False), fault_in)
    entries = list_of(entry, MAX_ENTRIES)

    @reader(entries.schema | {"minItems": 1})
    def read(node: Tree, where: Where) -> tuple[str, ...]:
        if isinstance(node, Items) and not node.items:
            raise BadValue(
                f"{quoted(where.key)} is empty; write at least one entry, or remove the key."
            )
        return entries.read(node, where)

    return read


roots: Final = _entries(_root_fault)
"""Reads the folders that file tools may reach."""

commands: Final = _entries(_command_fault)
"""Reads the command lines that may be executed."""

hosts: Final = _entries(host_fault)
"""Reads the hosts that `http_get` may send requests to."""


def _with_enabled_tools(tools: NameFilter, given: Builtin) -> Builtin:
    """Return a builtin server's settings with the tools that a filter enables."""
    on = tuple(name for name in BUILTIN_TOOLS if tools.whitelist and tools.passes(name))
    return Builtin(on, given.roots, given.commands, given.hosts)


def _check(
    server: TableEntry, given: Builtin, written: Container[str], where: Where, *, confined: bool
) -> None:
    """Report tools that must not be on together, missing keys, and keys that no tool uses.

    `given` has the accepted values, `written` the names of all keys. `confined` is whether the
    server has a strict sandbox.
    """
    on = set(given.tools)
    fault = command_fault(on, confined=confined)
    if fault is not None:
        place, at = where.find("tools", server.at)
        place.error(at, IssueReason.BAD_VALUE, fault)
    file_tool = next((name for name in FILE_TOOLS if name in on), None)
    executes = "execute_command" in on
    if file_tool and "roots" not in written:
        message = f"The tool {file_tool} needs 'roots': the folders that it may reach."
        where.missing(server.at, "roots", message)
    if executes and "commands" not in written:
        message = "The tool execute_command needs 'commands': what it may execute, as 'git log *'."
        where.missing(server.at, "commands", message)
    for key, values, is_used in (
        ("roots", given.roots, file_tool or executes),
        ("commands", given.commands, executes),
        ("hosts", given.hosts, "http_get" in on),
    ):
        if values and not is_used:
            message = f"{key!r} has no effect: no tool that is on uses it."
            warn_of_key(key, server, where, message)


def complete(
    server: TableEntry, values: dict[str, Any], _: Sequence[Transform], where: Where
) -> None:
    """Put the enabled features together, and check them."""
    names = [name for name in values if name.startswith(_PREFIX)]
    given = Builtin(**{name.removeprefix(_PREFIX): values.pop(name) for name in names})
    enabled = _with_enabled_tools(values.get("tools", NO_FILTER), given)
    values["builtin"] = enabled
    if "tools" in values:
        written = {member.name for member in server.members}
        confined = values.get("sandbox", NO_SANDBOX).strict
        _check(server, enabled, written, where, confined=confined)


READERS: Final[Mapping[str, Reader[Any]]] = {
    "roots": roots,
    "commands": commands,
    "hosts": hosts,
}
"""The readers of its keys that no shape describes."""
