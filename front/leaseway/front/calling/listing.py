"""The lists that the client of a request sees, with what only its own leases list."""

from __future__ import annotations

from typing import Any

from leaseway.front.calling.requests import Request
from leaseway.front.catalog import CatalogCache
from leaseway.front.lists.definitions import PagedListing
from leaseway.front.sessions.live_session import LiveSession
from leaseway.sdk.relay import LeaseItems, list_lease_items
from leaseway.wire.listing.definitions import ListKind


async def listed_in(
    catalog: CatalogCache, kind: ListKind, request: Request, live: LiveSession | None
) -> PagedListing[Any]:
    """Return the list of all, or that of a session whose leased servers list otherwise.

    Args:
        catalog: The lists of all.
        kind: Which list is meant.
        request: The client's request.
        live: The client's session; None without one.
    """
    scope = request.scope
    listing = await catalog.listing(kind, scope)
    own: list[LeaseItems[Any]] = []
    if live is not None:
        # A session that is continued here may have leases that this front has not used.
        own = await list_lease_items(live.sdk, kind, of_others=live.is_continued)
    if scope:
        own = [lease for lease in own if lease.server_id == scope]
    if live is None or not own:
        return listing
    shown = catalog.visible(kind, listing, request.listener.mcp_client, scope)
    return live.own_lists.over(kind, shown, own, scope)


async def shown_to(
    catalog: CatalogCache, kind: ListKind, request: Request, live: LiveSession | None
) -> PagedListing[Any]:
    """Return that list without what servers do not show to the client.

    The arguments are those of `listed_in`.
    """
    listing = await listed_in(catalog, kind, request, live)
    if listing.is_own:
        return listing
    return catalog.visible(kind, listing, request.listener.mcp_client, request.scope)
