"""The native configuration file (design.md#configuration)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final

from leaseway.control_plane.config.formats.client_forms import holds_servers
from leaseway.control_plane.config.formats.client_keys import looks_restrictive
from leaseway.control_plane.config.formats.client_places import places_of
from leaseway.control_plane.config.layers.document import (
    Document,
    repeated_root,
    server_entries,
)
from leaseway.control_plane.config.schema.entries import read_defaults
from leaseway.control_plane.config.schema.issues import IssueReason, Where, quoted
from leaseway.control_plane.config.schema.keys import ROOT_KEYS, SERVER_KEYS
from leaseway.control_plane.config.schema.tables import read_table, unique_entries
from leaseway.control_plane.config.tree.yaml_tree import START, Leaf, Table, TableEntry
from leaseway.wire.names import nearest

_MISSPELT: Final = 0.8
"""Similarity from which an unknown key counts as a misspelt one, in a file without known keys."""

_RESOURCE: Final = (
    "This is a resource of Kubernetes, not a configuration: apply it with `kubectl apply -f`. A"
    " control plane with `--config kubernetes=NAMESPACE` reads those of Leaseway."
)
_NO_CONFIGURATION: Final = (
    "This is not a configuration: it has none of the keys 'version', 'servers' and 'defaults', and"
    " no servers of another client, such as 'mcpServers'. Name another file, or begin it with"
    " 'version: 1'."
)


def read_native(root: Table, where: Where) -> Document | None:
    """Read a native file's root."""
    if _is_foreign(root):
        where.fatal(START, IssueReason.WRONG_TYPE, _no_configuration(root))
        return None
    entries = unique_entries(root, where, repeated_root)
    values = read_table(entries, ROOT_KEYS, where, "the file")
    _require_root(entries, where)
    _require_tenants(entries, where)
    _reject_restrictions(entries, where)
    table: Table | None = values.get("servers")
    if table is None:
        return None
    place = where.at_key("servers", table.at)
    servers = tuple(server_entries(table, place))
    return Document(
        form="native",
        root="servers",
        at=table.at,
        servers=servers,
        defaults=read_defaults(where.log, entries, values),
        tenants=values.get("tenants"),
    )


def _is_foreign(root: Table) -> bool:
    """Return whether a file has keys, but no known or misspelt one; many have another `version`.

    The file's content appears in no message: it may be a secret file, named by mistake.
    """
    return bool(root.entries) and not any(
        entry.value.value == 1
        if entry.name == "version" and isinstance(entry.value, Leaf)
        else get_close_matches(entry.name, ROOT_KEYS, 1, _MISSPELT)
        for entry in root.entries
    )


def _no_configuration(root: Table) -> str:
    if {"apiVersion", "kind"} <= {entry.name for entry in root.entries}:
        return _RESOURCE
    path, _ = next(places_of(root), ((), root.at))
    if path or all(holds_servers(Table(root.at, (entry,))) for entry in root.entries):
        place = f"under {quoted('.'.join(path))}" if path else "at its root"
        return (
            f"This is not a configuration. If what it has {place} are MCP servers, copy them to a"
            " JSON file of their own, under 'mcpServers'."
        )
    return _NO_CONFIGURATION


def _require_tenants(entries: Sequence[TableEntry], where: Where) -> None:
    """Reject a file with a mistake in its grants: without them it would grant too much."""
    unknown = [entry.name for entry in entries if entry.name not in ROOT_KEYS]
    misspelt = any(nearest(name, ROOT_KEYS, 1) == ["tenants"] for name in unknown)
    issues = where.log.issues()
    if misspelt or any(
        issue.severity == "error" and re.match(r"tenants\b", issue.key) for issue in issues
    ):
        where.log.broken = True


def _reject_restrictions(entries: Sequence[TableEntry], where: Where) -> None:
    """Reject a file with an unknown key that may restrict its servers, which would run without it.

    That is a key of a server, which holds for no server here, or one that looks like a restriction.
    """
    for entry in entries:
        unknown = entry.name not in ROOT_KEYS
        if unknown and (entry.name in SERVER_KEYS or looks_restrictive(entry.name)):
            message = (
                f"{quoted(entry.name)} beside 'servers' would restrict none of them, so the file is"
                " refused. Write it in each server that it is for."
            )
            where.child(entry).fatal(entry.at, IssueReason.UNKNOWN_KEY, message)


def _require_root(entries: Sequence[TableEntry], where: Where) -> None:
    present = {entry.name for entry in entries}
    for name, message in (
        ("version", "'version' is missing; write 'version: 1'."),
        ("servers", "'servers' is missing; write 'servers: {}' for none."),
    ):
        if name not in present:
            where.log.broken = True
            where.missing(START, name, message)
