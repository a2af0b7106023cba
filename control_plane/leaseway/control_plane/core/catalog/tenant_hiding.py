"""What a tenant has while its own variant of a server was never up: never what others have.

The common variant shows what the tenant's rules may hide. So the server is hidden from the tenant
until its own variant is up, or has the common one's listing if it is launched in the same way.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping

from leaseway.control_plane.core.catalog.listing import ServerListing
from leaseway.control_plane.core.catalog.variants import LastKnownGood, Served, build_good
from leaseway.spec.model import ServerSpec, VariantKey, hidden_from


class TenantSpecs:
    """The variants of their own that tenants are to have, by server."""

    def __init__(self, desired: Iterable[ServerSpec] = ()) -> None:
        self._by_server: dict[str, list[ServerSpec]] = {}
        for spec in desired:
            if spec.key.tenant and not spec.hidden:
                self._by_server.setdefault(spec.key.server_id, []).append(spec)

    def of(self, server_id: str) -> Iterable[ServerSpec]:
        return self._by_server.get(server_id, ())

    def withheld(self, last_known_good: Container[VariantKey]) -> Iterator[VariantKey]:
        """Yield those that were never up, of servers whose common variant was."""
        for server_id, specs in self._by_server.items():
            if VariantKey(server_id) in last_known_good:
                yield from (spec.key for spec in specs if spec.key not in last_known_good)


def common_key(key: VariantKey) -> VariantKey:
    """Return the variant of those tenants that have none of their own."""
    return VariantKey(key.server_id)


def hidden_variant(key: VariantKey) -> LastKnownGood:
    """Return what hides a server from a tenant: workers have it too, and run nothing for it."""
    good, _ = build_good(hidden_from(key), ServerListing())
    return good


def hides_temporarily(served: Served | None, desired: Mapping[VariantKey, ServerSpec]) -> bool:
    """Return whether something hides a server from a tenant only until its own variant is up."""
    if served is None or not served.spec.hidden:
        return False
    wanted = desired.get(served.key)
    return wanted is not None and not wanted.hidden
