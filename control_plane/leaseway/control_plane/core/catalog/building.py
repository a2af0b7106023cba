"""Builds the snapshot of each commit from the last one.

Names are shared out again only for servers that have changed, and for those whose names have
another owner by that: a commit costs little for each server that stays, of which there may be
10,000.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Set
from typing import Final

from leaseway.control_plane.core.catalog.exposure import ClashResult, resolve_clashes
from leaseway.control_plane.core.catalog.kinds import PROMPTS, TOOLS, NamedKind
from leaseway.control_plane.core.catalog.snapshot import Snapshot
from leaseway.control_plane.core.catalog.tenant_hiding import hidden_variant
from leaseway.control_plane.core.catalog.variants import (
    LastKnownGood,
    Served,
    SkippedNames,
    serve,
)
from leaseway.control_plane.core.problems import Problem
from leaseway.spec.model import VariantKey

Pairs = tuple[tuple[str, str], ...]
"""(original, exposed name) of what a server wants to expose."""
_NOTHING_LOST: Final[tuple[SkippedNames, tuple[Problem, ...]]] = (frozenset(), ())


class SnapshotBuilder:
    """Builds one snapshot after another; what it keeps changes no result."""

    def __init__(self) -> None:
        self._common: dict[str, LastKnownGood] = {}
        self._served: dict[str, Served] = {}
        self._names = {kind: _Names(kind) for kind in (TOOLS, PROMPTS)}

    def build(
        self,
        version: int,
        works: Mapping[VariantKey, LastKnownGood],
        withheld: Collection[VariantKey] = (),
    ) -> tuple[Snapshot, tuple[Problem, ...]]:
        """Resolve name clashes between working variants; return the snapshot and their problems.

        Args:
            version: The snapshot's version.
            withheld: Tenant variants that have never worked; their servers are hidden from the
                tenants.
        """
        self._update({key.server_id: good for key, good in works.items() if not key.tenant})
        problems = [problem for names in self._names.values() for problem in names.problems]
        served = {served.key: served for served in self._served.values()}
        of_tenants = {key: good for key, good in works.items() if key.tenant}
        of_tenants |= {key: hidden_variant(key) for key in withheld}
        if of_tenants:
            more, theirs = self._build_of_tenants(of_tenants)
            served |= more
            problems += theirs
        return Snapshot(version, dict(sorted(served.items()))), tuple(problems)

    def _update(self, common: dict[str, LastKnownGood]) -> None:
        """Share out the names of the common variants."""
        before, self._common = self._common, common
        changed = {
            server_id: good
            for server_id, good in common.items()
            if before.get(server_id) is not good
        }
        gone = before.keys() - common.keys()
        affected = set(changed)
        for names in self._names.values():
            wanted = {server_id: good.names(names.kind) for server_id, good in changed.items()}
            affected |= names.update({**wanted, **dict.fromkeys(gone, ())})
        for server_id in gone:
            del self._served[server_id]
        for server_id in affected & common.keys():
            tools, prompts = (names.lost_by(server_id) for names in self._names.values())
            self._served[server_id] = serve(common[server_id], tools, prompts)

    def _build_of_tenants(
        self, variants: Mapping[VariantKey, LastKnownGood]
    ) -> tuple[dict[VariantKey, Served], list[Problem]]:
        """Share out the names of tenants' own variants, beside the common ones."""
        by_tenant: dict[str, dict[str, LastKnownGood]] = {}
        for key, good in sorted(variants.items()):
            by_tenant.setdefault(key.tenant, {})[key.server_id] = good
        clashes = {kind: _TenantClashes(names) for kind, names in self._names.items()}
        served: dict[VariantKey, Served] = {}
        problems: list[Problem] = []
        for _, own in sorted(by_tenant.items()):
            skipped: list[SkippedNames] = []
            for kind in (TOOLS, PROMPTS):
                names = {
                    server_id: some for server_id, good in own.items() if (some := good.names(kind))
                }
                found = clashes[kind].resolve(own, names)
                problems.extend(found.problems)
                skipped.append(found.skipped)
            served |= {good.spec.key: serve(good, *skipped) for good in own.values()}
        return served, problems


