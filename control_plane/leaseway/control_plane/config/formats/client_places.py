"""Finds servers of clients in places of a file that are not read, so that no one misses them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from leaseway.control_plane.config.formats.client_forms import holds_servers
from leaseway.control_plane.config.formats.tool_rules import folded
from leaseway.control_plane.config.tree.yaml_tree import Items, Position, Table, TableEntry, Tree

Place = tuple[tuple[str, ...], Position]
"""The keys that lead to servers, and where they are."""

_DEPTH: Final = 5
_ENTRIES: Final = 5_000
"""How many keys of a file are looked at."""
_CONTAINERS: Final = frozenset(
    {
        *("contextservers", "modelcontextprotocolservers"),
        *("stdioservers", "sseservers", "httpservers", "shttpservers", "streamablehttpservers"),
    }
)


def places_of(root: Table) -> Iterator[Place]:
    """Yield the places that hold servers by their names and content, `mcpservers` included."""
    left = _ENTRIES
    level: list[tuple[tuple[str, ...], TableEntry]] = [((), entry) for entry in root.entries]
    for _ in range(_DEPTH):
        deeper: list[tuple[tuple[str, ...], TableEntry]] = []
        for above, entry in level[:left]:
            path = (*above, entry.name)
            if _is_container(path) and _holds(entry.value):
                yield path, entry.at
            else:
                deeper += [(path, member) for member in entry.members]
        left -= len(level)
        if left <= 0:
            return
        level = deeper


def _is_container(path: tuple[str, ...]) -> bool:
    name = folded(path[-1])
    is_below_mcp = name.endswith("servers") and len(path) > 1 and "mcp" in folded(path[-2])
    is_list = path == ("mcp",)  # where opencode has a mapping
    return is_below_mcp or is_list or "mcpserver" in name or name in _CONTAINERS


def _holds(node: Tree) -> bool:
    if isinstance(node, Items):
        entries = (TableEntry("", item.at, item) for item in node.items)
        return holds_servers(Table(node.at, tuple(entries))) or any(map(holds_servers, node.items))
    return holds_servers(node)
