"""Who gives way when a limit is reached."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseway.wire.sharing.fair_shares import Holder, who_gives_way

A1, A2, B1 = Holder("acme", "one"), Holder("acme", "two"), Holder("beta", "one")
NEAR, FAR = Holder("", "127.0.0.1"), Holder("", "203.0.113.9")


@pytest.mark.parametrize(
    ("counts", "newcomer", "expected", "at_once"),
    [
        ({A1: 256}, B1, A1, True),  # a tenant that took all
        ({A1: 100, A2: 156}, B1, A2, True),  # its principal that took most
        ({A1: 200, B1: 56}, A2, A1, True),  # another principal of the newcomer's tenant
        ({A1: 200, B1: 56}, A1, A1, False),  # the newcomer itself
        ({A1: 1, B1: 1}, A2, A1, False),
        ({A1: 2, B1: 2}, A2, A1, True),
        ({A1: 1, B1: 1}, Holder("new", "x"), None, False),
        ({A1: 1, B1: 2}, Holder("new", "x"), B1, True),
        ({NEAR: 256}, NEAR, NEAR, False),
        ({FAR: 255, A1: 1}, NEAR, FAR, True),
        ({}, A1, None, False),
    ],
)
def test_whoever_has_most_gives_way(
    counts: dict[Holder, int], newcomer: Holder, expected: Holder | None, at_once: bool
) -> None:
    payer = who_gives_way(counts, newcomer)
    assert payer == (None if expected is None else (expected, at_once))


holders = st.builds(Holder, st.sampled_from(["a", "b", ""]), st.sampled_from("xyz"))


@given(st.lists(holders, min_size=1, max_size=60), st.integers(1, 12))
def test_no_sequence_of_newcomers_takes_the_fair_share_of_a_tenant(
    newcomers: list[Holder], limit: int
) -> None:
    held: Counter[Holder] = Counter({Holder("victim", "v"): 1})
    for newcomer in newcomers:
        if held.total() >= limit:
            payer = who_gives_way(+held, newcomer)
            if payer is None:
                continue
            held[payer.holder] -= 1
        held[newcomer] += 1
        assert held.total() <= max(limit, 1)
    others = {holder for holder in held if holder.tenant != "victim"}
    groups = {holder.tenant or holder.principal for holder in others}
    if limit > len(groups):  # there is room for one of each
        assert held[Holder("victim", "v")] == 1