class _Names:
    """Who wants and who owns each name of one kind, of the common variants."""

    def __init__(self, kind: NamedKind) -> None:
        self.kind = kind
        self._pairs: dict[str, Pairs] = {}
        self._wanting: dict[str, set[str]] = {}
        self._owner: dict[str, str] = {}
        self._lost: dict[str, tuple[SkippedNames, tuple[Problem, ...]]] = {}

    @property
    def problems(self) -> Iterable[Problem]:
        """A warning for each name that a server lost, ordered by server."""
        return (problem for _, (_, found) in sorted(self._lost.items()) for problem in found)

    def wanting(self, name: str) -> Set[str]:
        """Return the servers that want a name."""
        return self._wanting.get(name, frozenset())

    def lost_by(self, server_id: str) -> SkippedNames:
        """Return (server id, original name) of what a server does not expose."""
        return self._lost.get(server_id, _NOTHING_LOST)[0]

    def update(self, changed: Mapping[str, Pairs]) -> Set[str]:
        """Replace what some servers want; return the servers that may have lost others names."""
        touched: set[str] = set()
        for server_id, pairs in changed.items():
            for _, name in self._pairs.pop(server_id, ()):
                touched.add(name)
                self._wanting[name].discard(server_id)
            for _, name in pairs:
                touched.add(name)
                self._wanting.setdefault(name, set()).add(server_id)
            if pairs:
                self._pairs[server_id] = pairs
        affected = set(changed)
        for name in touched:
            wanting = self._wanting[name]
            if not wanting:
                del self._wanting[name]
                del self._owner[name]
                continue
            owner = min(wanting)
            if owner != self._owner.get(name):
                self._owner[name] = owner
                affected |= wanting
        for server_id in affected:
            lost = self._resolve(server_id, self._pairs.get(server_id, ()))
            if lost[0]:
                self._lost[server_id] = lost
            else:
                self._lost.pop(server_id, None)
        return affected

    def _resolve(self, server_id: str, pairs: Pairs) -> tuple[SkippedNames, tuple[Problem, ...]]:
        rivals: dict[str, list[tuple[str, str]]] = {}
        for original, name in pairs:
            owner = self._owner[name]
            if owner != server_id:
                rivals.setdefault(owner, []).append((original, name))
        names = {name for _, name in pairs}
        if not rivals and len(names) == len(pairs) and self.kind.reserved.isdisjoint(names):
            return _NOTHING_LOST
        found = resolve_clashes({**rivals, server_id: pairs}, self.kind)
        return (
            frozenset(lost for lost in found.skipped if lost[0] == server_id),
            tuple(problem for problem in found.problems if problem.server_id == server_id),
        )


class _TenantClashes:
    """Resolves the names of one kind of tenants' own variants.

    Only these are resolved again for a tenant, against the common ones that want one of their
    names, and only once for tenants whose variants expose the same: a commit does not cost tenants
    × tools.
    """

    def __init__(self, common: _Names) -> None:
        self._common = common
        self._resolved: dict[object, ClashResult] = {}

    def resolve(self, own: Collection[str], names: Mapping[str, Pairs]) -> ClashResult:
        """Return who has the names of a tenant's own variants.

        Args:
            own: The servers of which the tenant has its own variant.
            names: What those variants expose: (original, exposed name) by server id.
        """
        key = tuple(own), tuple((server_id, id(pairs)) for server_id, pairs in names.items())
        found = self._resolved.get(key)
        if found is None:
            rivals = self._rivals(own, names)
            found = self._resolved[key] = resolve_clashes({**rivals, **names}, self._common.kind)
        return found

    def _rivals(
        self, own: Container[str], names: Mapping[str, Iterable[tuple[str, str]]]
    ) -> dict[str, list[tuple[str, str]]]:
        """Return what common variants of other servers expose of a tenant's own names."""
        found: dict[str, list[tuple[str, str]]] = {}
        for name in {name for pairs in names.values() for _, name in pairs}:
            for server_id in self._common.wanting(name):
                if server_id not in own:
                    found.setdefault(server_id, []).append((name, name))
        return found
