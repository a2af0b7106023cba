"""Leaseway's own toolset, as the registry knows it: served by workers, configured by nobody.

It is in a tenant's view as soon as that holds a server whose clients are leased, since releasing
one is all that it is for (DESIGN §5).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from leaseway.control_plane.core.catalog.listing import Recorded, ServerListing
from leaseway.control_plane.core.catalog.variants import ExposedName, Hashes, Served
from leaseway.spec.model import ServerSpec, VariantKey
from leaseway.wire.messages.admin import ADMIN_TOOLSET, TOOL_DEFINITIONS

_LISTING: Final = ServerListing(
    tuple(Recorded(name, definition) for name, definition in TOOL_DEFINITIONS.items())
)

ADMIN: Final = Served(
    spec=ServerSpec(VariantKey(ADMIN_TOOLSET), "builtin", truely_stateless=True),
    hashes=Hashes("", "", _LISTING.digest),
    listing=_LISTING,
    exposed=tuple(ExposedName(name, name) for name in TOOL_DEFINITIONS),
)
"""The same for every tenant; it is never sent to workers, which have it built in."""


def add_admin_toolset(servers: Mapping[str, Served]) -> Mapping[str, Served]:
    """Return what a tenant sees of servers, the toolset among them where it has a use."""
    if all(served.spec.truely_stateless for served in servers.values()):
        return servers
    return dict(sorted({**servers, ADMIN_TOOLSET: ADMIN}.items()))
