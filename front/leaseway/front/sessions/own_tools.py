"""The tools in which the leased servers of one session differ from those that all sessions see.

Only the worker of a lease knows them. It tells that they have changed, and they are read from it
whenever the client lists.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from leaseway.front.lists.definitions import PagedListing, tool_listing
from leaseway.sdk import Tool
from leaseway.sdk.relay import LeaseTools, with_lease_tools


class OwnTools:
    """What a front knows of the own tools of one session."""

    def __init__(self) -> None:
        self._digests: dict[str, str] = {}
        self._made: tuple[PagedListing[Tool], tuple[str, ...], PagedListing[Tool]] | None = None

    def learn(self, server: str, digest: str) -> bool:
        """Remember the digest that a worker has told; return whether it is new."""
        known = self._digests.pop(server, "")
        if digest:
            self._digests[server] = digest
        return digest != known

    def forget(self, held: Collection[str]) -> bool:
        """Forget what leases had that have ended; return whether that is a change.

        Args:
            held: The servers whose leases the session still has.
        """
        ended = self._digests.keys() - held
        for server in ended:
            del self._digests[server]
        self._made = None
        return bool(ended)

    def over(self, common: PagedListing[Tool], own: Collection[LeaseTools]) -> PagedListing[Tool]:
        """Return a list with the tools in which leases differ.

        Args:
            common: What all sessions of the client see.
            own: Of the leases that differ, at least one.
        """
        digests = tuple(sorted(f"{lease.server_id} {lease.digest}" for lease in own))
        if self._made is None or self._made[0] is not common or self._made[1] != digests:
            made = tool_listing(with_lease_tools(common.items.values(), own), common)
            self._made = common, digests, replace(made, ttl=common.ttl, is_own=True)
        return self._made[2]

    def find(self, name: str) -> Tool | None:
        """Return a tool of the list that was made last, by its name or its qualified name."""
        if self._made is None:
            return None
        listing = self._made[2]
        return listing.items.get((name,)) or listing.qualified.get(name)
