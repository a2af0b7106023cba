"""Tables that tenants share."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from leaseway.data_plane.oauth.logins.shared_table import SharedTable

LIMIT = 6
LIFETIME = 10.0

adding = st.tuples(st.sampled_from("abc"), st.floats(0, 3))


@given(st.lists(adding, max_size=60))
def test_only_what_has_ended_or_is_of_whoever_has_most_gives_way(
    steps: list[tuple[str, float]],
) -> None:
    table = SharedTable[int, tuple[int, str, float]](LIMIT, LIFETIME)
    now = 0.0
    for number, (tenant, pause) in enumerate(steps):
        now += pause
        added = number, tenant, now + LIFETIME
        before = [entry for _, entry in table]
        removed = table.add(number, added, tenant, now)
        live = [owner for _, owner, ends in before if ends > now]
        for _, owner, ends in removed:
            assert ends <= now or owner == tenant or live.count(owner) > live.count(tenant) + 1
        assert not removed or len(before) == LIMIT
        kept = [entry for entry in before if entry not in removed]
        assert [entry for _, entry in table] == [*kept, added]
        assert len(table) <= LIMIT


def test_a_name_that_comes_again_has_the_new_entry_for_its_whole_life() -> None:
    table = SharedTable[str, str](LIMIT, LIFETIME)
    table.add("link", "old", "a", 0.0)
    assert table.add("link", "new", "a", 6.0) == ["old"]
    assert table.get("link", 12.0) == "new"
    assert table.time_left("link", 12.0) == 4.0
    assert table.get("link", 16.0) is None
    assert table.pop("link") == "new"
    assert not len(table)
