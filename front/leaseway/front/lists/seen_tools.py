"""Which tools servers show to each MCP client: some list by what a client has declared. Pure.

The registry records what a server lists to a client that has declared everything. What an instance
that a client has leased does not list is learned from its worker, and holds for every session of
the same client: the same program with the same version and capabilities.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from leaseway.front.lists.definitions import PagedListing
from leaseway.sdk import Tool

_MAX_CLIENTS: Final = 256
"""Clients of which something is known; the one that was told of longest ago is forgotten."""
_MAX_SERVERS: Final = 256
"""Servers that show a client less, of which that is known."""
_MAX_LISTINGS: Final = 16
"""Lists of one client that are kept."""


class _Client:
    """What one client does not see."""

    def __init__(self) -> None:
        self.absent: dict[str, frozenset[str]] = {}
        self.listings: dict[int, tuple[PagedListing[Any], PagedListing[Any]]] = {}


class SeenTools:
    """The tools that clients do not see."""

    def __init__(self) -> None:
        self._clients: OrderedDict[bytes, _Client] = OrderedDict()

    def learn(self, server: str, client: bytes, absent: Iterable[str]) -> bool:
        """Remember what a server does not show to a client; return whether that is new.

        Args:
            server: The server.
            client: The client, as `McpClient.encoded`.
            absent: The server's own names of its tools.
        """
        names = frozenset(absent)
        known = self._clients.get(client)
        before = known.absent.get(server, frozenset()) if known is not None else frozenset()
        if names == before:
            return False
        if known is None:
            known = self._clients[client] = _Client()
            if len(self._clients) > _MAX_CLIENTS:
                self._clients.popitem(last=False)
        known.listings.clear()
        known.absent.pop(server, None)
        if names:
            known.absent[server] = names
            if len(known.absent) > _MAX_SERVERS:
                del known.absent[next(iter(known.absent))]
        self._clients.move_to_end(client)
        return True

    def forget(self, servers: Iterable[str]) -> None:
        """Forget what is known of servers whose tools have changed."""
        for known in self._clients.values():
            known.listings.clear()
            for server in servers:
                known.absent.pop(server, None)

    def visible(self, listing: PagedListing[Any], client: bytes) -> PagedListing[Any]:
        """Return a list of tools without those that a client does not see."""
        known = self._clients.get(client)
        if known is None or not known.absent:
            return listing
        cached = known.listings.get(id(listing))
        if cached is None or cached[0] is not listing:
            if len(known.listings) >= _MAX_LISTINGS:
                known.listings.clear()
            cached = known.listings[id(listing)] = (listing, _without(listing, known.absent))
        return cached[1]


def _without(listing: PagedListing[Any], absent: dict[str, frozenset[str]]) -> PagedListing[Any]:
    items = {
        key: item
        for key, item in listing.items.items()
        if not isinstance(item, Tool) or item.original_name not in absent.get(item.server_id, ())
    }
    hidden = listing.items.keys() - items.keys()
    pairs = [
        (key, definition)
        for key, definition in zip(listing.keys, listing.encoded, strict=True)
        if key not in hidden
    ]
    keys, encoded = tuple(key for key, _ in pairs), tuple(definition for _, definition in pairs)
    return replace(listing, items=items, keys=keys, encoded=encoded)
