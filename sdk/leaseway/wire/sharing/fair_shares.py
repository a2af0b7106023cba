"""Fair shares of something that has a limit: who has to give way. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple


class Holder(NamedTuple):
    """Who holds something: a principal of a tenant.

    A caller without a proven identity has no tenant, and its address as principal.
    """

    tenant: str
    principal: str


class GivesWay(NamedTuple):
    """Whose entry a newcomer's takes the place of.

    Attributes:
        at_once: Whether also an entry in use gives way, because its holder has more than the
            newcomer will have.
    """

    holder: Holder
    at_once: bool


def who_gives_way(counts: Mapping[Holder, int], newcomer: Holder) -> GivesWay | None:
    """Return whose oldest entry a newcomer's takes the place of, when a limit is reached.

    The tenant that holds most gives way if it would still hold at least as much as the newcomer's;
    otherwise the newcomer's own tenant does. Within it, the principal that holds most gives way. So
    nobody can take another's share, however often he asks.

    Args:
        counts: How many entries each holder has.
        newcomer: Who asks for one more.

    Returns:
        None if the newcomer is to be refused: its tenant holds nothing, and no other holds more
        than one.
    """
    tenants: Counter[str] = Counter()
    for holder, count in counts.items():
        tenants[group_of(holder)] += count
    own = group_of(newcomer)
    if not tenants:
        return None
    payer = who_pays(tenants, own)
    is_heavier = payer != own
    of_tenant = {other: count for other, count in counts.items() if group_of(other) == payer}
    if not of_tenant:
        return None
    heaviest = max(of_tenant, key=lambda tenant: (of_tenant[tenant], tenant == newcomer))
    return GivesWay(heaviest, is_heavier or of_tenant[heaviest] > counts.get(newcomer, 0) + 1)


def who_pays(counts: Mapping[str, int], newcomer: str) -> str:
    """Return the group that gives way to a newcomer's entry: the largest if it stays no smaller.

    Args:
        counts: How many entries each group has; at least one has some.
        newcomer: Whose entry it is.
    """
    largest = max(counts, key=counts.__getitem__)
    return largest if counts[largest] > counts.get(newcomer, 0) + 1 else newcomer


def group_of(holder: Holder) -> str:
    """Return what shares are divided by first; each address is a group of its own."""
    return f"tenant {holder.tenant}" if holder.tenant else f"address {holder.principal}"
