"""What servers show to each MCP client: some list by what a client has declared. Pure.

The registry records what a server lists to a client that has declared everything. What an instance
that a client has leased does not list is learned from its worker, and holds for every session of
the same client: the same program with the same version and capabilities.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from leaseway.front.lists.definitions import WITH_URIS, PagedListing
from leaseway.front.lists.ui_resources import for_client
from leaseway.sdk import Prompt, Resource, ResourceTemplate, Tool
from leaseway.wire.sharing.newest import Newest

_MAX_CLIENTS: Final = 256
"""Clients of which something is known; the one that was told of longest ago is forgotten."""
_MAX_SERVERS: Final = 256
"""Servers that show a client less, of which that is known: for each kind of list."""
_MAX_LISTINGS: Final = 16
"""Lists of one client that are kept."""


class _Client:
    """What one client does not see: by the kind of list and the server, the server's own names."""

    def __init__(self) -> None:
        self.absent: dict[str, dict[str, frozenset[str]]] = {}
        self.listings: dict[int, tuple[PagedListing[Any], PagedListing[Any]]] = {}


class SeenLists:
    """The tools, prompts, resources and templates that clients do not see."""

    def __init__(self) -> None:
        self._clients: Newest[bytes, _Client] = Newest(_MAX_CLIENTS)

    def learn(
        self, server: str, client: bytes, absent: Mapping[str, Collection[str] | None]
    ) -> list[str]:
        """Remember what a server does not show to a client; return the kinds for which it is new.

        Args:
            server: The server.
            client: The client, as `McpClient.encoded`.
            absent: By kind of list, the server's own names, URIs or URI templates; None where that
                is unknown.
        """
        told = {kind: frozenset(names) for kind, names in absent.items() if names is not None}
        known = self._clients.get(client)
        before = known.absent if known is not None else {}
        changed = [
            kind
            for kind, names in told.items()
            if names != before.get(kind, {}).get(server, frozenset())
        ]
        if not changed:
            return []
        if known is None:
            known = _Client()
        self._clients[client] = known
        known.listings.clear()
        for kind in changed:
            servers = known.absent.setdefault(kind, Newest(_MAX_SERVERS))
            if told[kind]:
                servers[server] = told[kind]
            else:
                servers.pop(server, None)
        return changed

    def forget(self, kind: str, servers: Iterable[str]) -> None:
        """Forget what is known of servers whose list of a kind has changed."""
        for known in self._clients.values():
            known.listings.clear()
            for server in servers:
                known.absent.get(kind, {}).pop(server, None)

    def visible(
        self, kind: str, listing: PagedListing[Any], client: bytes, scope: str = ""
    ) -> PagedListing[Any]:
        """Return a list without what a client does not see.

        Args:
            kind: The kind of the list.
            listing: The list.
            client: The client, as `McpClient.encoded`, or empty.
            scope: The server to which the list is limited; empty means all.
        """
        known = self._clients.get(client)
        absent = known.absent.get(kind) if known is not None else None
        if known is None or not absent:
            return listing
        cached = known.listings.get(id(listing))
        if cached is None or cached[0] is not listing:
            if len(known.listings) >= _MAX_LISTINGS:
                known.listings.clear()
            listed = _of_all(absent) if kind in WITH_URIS and not scope else absent
            cached = known.listings[id(listing)] = (listing, _without(listing, listed))
        return cached[1]


def _of_all(absent: Mapping[str, Iterable[str]]) -> dict[str, frozenset[str]]:
    """Return what is absent by the URIs that a client of all servers is listed."""
    return {
        server: frozenset(for_client(name, server) for name in names)
        for server, names in absent.items()
    }


def _own_name(item: object) -> str:
    match item:
        case Tool() | Prompt():
            return item.original_name
        case Resource():
            return item.uri
        case ResourceTemplate():
            return item.uri_template
        case _:
            return ""  # an own tool of the front


def _without(
    listing: PagedListing[Any], absent: Mapping[str, Collection[str]]
) -> PagedListing[Any]:
    items = {
        key: item
        for key, item in listing.items.items()
        if not (name := _own_name(item)) or name not in absent.get(item.server_id, ())
    }
    hidden = listing.items.keys() - items.keys()
    pairs = [
        (key, definition)
        for key, definition in zip(listing.keys, listing.encoded, strict=True)
        if key not in hidden
    ]
    keys, encoded = tuple(key for key, _ in pairs), tuple(definition for _, definition in pairs)
    return replace(listing, items=items, keys=keys, encoded=encoded)
