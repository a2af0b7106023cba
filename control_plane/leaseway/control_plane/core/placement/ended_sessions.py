"""Sessions that ended for good, for the fronts, which would open them again by their ids. Pure."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

from leaseway.wire.bounds import SESSION_AGE

MAX_ENDED: Final = 100_000
"""Ended sessions that are remembered."""


class _End(NamedTuple):
    at: float
    number: int


class EndedSessions:
    """The ended sessions of all tenants.

    Beyond the limit the tenant with the most loses its oldest one, so that no tenant can make the
    control plane forget the sessions of another.

    Args:
        limit: The maximum number of sessions.
    """

    def __init__(self, limit: int = MAX_ENDED) -> None:
        self._limit = limit
        self._count = 0
        self._number = 1
        self._tenants: dict[str, OrderedDict[str, _End]] = {}

    def __len__(self) -> int:
        return self._count

    def add(self, tenant: str, session: str, now: float) -> None:
        """Record that a session has ended, unless that is known."""
        ended = self._tenants.setdefault(tenant, OrderedDict())
        self._forget_old(tenant, now)
        if session in ended:
            return
        self._count += 1
        self._number += 1
        self._tenants.setdefault(tenant, ended)[session] = _End(now, self._number)
        if self._count > self._limit:
            self._forget_oldest(max(self._tenants, key=lambda known: len(self._tenants[known])))

    def has(self, tenant: str, session: str, now: float) -> bool:
        """Return whether a session has ended within the last 7 days."""
        ended = self._tenants.get(tenant)
        end = None if ended is None else ended.get(session)
        return end is not None and now - end.at < SESSION_AGE

    def last(self, tenant: str) -> int:
        """Return the number of a tenant's newest end; 1 if it has none."""
        ended = self._tenants.get(tenant)
        return ended[next(reversed(ended))].number if ended else 1

    def since(self, tenant: str, number: int, limit: int) -> list[str]:
        """Return the sessions of a tenant that have ended after a numbered one, the newest first.

        Args:
            number: The number of an earlier end (`last`).
            limit: The maximum number of sessions.
        """
        found: list[str] = []
        for session, end in reversed(self._tenants.get(tenant, {}).items()):
            if end.number <= number or len(found) == limit:
                break
            found.append(session)
        return found

    def _forget_old(self, tenant: str, now: float) -> None:
        ended = self._tenants[tenant]
        while ended and now - next(iter(ended.values())).at >= SESSION_AGE:
            self._forget_oldest(tenant)

    def _forget_oldest(self, tenant: str) -> None:
        ended = self._tenants[tenant]
        ended.popitem(last=False)
        self._count -= 1
        if not ended:
            del self._tenants[tenant]
