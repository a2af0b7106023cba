"""Fair order among tenants whose requests wait for capacity. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from operator import itemgetter
from typing import TypeVar

T = TypeVar("T")


def fair_order(
    waiting: Iterable[T], tenant_of: Callable[[T], str], count_held: Callable[[str], int]
) -> list[T]:
    """Order waiting requests: the tenant that holds the fewest is first, its oldest request first.

    So a tenant with very many requests gets no more free capacity than another one.

    Args:
        waiting: The requests, oldest first.
        tenant_of: Returns the tenant of a request.
        count_held: Returns how much a tenant already holds.
    """
    counts: dict[str, int] = {}
    ranked: list[tuple[int, int, T]] = []
    for position, request in enumerate(waiting):
        tenant = tenant_of(request)
        count = counts[tenant] if tenant in counts else count_held(tenant)
        counts[tenant] = count + 1
        ranked.append((count, position, request))
    ranked.sort(key=itemgetter(0, 1))
    return [request for _, _, request in ranked]


def find_evicted(waiting: Collection[T], tenant_of: Callable[[T], str], tenant: str) -> T | None:
    """Return the request that a full queue drops for a new one; None if the new one is rejected.

    The newest request of the tenant with the most requests is dropped if the new request's tenant
    would still have fewer. So one tenant can fill the queue only while no other tenant waits.

    Args:
        waiting: The requests, oldest first.
        tenant_of: Returns the tenant of a request.
    """
    counts = Counter(map(tenant_of, waiting))
    largest, count = max(counts.items(), key=itemgetter(1))
    if count <= counts[tenant] + 1:
        return None
    return next(request for request in reversed(list(waiting)) if tenant_of(request) == largest)
