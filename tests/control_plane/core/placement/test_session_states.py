"""States of sessions, of which the longest unchanged make room."""

from __future__ import annotations

from leaseway.control_plane.core.placement.session_states import SessionStates


def test_a_state_belongs_to_its_tenant_and_is_replaced_or_forgotten() -> None:
    states = SessionStates()
    states.put("a", "s", b"1")
    states.put("a", "s", b"2")
    assert (states.get("a", "s"), states.get("b", "s"), states.get("a", "t")) == (b"2", b"", b"")
    states.put("a", "s", b"")
    assert states.get("a", "s") == b""


def test_beyond_the_limit_the_longest_unchanged_state_is_forgotten() -> None:
    states = SessionStates(limit=2)
    for session in ("a", "b", "a", "c"):
        states.put("t", session, b"x")
    assert [states.get("t", session) for session in ("a", "b", "c")] == [b"x", b"", b"x"]
