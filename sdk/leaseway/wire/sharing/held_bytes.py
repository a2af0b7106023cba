"""Bytes that entries of several holders hold in memory, and which of them give way. Pure."""

from __future__ import annotations

from collections import Counter
from typing import Generic, TypeVar

from leaseway.wire.sharing.fair_shares import Holder, group_of

EntryT = TypeVar("EntryT")


class HeldBytes(Generic[EntryT]):
    """Counts the bytes of entries; over the limit, those of whoever holds most give way.

    Args:
        limit: The maximum number of bytes of all entries together.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._holders: dict[EntryT, Holder] = {}
        self._entries: dict[Holder, dict[EntryT, int]] = {}
        self._principals: Counter[Holder] = Counter()
        self._tenants: Counter[str] = Counter()
        self.total = 0

    def set(self, entry: EntryT, holder: Holder, size: int) -> None:
        """Count an entry for its holder, with all that it holds now; 0 forgets it."""
        counted = self._holders.get(entry)
        if counted is not None and (counted != holder or not size):
            self._add(counted, -self._entries[counted].pop(entry))
            del self._holders[entry]
        if size:
            entries = self._entries.setdefault(holder, {})
            self._add(holder, size - entries.get(entry, 0))
            entries[entry] = size  # it keeps its place
            self._holders[entry] = holder

    def pop_excess(self) -> list[EntryT]:
        """Forget and return the entries that give way, so that the others are within the limit.

        It is always the oldest entry of the principal with most, of the tenant with most. What this
        takes does not grow with the number of entries.
        """
        excess: list[EntryT] = []
        while self.total > self._limit:
            tenant = max(self._tenants, key=self._tenants.__getitem__)
            principals = (holder for holder in self._entries if group_of(holder) == tenant)
            holder = max(principals, key=self._principals.__getitem__)
            oldest = next(iter(self._entries[holder]))
            self.set(oldest, holder, 0)
            excess.append(oldest)
        return excess

    def _add(self, holder: Holder, size: int) -> None:
        self.total += size
        tenant = group_of(holder)
        self._principals[holder] += size
        self._tenants[tenant] += size
        if not self._principals[holder]:
            del self._principals[holder], self._entries[holder]
        if not self._tenants[tenant]:
            del self._tenants[tenant]
