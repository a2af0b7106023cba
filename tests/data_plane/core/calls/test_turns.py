"""Fair turns for calls on an instance with `max_calls`."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from leaseway.data_plane.core.calls.turns import Turns

WEIGHTS = {"a": 1, "b": 1, "heavy": 3}
TENANTS = st.sampled_from(sorted(WEIGHTS))


def turns_of(most: int) -> Turns:
    turns = Turns(1, lambda _tenant: 1)
    turns.max_running, turns.weight_of = most, WEIGHTS.__getitem__
    return turns


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 4),
    st.lists(st.one_of(TENANTS, st.integers(0, 30)), max_size=60),
)
def test_each_call_runs_once_and_within_the_limit(most: int, acts: list[str | int]) -> None:
    """A name adds a call of that tenant; a number removes a running or waiting call."""
    turns = turns_of(most)
    running: list[tuple[str, int]] = []
    waiting: list[tuple[str, int]] = []
    for number, act in enumerate(acts):
        if isinstance(act, str):
            call = (act, number)
            (running if turns.add(call, act) else waiting).append(call)
        elif running or waiting:
            known = running + waiting
            call = known[act % len(known)]
            turns.remove(call, call[0])
            (running if call in running else waiting).remove(call)
        while (call := turns.start_next()) is not None:
            waiting.remove(call)
            assert all(other[1] > call[1] for other in waiting if other[0] == call[0])
            running.append(call)
        assert turns.running == len(running) <= most
        assert turns.waiting is bool(waiting)
        assert not waiting or len(running) == most


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 4), st.integers(1, 50))
def test_waiting_tenants_get_turns_by_weight(most: int, rounds: int) -> None:
    turns = turns_of(most)
    for number in range(200):
        for tenant in WEIGHTS:
            turns.add((tenant, number), tenant)
    had: Counter[str] = Counter()
    running = [("a", 0), ("b", 0), ("heavy", 0), ("a", 1)][:most]
    for _ in range(5 * rounds if rounds < 30 else 150):
        turns.remove(running[0], running.pop(0)[0])
        call = turns.start_next()
        had[call[0]] += 1
        running.append(call)
    for tenant, weight in WEIGHTS.items():
        assert abs(had[tenant] - had.total() * weight / 5) <= 2


def test_a_new_tenant_is_next_during_a_flood_of_another() -> None:
    turns = turns_of(1)
    assert turns.add(("a", 0), "a")
    for number in range(1, 1000):
        turns.add(("a", number), "a")
    turns.remove(("a", 0), "a")
    assert turns.start_next() == ("a", 1)
    turns.add(("b", 0), "b")
    turns.remove(("a", 1), "a")
    assert turns.start_next() == ("b", 0)
    turns.add(("b", 1), "b")  # and one after the other, they have every second turn
    turns.remove(("b", 0), "b")
    assert turns.start_next() == ("a", 2)
    turns.remove(("a", 2), "a")
    assert turns.start_next() == ("b", 1)
