"""One server's entry on top of another's, key by key (DESIGN §2)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from leaseway.control_plane.config.keys import SERVER_KEYS
from leaseway.control_plane.config.positions import Entry, Leaf, Table

__all__ = ["merged"]

_BY_NAME: Final = frozenset({"env", "headers"})
"""Keys whose mappings are merged name by name; of all others the upper value is taken whole."""


def merged(below: Entry, above: Entry) -> Entry:
    """Return an entry with what another says put over it.

    What either repeats stays repeated, for the reader to report. A transport of another kind
    takes along the keys below that it has no use for.
    """
    if not isinstance(below.value, Table) or not isinstance(above.value, Table):
        return replace(below, value=above.value)
    entries = _usable(below.value.entries, above.value)
    upper = {entry.name: entry for entry in above.value.entries}
    kept = [_under(entry, upper.pop(entry.name, None)) for entry in entries]
    taken = {entry.name for entry in kept if entry.name in _BY_NAME}
    names = {entry.name for entry in above.value.entries}
    lower = [entry for entry in kept if entry.name not in names or entry.name in taken]
    added = [entry for entry in above.value.entries if entry.name not in taken]
    return replace(below, value=replace(below.value, entries=(*lower, *added)))


def _under(below: Entry, above: Entry | None) -> Entry:
    if above is None or below.name not in _BY_NAME:
        return below
    if not isinstance(below.value, Table) or not isinstance(above.value, Table):
        return above
    names = {entry.name for entry in above.value.entries}
    kept = (entry for entry in below.value.entries if entry.name not in names)
    return replace(below, value=replace(below.value, entries=(*kept, *above.value.entries)))


def _usable(entries: Iterable[Entry], above: Table) -> list[Entry]:
    transport = _transport(above.entries)
    if transport is None or transport == _transport(entries := list(entries)):
        return list(entries)
    return [
        entry
        for entry in entries
        if (key := SERVER_KEYS.get(entry.name)) is None or key.is_for(str(transport))
    ]


def _transport(entries: Iterable[Entry]) -> object:
    for entry in entries:
        if entry.name == "transport" and isinstance(entry.value, Leaf):
            return entry.value.value
    return None
