"""Who gives way when too many bytes are held."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from leaseway.wire.sharing.fair_shares import Holder
from leaseway.wire.sharing.held_bytes import HeldBytes

A1, A2, B1 = Holder("acme", "one"), Holder("acme", "two"), Holder("beta", "one")
HOLDERS = (A1, A2, B1, Holder("", "127.0.0.1"))


def test_the_oldest_entry_of_the_principal_with_most_of_the_tenant_with_most_gives_way() -> None:
    held: HeldBytes[str] = HeldBytes(100)
    held.set("b", B1, 40)
    for number in range(3):
        held.set(f"a{number}", A1, 15)
    held.set("a", A2, 20)
    assert held.pop_excess() == ["a0"]
    assert held.total == 90
    held.set("a2", A1, 100)
    assert held.pop_excess() == ["a1", "a2"]


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.sampled_from(HOLDERS), st.integers(0, 60)), max_size=60
    )
)
def test_all_entries_together_are_within_the_limit(
    changes: list[tuple[int, Holder, int]],
) -> None:
    held: HeldBytes[int] = HeldBytes(100)
    sizes: dict[int, int] = {}
    for entry, holder, size in changes:
        held.set(entry, holder, size)
        sizes[entry] = size
        for excess in held.pop_excess():
            assert sizes.pop(excess)
        assert held.total == sum(sizes.values()) <= 100
