"""Whose process starts next if a worker limits how many start at the same time."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from leaseway.data_plane.core.calls.turns import Turns


def order_of(turns: Turns, running: list[str]) -> list[str]:
    """Return the order in which waiting starts get the only place."""
    order = []
    for start in running:
        turns.remove(start, start[0])
        while (following := turns.start_next()) is not None:
            order.append(following)
            running.append(following)
    return order


def test_awaited_starts_come_before_others_and_are_fair_between_tenants() -> None:
    turns = Turns(1)
    assert turns.add("a0", "a", ahead=True)
    assert not turns.add("s1", "s", ahead=False)
    for start in ("a1", "a2", "a3", "b1"):
        assert not turns.add(start, start[0], ahead=True)
    order = order_of(turns, ["a0"])
    assert order.index("b1") < order.index("a2")
    assert order[-1] == "s1"


def test_a_start_that_nobody_waits_for_takes_a_free_place() -> None:
    turns = Turns(2)
    assert turns.add("s1", "s", ahead=False)
    assert turns.add("s2", "s", ahead=False)
    assert not turns.add("a1", "a", ahead=True)
    turns.remove("s1", "s")
    assert turns.start_next() == "a1"
    assert turns.start_next() is None


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 4),
    st.lists(st.one_of(st.tuples(st.sampled_from("abc"), st.booleans()), st.integers(0, 30))),
)
def test_no_place_is_given_twice_or_left_free(
    places: int, acts: list[tuple[str, bool] | int]
) -> None:
    """A pair adds a start of that tenant; a number removes one that runs or waits."""
    turns = Turns(places)
    running: list[tuple[str, int]] = []
    waiting: list[tuple[str, int]] = []
    for number, act in enumerate(acts):
        if isinstance(act, tuple):
            start = (act[0], number)
            (running if turns.add(start, act[0], ahead=act[1]) else waiting).append(start)
        elif running or waiting:
            known = running + waiting
            start = known[act % len(known)]
            turns.remove(start, start[0])
            (running if start in running else waiting).remove(start)
            while (following := turns.start_next()) is not None:
                waiting.remove(following)
                running.append(following)
        assert len(running) <= places
        assert not waiting or len(running) == places
