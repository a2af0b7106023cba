"""The fair order of tenants that wait for capacity."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from leaseway.wire.turns import fair_order, find_evicted


def order(waiting: list[str], held: dict[str, int]) -> list[str]:
    return fair_order(waiting, lambda one: one[0], lambda tenant: held.get(tenant, 0))


def test_a_tenant_with_many_requests_is_not_served_first() -> None:
    assert order(["a1", "a2", "a3", "b1"], {}) == ["a1", "b1", "a2", "a3"]
    assert order(["a1", "a2", "b1"], {"a": 5}) == ["b1", "a1", "a2"]
    assert order(["a1", "a2", "b1"], {"b": 2}) == ["a1", "a2", "b1"]


@given(st.lists(st.sampled_from("abc")), st.dictionaries(st.sampled_from("abc"), st.integers(0, 9)))
def test_the_order_is_fair_and_keeps_the_order_within_a_tenant(
    tenants: list[str], held: dict[str, int]
) -> None:
    waiting = [f"{tenant}{number}" for number, tenant in enumerate(tenants)]
    served = order(waiting, held)
    assert sorted(served) == sorted(waiting)
    for tenant in "abc":
        assert [one for one in served if one[0] == tenant] == [
            one for one in waiting if one[0] == tenant
        ]
    has = Counter(held)
    for one in served:  # whoever is served has no more than anybody who still waits
        waits = {other[0] for other in served[served.index(one) :]}
        assert all(has[one[0]] <= has[tenant] for tenant in waits)
        has[one[0]] += 1


def test_a_full_queue_drops_a_request_of_the_largest_tenant() -> None:
    def leaves(waiting: list[str], newcomer: str) -> str | None:
        return find_evicted(waiting, lambda one: one[0], newcomer)

    assert leaves(["a1", "b1", "a2", "a3"], "b") == "a3"
    assert leaves(["a1", "a2"], "c") == "a2"
    assert leaves(["a1", "a2"], "a") is None
    assert leaves(["a1", "a2", "b1"], "b") is None, "both would have two"
