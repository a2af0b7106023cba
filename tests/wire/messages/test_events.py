"""The record of an event and the bounded history of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from leaseway.wire.messages.events import (
    MAX_DETAILS,
    EventKind,
    EventRecord,
    History,
    event_from_proto,
    event_to_proto,
)


def _event(kind: EventKind = "reload", at: float = 1.0, server_id: str = "") -> EventRecord:
    return EventRecord(kind, "applied", "It happened.", at, server_id=server_id)


def test_numbers_grow_from_the_first_one_on() -> None:
    history = History(100)
    assert [history.add(_event()).number for _ in range(3)] == [101, 102, 103]


def test_many_lease_events_do_not_displace_a_reload() -> None:
    history = History(rare=4, frequent=4)
    history.add(_event("reload"))
    for _ in range(50):
        history.add(_event("lease"))
    assert [event.kind for event in history.after(0)] == ["reload", *["lease"] * 4]


def test_events_are_selected_by_server_and_kind_in_order_of_time() -> None:
    history = History()
    history.add(_event("lease", at=5.0, server_id="a"))
    history.add(_event("instance", at=3.0, server_id="a"))
    history.add(_event("lease", at=1.0, server_id="b"))
    found = history.select(server_id="a", kinds=("lease", "instance"))
    assert [event.at for event in found] == [3.0, 5.0]
    assert [event.at for event in history.select(last=2)] == [3.0, 5.0]


def test_long_texts_and_many_lines_are_truncated() -> None:
    kept = History().add(
        EventRecord("reload", "applied", "x" * 5_000, 1.0, details=tuple(map(str, range(500))))
    )
    assert len(kept.message) == 1_000
    assert kept.message.endswith("…")
    assert len(kept.details) == MAX_DETAILS
    assert kept.details[-1] == "and 401 more"


def test_an_event_survives_the_wire() -> None:
    event = History(7).add(
        EventRecord(
            kind="lease",
            action="ended",
            message="Gone.",
            at=12.5,
            severity="warning",
            reason="LEASE_LOST",
            server_id="s",
            tenant="t",
            worker_id="w",
            lease_id="l",
            session="k",
            instance_id="i",
        )
    )
    assert event_from_proto(event_to_proto(event)) == event


@given(
    kinds=st.lists(st.sampled_from(["reload", "lease", "problem", "instance"]), max_size=60),
    rare=st.integers(1, 10),
    frequent=st.integers(1, 10),
    after=st.integers(0, 60),
)
def test_after_returns_each_recorded_event_once_in_order(
    kinds: list[EventKind], rare: int, frequent: int, after: int
) -> None:
    history = History(rare=rare, frequent=frequent)
    added = [history.add(_event(kind)) for kind in kinds]
    kept = [event for event in added if event.kind in ("lease", "instance")][-frequent:]
    kept += [event for event in added if event.kind not in ("lease", "instance")][-rare:]
    numbers = [event.number for event in history.after(after)]
    assert numbers == sorted(event.number for event in kept if event.number > after)
