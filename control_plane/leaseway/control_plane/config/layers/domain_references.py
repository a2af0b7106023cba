"""Which references a tenant's layer may read: those that the system layer grants to it. Pure.

A worker resolves references with its own environment, vault and files, which hold more than one
tenant's; so a domain names what the server has below it anyway, or what `secrets` grants.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Set
from typing import Final, NamedTuple

from leaseway.control_plane.config.schema.policy import Tenants
from leaseway.control_plane.config.tree.yaml_tree import (
    Items,
    Leaf,
    Position,
    Table,
    TableEntry,
    Tree,
)
from leaseway.spec.name_filters import passes
from leaseway.spec.policy import OTHERS
from leaseway.spec.references import references

_KINDS: Final = ("env", "secret", "file")
_VALUES: Final = frozenset({"env", "headers", "config"})


class Reference(NamedTuple):
    """A reference as a file has it."""

    kind: str
    name: str
    at: Position

    @property
    def what(self) -> tuple[str, str]:
        """What it reads: environment and vault are looked up by the same name."""
        return ("file" if self.kind == "file" else "name", self.name)


def references_in(entry: TableEntry) -> Iterator[Reference]:
    """Yield every reference that a server's entry has, wherever it stands in it."""
    for each in entry.value.entries if isinstance(entry.value, Table) else ():
        if each.name in _VALUES and isinstance(each.value, Table):
            for value in each.value.entries:  # a variable may be called `env`, too
                yield from _in(value.value)
        else:
            yield from _in(each.value)


def not_granted(
    entry: TableEntry, below: TableEntry, tenant: str, tenants: Tenants | None
) -> Iterator[Reference]:
    """Yield the references of a domain's entry that its tenant may not read."""
    known: Set[tuple[str, str]] = {one.what for one in references_in(below)}
    granted = _granted(tenant, tenants)
    for one in references_in(entry):
        if one.what in known:
            continue
        odd_path = one.kind == "file" and posixpath.normpath(one.name) != one.name
        if odd_path or not granted or not passes(one.name, granted, ()):
            yield one


def _granted(tenant: str, tenants: Tenants | None) -> tuple[str, ...]:
    config = (tenants or {}).get(tenant) or (tenants or {}).get(OTHERS)
    return config.secrets if config is not None else ()


def _in(tree: Tree | None) -> Iterator[Reference]:
    match tree:
        case Leaf():
            for name, _ in references(tree.text if isinstance(tree.value, str) else ""):
                yield Reference("env", name, tree.at)
        case Items():
            for item in tree.items:
                yield from _in(item)
        case Table():
            for each in tree.entries:
                is_one = len(tree.entries) == 1 and each.name in _KINDS
                if is_one and isinstance(each.value, Leaf):
                    yield Reference(each.name, each.value.text, each.at)
                else:
                    yield from _in(each.value)
