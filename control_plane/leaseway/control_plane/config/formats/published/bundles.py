"""The `manifest.json` of an unpacked MCP bundle (`.mcpb`, `.dxt`), as a client's file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Final

from leaseway.control_plane.config.formats.client_forms import find
from leaseway.control_plane.config.formats.published.registry import one_server, reference_name
from leaseway.control_plane.config.formats.published.shapes import faults_of_bundle, report
from leaseway.control_plane.config.schema.issues import Where
from leaseway.control_plane.config.tree.yaml_tree import (
    Items,
    Leaf,
    Position,
    Table,
    TableEntry,
    Tree,
)

_VERSIONS: Final = frozenset({"manifest_version", "dxt_version"})
_PLATFORM: Final = "linux"
_VARIABLE: Final = re.compile(
    r"\$\{(__dirname|user_config\.([A-Za-z0-9_-]+)|DESKTOP|DOCUMENTS|DOWNLOADS)\}"
)
_STARTS: Final = {
    "node": ("node", ()),
    "python": ("python3", ()),
    "uv": ("uv", ("run", "--directory", "${__dirname}")),
}
"""What starts the entry point of a bundle that does not say it itself, by its type."""


def is_bundle(root: Table) -> bool:
    """Return whether a JSON file is the manifest of a bundle."""
    keys = {entry.name for entry in root.entries}
    return bool(keys & _VERSIONS) and isinstance(find(root, ["server"]), Table)


def bundle_servers(root: Table, where: Where, folder: PurePath) -> Table | None:
    """Return a bundle's server as a file with `mcpServers`; None, after an issue, if it can't run.

    Args:
        root: The manifest.
        where: Where issues are reported.
        folder: The bundle's folder, absolute.
    """
    if report(faults_of_bundle(root), where):
        return None
    filler = _Filler(root, str(folder))
    members = {
        member.name: replace(member, value=filler.filled(member.value, member.name))
        for member in _members(root)
    }
    description, name = find(root, ["description"]), find(root, ["name"])
    if isinstance(description, Leaf):
        members["description"] = TableEntry("description", description.at, description)
    server_id = str(name.value) if isinstance(name, Leaf) else folder.name
    return one_server(server_id, tuple(members.values()), root.at)


def _members(root: Table) -> Sequence[TableEntry]:
    """Return the command, arguments and variables of a bundle on the workers' platform."""
    given = find(root, ["server", "mcp_config"])
    members = {entry.name: entry for entry in given.entries} if isinstance(given, Table) else {}
    overrides = members.pop("platform_overrides", None)
    own = overrides.member(_PLATFORM) if overrides is not None else None
    members |= {entry.name: entry for entry in own.entries} if isinstance(own, Table) else {}
    return tuple(members.values()) if "command" in members else tuple(_implied(root))


def _implied(root: Table) -> Iterator[TableEntry]:
    kind, entry = find(root, ["server", "type"]), find(root, ["server", "entry_point"])
    if not isinstance(kind, Leaf) or not isinstance(entry, Leaf):
        return
    point = f"${{__dirname}}/{entry.text}"
    program, first = _STARTS.get(kind.text, (point, ()))
    words = [*first, *([] if program == point else [point])]
    yield TableEntry("command", entry.at, _leaf(entry.at, program))
    yield TableEntry("args", entry.at, Items(entry.at, tuple(_leaf(entry.at, w) for w in words)))


class _Filler:
    """Replaces a bundle's variables: its folder, and what a person configures."""

    def __init__(self, root: Table, folder: str) -> None:
        self._folder = folder
        self._options = find(root, ["user_config"])

    def filled(self, node: Tree, key: str = "") -> Tree:
        match node:
            case Leaf(value=str() as text):
                option = self._whole(text)
                is_secret = key and option is not None and _is(option, "sensitive")
                if is_secret and option is not None and not _default(option):
                    name = _leaf(node.at, reference_name(key))
                    return Table(node.at, (TableEntry("secret", node.at, name),))
                return replace(node, value=_VARIABLE.sub(self._one, text))
            case Items():
                items = (part for item in node.items for part in self._item(item))
                return replace(node, items=tuple(items))
            case Table():
                kept = (entry for entry in node.entries if not self._is_left_out(entry.value))
                entries = (replace(e, value=self.filled(e.value, e.name)) for e in kept)
                return replace(node, entries=tuple(entries))
        return node

    def _item(self, item: Tree) -> Iterator[Tree]:
        """Yield the arguments that one stands for: an option may have several values, or none."""
        option = self._whole(item.value) if isinstance(item, Leaf) else None
        if option is None or not isinstance(item, Leaf):
            yield self.filled(item)
        elif not self._is_left_out(item):
            texts = [_VARIABLE.sub(self._place, text) for text in _default(option)]
            for text in texts or [_VARIABLE.sub(self._one, str(item.value))]:
                yield _leaf(item.at, text)

    def _whole(self, value: object) -> Tree | None:
        """Return the option that a text is nothing but the value of."""
        found = _VARIABLE.fullmatch(value) if isinstance(value, str) else None
        return self._option(found[2]) if found is not None and found[2] else None

    def _option(self, name: str) -> Tree | None:
        return find(self._options, [name]) if self._options is not None else None

    def _is_left_out(self, node: Tree) -> bool:
        """Return whether a value is that of an option that no one has to set."""
        option = self._whole(node.value) if isinstance(node, Leaf) else None
        return option is not None and not _is(option, "required") and not _default(option)

    def _one(self, match: re.Match[str]) -> str:
        if not match[2]:
            return self._place(match)
        option = self._option(match[2])
        values = [] if option is None else _default(option)
        if len(values) == 1:
            return _VARIABLE.sub(self._place, values[0])
        return f"${{{reference_name(match[2])}}}"

    def _place(self, match: re.Match[str]) -> str:
        if match[1] == "__dirname":
            return self._folder
        return match[0] if match[2] else f"${{HOME}}/{match[1].title()}"


def _default(option: Tree) -> list[str]:
    node = find(option, ["default"])
    items = node.items if isinstance(node, Items) else (node,)
    return [leaf.text for leaf in items if isinstance(leaf, Leaf) and leaf.value is not None]


def _is(option: Tree, key: str) -> bool:
    node = find(option, [key])
    return isinstance(node, Leaf) and node.value is True


def _leaf(at: Position, text: str) -> Leaf:
    return Leaf(at, text, text)
