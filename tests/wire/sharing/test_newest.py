"""A bounded mapping of its newest entries."""

from __future__ import annotations

from copy import deepcopy

from hypothesis import given
from hypothesis import strategies as st

from leaseway.wire.sharing.newest import Newest

_NAMES = st.sampled_from("abcdef")


@given(st.integers(1, 4), st.lists(st.tuples(st.sampled_from(["set", "pop", "get"]), _NAMES)))
def test_what_was_set_last_is_kept_in_that_order(limit: int, steps: list[tuple[str, str]]) -> None:
    kept: Newest[str, int] = Newest(limit)
    expected: list[tuple[str, int]] = []
    for number, (step, name) in enumerate(steps):
        if step == "get":
            assert kept.get(name) == dict(expected).get(name)
            continue
        expected = [entry for entry in expected if entry[0] != name]
        if step == "set":
            kept[name] = number
            expected = [*expected, (name, number)][-limit:]
        else:
            kept.pop(name, None)
        assert list(kept.items()) == expected


def test_entries_that_come_together_make_room_as_single_ones_do() -> None:
    kept: Newest[str, int] = Newest(2)
    kept.update(a=1, b=2, c=3)
    kept.setdefault("d", 4)
    assert list(kept) == ["c", "d"]


def test_a_copy_has_the_limit_and_entries_of_its_own() -> None:
    kept: Newest[str, int] = Newest(2)
    kept.update(a=1, b=2)
    copied = deepcopy(kept)
    copied["c"] = 3
    assert (list(kept), list(copied)) == (["a", "b"], ["b", "c"])
