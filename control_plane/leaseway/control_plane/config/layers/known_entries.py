"""What the entries of a configuration were read as, for the next one, of which most are the same.

An entry is read again only if it has changed. What was read of an unchanged one is what would be
read again, at other lines, if reading it depended on nothing else and found no mistake.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from leaseway.control_plane.config.schema.entries import Defaults
from leaseway.control_plane.config.schema.issues import IssueLog
from leaseway.control_plane.config.tree.yaml_tree import (
    Items,
    Leaf,
    Position,
    Table,
    TableEntry,
    Tree,
)
from leaseway.spec.model import ServerSpec, VariantKey

Places = Mapping[str, Position]


@dataclass(frozen=True)
class Context:
    """What reading an entry depends on beside the entry: its file, the key of all, the defaults."""

    file: str
    root: str
    defaults: Defaults


@dataclass(frozen=True)
class _Known:
    entry: TableEntry
    context: Context
    spec: ServerSpec | None
    places: Places
    origins: Places

    def moved(self, entry: TableEntry, lines: int) -> _Known:
        """Return the same, read from an equal entry that many lines below."""
        moved = {at: replace(at, line=at.line + lines) for at in set(self.places.values())}
        return replace(
            self,
            entry=entry,
            places={path: moved[at] for path, at in self.places.items()},
            origins={path: moved[at] for path, at in self.origins.items()},
        )


class KnownEntries:
    """The entries of the newest configuration. It is no state: parsing gives the same without it.

    One thread at a time may use it.
    """

    def __init__(self) -> None:
        self._before: dict[VariantKey, _Known] = {}
        self._now: dict[VariantKey, _Known] = {}

    def begin(self) -> None:
        """Begin another configuration; forget the entries that the last one lacked."""
        self._before, self._now = self._now, {}

    def find(self, key: VariantKey, entry: TableEntry, context: Context) -> _Known | None:
        """Return what a variant's entry was read as, unless it must be read."""
        known = self._before.get(key)
        if known is None or known.context != context:
            return None
        lines = entry.at.line - known.entry.at.line
        if not _is_same_entry(known.entry, entry, lines):
            return None
        found = self._now[key] = known.moved(entry, lines) if lines else known
        return found

    def record(
        self,
        key: VariantKey,
        entry: TableEntry,
        context: Context,
        log: IssueLog,
        spec: ServerSpec | None,
        origins: Places,
    ) -> None:
        """Remember what an entry was read as; its log must have been empty before."""
        if log.is_repeatable:
            prefix = f"{context.root}.{entry.name}"
            places = {
                path: at
                for path, at in log.places.items()
                if path == prefix or path.startswith(f"{prefix}.")
            }
            self._now[key] = _Known(
                entry=entry, context=context, spec=spec, places=places, origins=origins
            )


def _is_same_entry(old: TableEntry, new: TableEntry, lines: int) -> bool:
    return (
        old.name == new.name
        and _is_same_place(old.at, new.at, lines)
        and _is_same(old.value, new.value, lines)
    )


def _is_same(old: Tree, new: Tree, lines: int) -> bool:
    """Return whether two trees differ in nothing but their lines, all by the same number."""
    if not _is_same_place(old.at, new.at, lines):
        return False
    match old, new:
        case Leaf(), Leaf():
            return old.text == new.text and type(old.value) is type(new.value)
        case Table(), Table():
            return len(old.entries) == len(new.entries) and all(
                _is_same_entry(before, now, lines)
                for before, now in zip(old.entries, new.entries, strict=True)
            )
        case Items(), Items():
            return len(old.items) == len(new.items) and all(
                _is_same(before, now, lines)
                for before, now in zip(old.items, new.items, strict=True)
            )
        case _:
            return False


def _is_same_place(old: Position, new: Position, lines: int) -> bool:
    return old.line + lines == new.line and old.column == new.column and old.file == new.file
