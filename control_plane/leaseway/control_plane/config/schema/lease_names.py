"""Checks `${lease}`, `${session}`, `${tenant}` and `cwd: private` of one server.

See design.md#configuration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from leaseway.control_plane.config.schema.issues import IssueReason, Where, quoted
from leaseway.control_plane.config.schema.keys import SERVER_KEYS
from leaseway.control_plane.config.tree.yaml_tree import Items, Leaf, Table, TableEntry, Tree
from leaseway.spec.lease_names import LEASE, PRIVATE, names_in

_FILLED: Final = sorted(
    f"'{key.name}'" for key in SERVER_KEYS.values() if key.declared.replaces == "lease_names"
)
_MAY: Final = f"{', '.join(_FILLED[:-1])} and {_FILLED[-1]}"


def check_lease_names(server: TableEntry, values: Mapping[str, Any], where: Where) -> None:
    """Report names of a lease where there is no lease, or no place for them."""
    filled: set[str] = set()
    for entry in server.members:
        place = where.child(entry)
        key = SERVER_KEYS.get(entry.name)
        replaces = "nothing" if key is None else key.declared.replaces
        if replaces == "names":
            for name, leaf in _names(entry.value):
                message = (
                    f"{quoted(place.key)} contains ${{{name}}}, which only {_MAY} may. Pass it"
                    " to the server there."
                )
                place.error(leaf.at, IssueReason.REFERENCE_NOT_ALLOWED, message)
        elif replaces == "lease_names":
            for name, leaf in _names(entry.value):
                filled.add(name)
                _check_lease(name, leaf, values, place)
    _check_spares(server, filled, values, where)
    place, at = where.find("cwd", server.at)
    if values.get("cwd") == PRIVATE and "image" in values:
        message = "'cwd: private' is not for 'image': each container has its own files; remove it."
        place.error(at, IssueReason.BAD_VALUE, message)


def _check_lease(name: str, leaf: Leaf, values: Mapping[str, Any], place: Where) -> None:
    if values.get("truely_stateless"):
        message = (
            f"{quoted(place.key)} contains ${{{name}}}, but with 'truely-stateless: true' all"
            " sessions share one client, which belongs to no lease. Remove one of the two."
        )
        place.error(leaf.at, IssueReason.REFERENCE_NOT_ALLOWED, message)


def _check_spares(
    server: TableEntry, filled: set[str], values: Mapping[str, Any], where: Where
) -> None:
    """Report spares of a server whose instances are each started for one session."""
    by_holder = filled - {LEASE}
    if not by_holder:
        return
    name = min(by_holder)
    wanted = {
        "warm": values.get("instances.warm", 0) > 0,
        "start": values.get("instances.start") == "eager",
    }
    for key, is_wanted in wanted.items():
        if is_wanted:
            message = (
                f"'{key}' asks for warm spares, but ${{{name}}} is known only when a session leases"
                f" the server. Remove '{key}', or use ${{{LEASE}}}, which differs for each client."
            )
            place, at = where.find(key, server.at)
            place.error(at, IssueReason.BAD_VALUE, message)


def _names(node: Tree) -> Iterator[tuple[str, Leaf]]:
    match node:
        case Leaf(value=str() as text):
            for name in sorted(names_in([text])):
                yield name, node
        case Items():
            for item in node.items:
                yield from _names(item)
        case Table():
            for entry in node.entries:
                yield from _names(entry.value)
