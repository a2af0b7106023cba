"""Listing what a server offers besides tools: prompts, resources and templates of resources.

A list that fails costs that list and nothing else.
"""

from __future__ import annotations

import asyncio
from typing import Final

from mcp.shared.exceptions import MCPError
from mcp_types import ServerCapabilities

from leaseway.data_plane.core.listed import NO_OFFERS, Offers
from leaseway.data_plane.mcp.listing import (
    PROMPTS,
    RESOURCES,
    TEMPLATES,
    ListingFailed,
    ListKind,
    list_all,
)
from leaseway.data_plane.mcp.peer import Peer
from leaseway.data_plane.mcp.pending import ConnectionLost, Unanswered

__all__ = ["list_offers"]

_MAX_WHY: Final = 300
"""Characters of a server's error that a warning quotes."""


async def list_offers(
    peer: Peer, capabilities: ServerCapabilities | None, timeout: float, before: Offers = NO_OFFERS
) -> Offers:
    """List all that a server says it has; never fails.

    Args:
        peer: The connection, negotiated.
        capabilities: What the server says of itself.
        timeout: Seconds for all lists together.
        before: What was listed before: a list that fails stays as it was.
    """
    wanted: list[tuple[str, ListKind]] = []
    if capabilities is not None and capabilities.prompts is not None:
        wanted.append(("prompts", PROMPTS))
    if capabilities is not None and capabilities.resources is not None:
        wanted += (("resources", RESOURCES), ("templates", TEMPLATES))
    lists: dict[str, tuple[bytes, ...]] = {}
    gaps: list[str] = []
    left_out: list[str] = []
    until = asyncio.get_running_loop().time() + timeout
    for into, kind in wanted:
        try:
            async with asyncio.timeout_at(until):
                # Said to have some, a server may have none of one kind.
                listed = await list_all(peer, kind, may_be_unknown=True)
            lists[into] = tuple(listed.definitions.values())
            left_out += listed.left_out
        except (ListingFailed, MCPError, TimeoutError) as error:
            gaps.append(f"{kind.method} failed: {_why(error, timeout)}.")
            lists[into] = getattr(before, into)
    return Offers(**lists, gaps=tuple(gaps), left_out=tuple(left_out))


def _why(error: Exception, timeout: float) -> str:
    if isinstance(error, TimeoutError):
        return f"there was no answer within {timeout:g} s"
    if isinstance(error, ConnectionLost | Unanswered):
        return error.fault.message[:_MAX_WHY].rstrip(". ")
    if isinstance(error, MCPError):
        said = f"the server answered with error {error.error.code}: {error.error.message}"
        return said[:_MAX_WHY].rstrip(". ")
    return str(error)
