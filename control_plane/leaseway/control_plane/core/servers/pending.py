"""The variants without a first result, which callers wait for and operators see.

Thousands of servers may start at once while many callers wait, and each result is an event. So an
event costs the variants that it concerns, and only a new commit or configuration costs all.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Final, Protocol

from leaseway.control_plane.core.catalog.snapshot import Snapshot
from leaseway.control_plane.core.catalog.tenant_hiding import hides_temporarily
from leaseway.control_plane.core.servers.servers import Servers
from leaseway.spec.model import VariantKey

_MAX_TENANTS: Final = 100
"""Tenants whose lists are kept; callers may choose any names without credentials."""


class Commits(Protocol):
    """What of the servers' results is served: the registry."""

    commit_at: float | None
    visible: Snapshot

    @property
    def established(self) -> bool:
        """Whether some worker has acknowledged the newest commit."""


class PendingVariants:
    """Derives from servers and registry which variants are pending.

    Args:
        servers: The servers, with their results.
        registry: What is served.
    """

    def __init__(self, servers: Servers, registry: Commits) -> None:
        self._servers = servers
        self._registry = registry
        self._found: set[VariantKey] = set()
        self._revision = 0
        # For what all of it was computed: what is served, and whether a result may be missing there
        self._computed_for: tuple[Snapshot, bool] | None = None
        self._sorted: tuple[int, list[str]] = (-1, [])
        self._by_tenant: dict[str, tuple[Mapping[str, VariantKey], list[str]]] = {}

    @property
    def variants(self) -> Set[VariantKey]:
        """Those whose first probe has not ended, or whose result is not served yet.

        Do not modify it, and do not keep it over an event.
        """
        self._update()
        return self._found

    @property
    def revision(self) -> int:
        """Another number after each change of `variants`."""
        self._update()
        return self._revision

    @property
    def servers(self) -> list[str]:
        """The sorted ids of the servers with a pending variant; do not modify."""
        self._update()
        if self._sorted[0] != self._revision:
            self._sorted = self._revision, sorted({key.server_id for key in self._found})
        return self._sorted[1]

    def of(self, tenant: str) -> list[str]:
        """Return the sorted ids of the servers whose variant for a tenant is pending.

        Do not modify the list.
        """
        self._update()
        if not self._found:
            return []
        chosen = self._servers.variants_of(tenant)
        kept = self._by_tenant.get(tenant)
        if kept is None or kept[0] is not chosen:
            if len(self._by_tenant) >= _MAX_TENANTS:
                self._by_tenant.clear()
            found = sorted(name for name, key in chosen.items() if key in self._found)
            kept = self._by_tenant[tenant] = chosen, found
        return kept[1]

    def _update(self) -> None:
        servers, registry = self._servers, self._registry
        touched, servers.touched = servers.touched, set()
        unserved = registry.commit_at is not None or not registry.established
        known = self._computed_for
        is_new = known is None or known[0] is not registry.visible or known[1] != unserved
        if touched is None or is_new:
            self._computed_for = registry.visible, unserved
            self._set(self._compute(unserved=unserved))
        elif touched:
            now = {key for key in touched if self._is_pending(key, unserved=unserved)}
            if now != self._found & touched:
                self._set((self._found - touched) | now)

    def _compute(self, *, unserved: bool) -> set[VariantKey]:
        servers, visible = self._servers, self._registry.visible
        working = servers.last_known_good.keys()
        found = {*(servers.desired or ())} - working - servers.failures.keys()
        found -= servers.unplaced.keys()
        if unserved:
            doubtful = visible.hidden & working
            found |= working - visible.served.keys()
            found.update(key for key in doubtful if self._is_pending(key, unserved=True))
        return found

    def _set(self, found: set[VariantKey]) -> None:
        if found != self._found:
            self._found = found
            self._revision += 1
            self._by_tenant.clear()

    def _is_pending(self, key: VariantKey, *, unserved: bool) -> bool:
        servers = self._servers
        if key not in servers.last_known_good:
            return servers.lacks_result(key)
        if not unserved:
            return False
        served = self._registry.visible.served.get(key)
        return served is None or hides_temporarily(served, servers.desired or {})
