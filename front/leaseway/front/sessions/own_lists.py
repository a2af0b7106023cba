"""In what the leased servers of one session list otherwise than to all sessions.

Only the worker of a lease knows it. It tells that a list has changed, and the list is read from it
whenever the client lists.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Final, Literal

import msgspec

from leaseway.front.lists.definitions import (
    LISTINGS,
    WITH_URIS,
    PagedListing,
)
from leaseway.front.lists.ui_resources import for_client, items_for_client
from leaseway.front.protocol.handshake import Declared
from leaseway.front.protocol.messages import encode, notification
from leaseway.sdk import Tool
from leaseway.sdk.relay import LeaseItems, with_lease_items
from leaseway.wire.listing.definitions import ListKind

ChangedList = Literal["tools", "prompts", "resources"]
"""A list by the name that its notification has; templates are told with resources."""

CHANGED_LISTS: Final[Mapping[str, ChangedList]] = {
    "tools": "tools",
    "prompts": "prompts",
    "resources": "resources",
    "templates": "resources",
}
"""The `list_changed` notification for each kind of list."""


class ToldDigests(msgspec.Struct):
    """The part of a `ListedToClient` that holds for one session."""

    own: str = ""
    own_prompts: str = ""
    own_resources: str = ""


_Made = tuple[PagedListing[Any], tuple[str, ...], PagedListing[Any]]
"""A list of all, the digests of the leases that differ, and what was made of both."""


class OwnLists:
    """What a front knows of the own lists of one session."""

    def __init__(self) -> None:
        self._digests: dict[ChangedList, dict[str, str]] = {
            "tools": {},
            "prompts": {},
            "resources": {},
        }
        self._made: dict[ListKind, _Made] = {}

    def learn(self, server: str, told: ToldDigests) -> list[ChangedList]:
        """Remember the digests that a worker has told; return the lists for which one is new."""
        news: dict[ChangedList, str] = {
            "tools": told.own,
            "prompts": told.own_prompts,
            "resources": told.own_resources,
        }
        changed: list[ChangedList] = []
        for kind, digest in news.items():
            known = self._digests[kind].pop(server, "")
            if digest:
                self._digests[kind][server] = digest
            if digest != known:
                changed.append(kind)
        return changed

    def forget(self, held: Collection[str]) -> list[ChangedList]:
        """Forget what leases had that have ended; return the lists for which that is a change.

        Args:
            held: The servers whose leases the session still has.
        """
        changed: list[ChangedList] = []
        for kind, digests in self._digests.items():
            ended = digests.keys() - held
            for server in ended:
                del digests[server]
            if ended:
                changed.append(kind)
        self._made.clear()
        return changed

    def over(
        self,
        kind: ListKind,
        common: PagedListing[Any],
        own: Collection[LeaseItems[Any]],
        scope: str = "",
    ) -> PagedListing[Any]:
        """Return a list with that in which leases differ.

        Args:
            kind: Which list it is.
            common: What all sessions of the client see.
            own: Of the leases that differ, at least one.
            scope: The server to which the list is limited; empty means all.
        """
        digests = tuple(sorted(f"{lease.server_id} {lease.digest}" for lease in own))
        known = self._made.get(kind)
        if known is None or known[0] is not common or known[1] != digests:
            shown = own if scope else [_for_client(kind, lease) for lease in own]
            seen = with_lease_items(kind, common.items.values(), shown)
            listing = replace(LISTINGS[kind](seen), ttl=common.ttl, is_own=True)
            known = self._made[kind] = common, digests, listing
        return known[2]

    def find(self, name: str) -> Tool | None:
        """Return a tool of the list that was made last, by its name or its qualified name."""
        known = self._made.get("tools")
        if known is None:
            return None
        listing: PagedListing[Tool] = known[2]
        return listing.items.get((name,)) or listing.qualified.get(name)


def may_tell(declared: Declared | None, kind: str) -> bool:
    """Return whether a client may be told that a list of a kind has changed.

    Without the capability it may not, as clients such as Java's read the list then, and fail.

    Args:
        declared: What `initialize` declared to it; None if that is not known.
        kind: The kind of the list.
    """
    name = CHANGED_LISTS[kind]
    return name == "tools" or declared is None or name in declared.capabilities


def changed_notification(kind: str, meta: Mapping[str, Any] | None = None) -> bytes:
    """Return the notification that a list of a kind has changed."""
    params = encode({"_meta": meta}) if meta else b"{}"
    return notification(f"notifications/{CHANGED_LISTS[kind]}/list_changed", params)


def _for_client(kind: ListKind, lease: LeaseItems[Any]) -> LeaseItems[Any]:
    """Return what a lease lists with the URIs that a client of all servers knows."""
    absent = lease.absent
    if kind in WITH_URIS:
        absent = frozenset(for_client(uri, lease.server_id) for uri in absent)
    return replace(lease, items=tuple(items_for_client(lease.items)), absent=absent)
