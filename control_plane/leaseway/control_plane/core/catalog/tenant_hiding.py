"""Hides a server from a tenant until the tenant's own variant of it is up.

The common variant may expose what the tenant's rules hide. If both variants have the same launch
hash, the tenant's variant uses the listing of the common one instead.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping

from leaseway.control_plane.core.catalog.listing import ServerListing
from leaseway.control_plane.core.catalog.variants import LastKnownGood, Served, build_good
from leaseway.spec.kinds.table import hidden_spec
from leaseway.spec.model import ServerSpec, VariantKey


class TenantSpecs:
    """The desired tenant variants, by server."""

    def __init__(self, desired: Iterable[ServerSpec] = ()) -> None:
        self._by_server: dict[str, list[ServerSpec]] = {}
        for spec in desired:
            if spec.key.tenant and not spec.hidden:
                self._by_server.setdefault(spec.key.server_id, []).append(spec)

    def of(self, server_id: str) -> Iterable[ServerSpec]:
        return self._by_server.get(server_id, ())

    def withheld(self, last_known_good: Container[VariantKey]) -> Iterator[VariantKey]:
        """Yield the variants that were never up, of servers whose common variant was."""
        for server_id, specs in self._by_server.items():
            if VariantKey(server_id) in last_known_good:
                yield from (spec.key for spec in specs if spec.key not in last_known_good)


def common_key(key: VariantKey) -> VariantKey:
    """Return the key of the variant for tenants without their own."""
    return VariantKey(key.server_id)


def hidden_variant(key: VariantKey) -> LastKnownGood:
    """Return an empty variant that hides a server from a tenant, also on workers."""
    good, _ = build_good(hidden_spec(key), ServerListing())
    return good


def hides_temporarily(served: Served | None, desired: Mapping[VariantKey, ServerSpec]) -> bool:
    """Return whether a variant hides a server only until the tenant's own variant is up."""
    if served is None or not served.spec.hidden:
        return False
    wanted = desired.get(served.key)
    return wanted is not None and not wanted.hidden
