"""The built-in `mcp_admin` toolset in the registry.

A tenant's view contains it if the tenant has a leased server, as its tools only release leases
(design.md#leases).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from leaseway.control_plane.core.catalog.listing import ListedItem, ServerListing
from leaseway.control_plane.core.catalog.variants import ExposedName, Hashes, Served
from leaseway.spec.model import Part, ServerSpec, VariantKey
from leaseway.wire.messages.admin import ADMIN_TOOLSET, TOOL_DEFINITIONS

_LISTING: Final = ServerListing(
    tuple(ListedItem(name, definition) for name, definition in TOOL_DEFINITIONS.items())
)

ADMIN: Final = Served(
    spec=ServerSpec(VariantKey(ADMIN_TOOLSET), "", Part(), truely_stateless=True),
    hashes=Hashes("", "", _LISTING.digest),
    listing=_LISTING,
    exposed=tuple(ExposedName(name, name) for name in TOOL_DEFINITIONS),
)
"""Equal for every tenant, and of no kind; never sent to workers, which have it built in."""


def add_admin_toolset(servers: Mapping[str, Served]) -> Mapping[str, Served]:
    """Add the toolset to a tenant's servers if any of them is leased."""
    if all(served.spec.truely_stateless for served in servers.values()):
        return servers
    return dict(sorted({**servers, ADMIN_TOOLSET: ADMIN}.items()))
