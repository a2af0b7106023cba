"""Whose turn it is among those who wait for room: tenants take turns. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

T = TypeVar("T")


def in_turn(
    waiting: Iterable[T], tenant_of: Callable[[T], str], held_by: Callable[[str], int]
) -> list[T]:
    """Order those who wait: the tenant that has the least comes first, its oldest request first.

    So a tenant that asks for very many at once has no more of what comes free than another one.

    Args:
        waiting: In the order in which they came.
        tenant_of: Whose one is.
        held_by: How much a tenant has already.
    """
    share: dict[str, int] = {}
    placed: list[tuple[int, int, T]] = []
    for place, one in enumerate(waiting):
        tenant = tenant_of(one)
        has = share[tenant] if tenant in share else held_by(tenant)
        share[tenant] = has + 1
        placed.append((has, place, one))
    placed.sort(key=lambda each: each[:2])
    return [one for _, _, one in placed]


def one_too_many(waiting: Collection[T], tenant_of: Callable[[T], str], newcomer: str) -> T | None:
    """Return who leaves a full line for a tenant's request; None where the newcomer has to.

    The newest request of the tenant with the most leaves where the newcomer's tenant, with this
    request, still has fewer. So one tenant fills a line only as long as no other asks.

    Args:
        waiting: In the order in which they came.
        tenant_of: Whose one is.
        newcomer: The tenant of the request that finds the line full.
    """
    counts = Counter(map(tenant_of, waiting))
    most, count = max(counts.items(), key=lambda one: one[1])
    if count <= counts[newcomer] + 1:
        return None
    return next(one for one in reversed(list(waiting)) if tenant_of(one) == most)
