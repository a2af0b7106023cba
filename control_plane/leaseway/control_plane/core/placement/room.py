"""What has changed since waiting requests were tried last, if one may be placed because of it.

Most events change nothing that a request for a lease waits for, so they cost it nothing.
"""

from __future__ import annotations

from collections.abc import Hashable

from leaseway.wire.names import LeaseKey


class RoomChanges:
    """Changes of a placement table since `clear`; owned by the table.

    Attributes:
        keys: Keys of which a lease or a reservation was added, removed or fenced.
        servers: Servers of which a worker has acknowledged other content, of each such delta.
        is_greedy: Whether a tenant has got several unused reservations, of which one may be given
            to another tenant.
    """

    def __init__(self) -> None:
        self.keys: set[LeaseKey] = set()
        self.servers: list[frozenset[str]] = []
        self.is_greedy = False
        self._counts: dict[Hashable, tuple[int, int]] = {}

    @property
    def has_freed(self) -> bool:
        """Whether some count that is limited is lower than before."""
        return any(count < before for before, count in self._counts.values())

    def count(self, what: Hashable, before: int, now: int) -> None:
        """Record a change of a limited count, such as the load of a worker."""
        first = self._counts.get(what)
        self._counts[what] = (before if first is None else first[0], now)

    def clear(self) -> None:
        """Forget all changes."""
        self.keys.clear()
        self.servers.clear()
        self._counts.clear()
        self.is_greedy = False
