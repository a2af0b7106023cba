"""The built-in `mcp_admin` toolset in the registry, as far as somebody can use it.

A tenant that has a leased server sees `mcp_release` (design.md#leases). Who has not logged in to a
server that acts for people sees `mcp_login` (design.md#tokens-for-remote-servers).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from leaseway.control_plane.core.catalog.listing import ListedItem, ServerListing
from leaseway.control_plane.core.catalog.variants import ExposedName, Hashes, Served
from leaseway.spec.model import Part, ServerSpec, VariantKey
from leaseway.wire.messages.admin import (
    ADMIN_TOOLSET,
    LOGIN_TOOL,
    RELEASE_TOOL,
    TOOL_DEFINITIONS,
    login_definition,
)


def is_admin(served: Served) -> bool:
    """Return whether this is the built-in toolset, which every worker serves."""
    return served.key.server_id == ADMIN_TOOLSET


def add_admin_toolset(
    servers: Mapping[str, Served], without_login: Sequence[str] = ()
) -> Mapping[str, Served]:
    """Add the tools that somebody can use to the servers that it sees.

    Args:
        servers: The servers by id.
        without_login: Those that it can log in to, and has not.
    """
    is_leased = any(not served.spec.truely_stateless for served in servers.values())
    if not is_leased and not without_login:
        return servers
    toolset = _toolset(tuple(without_login), releases=is_leased)
    return dict(sorted({**servers, ADMIN_TOOLSET: toolset}.items()))


@lru_cache(256)
def _toolset(without_login: tuple[str, ...], *, releases: bool) -> Served:
    """Return the toolset. It is of no kind, and never sent to workers, which have it built in."""
    tools = []
    if without_login:
        tools.append(ListedItem(LOGIN_TOOL, login_definition(without_login)))
    if releases:
        tools.append(ListedItem(RELEASE_TOOL, TOOL_DEFINITIONS[RELEASE_TOOL]))
    listing = ServerListing(tuple(tools))
    return Served(
        spec=ServerSpec(VariantKey(ADMIN_TOOLSET), "", Part(), truely_stateless=True),
        hashes=Hashes("", "", listing.digest),
        listing=listing,
        exposed=tuple(ExposedName(tool.name, tool.name) for tool in tools),
    )
