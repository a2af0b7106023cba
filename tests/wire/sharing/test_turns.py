"""The fair order of tenants that wait for capacity."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from leaseway.wire.sharing.turns import fair_order, find_evicted


def tenant_of(request: str) -> str:
    return request[0]


def order(waiting: list[str], held: dict[str, int]) -> list[str]:
    return fair_order(waiting, tenant_of, lambda tenant: held.get(tenant, 0))


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
        own = [request for request in waiting if tenant_of(request) == tenant]
        assert [request for request in served if tenant_of(request) == tenant] == own
    counts = Counter(held)
    for index, request in enumerate(served):  # no waiting tenant has less than the served one
        assert all(counts[request[0]] <= counts[other[0]] for other in served[index:])
        counts[request[0]] += 1


def test_a_full_queue_drops_a_request_of_the_largest_tenant() -> None:
    assert find_evicted(["a1", "b1", "a2", "a3"], tenant_of, "b") == "a3"
    assert find_evicted(["a1", "a2"], tenant_of, "c") == "a2"
    assert find_evicted(["a1", "a2"], tenant_of, "a") is None
    assert find_evicted(["a1", "a2", "b1"], tenant_of, "b") is None, "both would have two"
