"""Entries of tenants that share a bounded table. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, NamedTuple, TypeVar

from leaseway.wire.sharing.fair_shares import who_pays

NameT = TypeVar("NameT", bound=Hashable)
EntryT = TypeVar("EntryT")


class _Held(NamedTuple, Generic[EntryT]):
    entry: EntryT
    tenant: str
    ends: float


class SharedTable(Generic[NameT, EntryT]):
    """Entries by name, each of a tenant, and all with the same lifetime.

    At the limit, what has ended gives way to a new entry, or else the oldest of the tenant that has
    most: none displaces those of others.

    Args:
        limit: How many entries there may be.
        lifetime: Seconds until an entry ends.
    """

    def __init__(self, limit: int, lifetime: float) -> None:
        self._limit = limit
        self._lifetime = lifetime
        self._held: OrderedDict[NameT, _Held[EntryT]] = OrderedDict()
        self._of_tenants: dict[str, OrderedDict[NameT, None]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[tuple[NameT, EntryT]]:
        return iter([(name, held.entry) for name, held in self._held.items()])

    def time_left(self, name: NameT, now: float) -> float:
        """Return the seconds until an entry ends; 0 if it has, or if there is none."""
        held = self._held.get(name)
        return 0.0 if held is None else max(0.0, held.ends - now)

    def get(self, name: NameT, now: float) -> EntryT | None:
        """Return an entry that has not ended, or None."""
        return self._held[name].entry if self.time_left(name, now) else None

    def pop(self, name: NameT) -> EntryT | None:
        """Remove and return an entry, whether it has ended or not; None if there is none."""
        held = self._held.pop(name, None)
        if held is None:
            return None
        of_tenant = self._of_tenants[held.tenant]
        del of_tenant[name]
        if not of_tenant:
            del self._of_tenants[held.tenant]
        return held.entry

    def add(self, name: NameT, entry: EntryT, tenant: str, now: float) -> list[EntryT]:
        """Add an entry, or replace that of the same name; return those that gave way."""
        removed = [self.pop(name)]
        if len(self) >= self._limit:
            while self._held and not self.time_left(oldest := next(iter(self._held)), now):
                removed.append(self.pop(oldest))
        if len(self) >= self._limit:
            counts = {other: len(names) for other, names in self._of_tenants.items()}
            payer = self._of_tenants.get(who_pays(counts, tenant), self._held)
            removed.append(self.pop(next(iter(payer))))
        self._held[name] = _Held(entry, tenant, now + self._lifetime)
        self._of_tenants.setdefault(tenant, OrderedDict())[name] = None
        return [entry for entry in removed if entry is not None]
