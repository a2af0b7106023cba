"""Sessions that ended for good."""

from __future__ import annotations

from leaseway.control_plane.core.placement.ended_sessions import EndedSessions
from leaseway.wire.bounds import SESSION_AGE


def test_an_ended_session_is_known_in_its_tenant_for_seven_days() -> None:
    ended = EndedSessions()
    ended.add("acme", "s", 0.0)
    assert ended.has("acme", "s", SESSION_AGE - 1)
    assert not ended.has("acme", "s", SESSION_AGE)
    assert not ended.has("acme", "other", 1.0)
    assert not ended.has("beta", "s", 1.0)
    ended.add("acme", "late", SESSION_AGE)
    assert len(ended) == 1


def test_the_tenant_with_the_most_makes_room() -> None:
    ended = EndedSessions(limit=10)
    ended.add("beta", "kept", 0.0)
    for number in range(50):
        ended.add("acme", f"s{number}", float(number))
    assert ended.has("beta", "kept", 50.0)
    assert ended.has("acme", "s49", 50.0)
    assert not ended.has("acme", "s0", 50.0)
    assert len(ended) == 10


def test_what_has_ended_since_is_known_by_tenant_and_the_newest_first() -> None:
    ended = EndedSessions()
    assert ended.last("acme") == 1
    ended.add("acme", "a", 0.0)
    known = ended.last("acme")
    ended.add("beta", "b", 1.0)
    assert ended.since("acme", known, 10) == []
    for session in ("c", "d", "a"):
        ended.add("acme", session, 2.0)
    assert ended.since("acme", known, 10) == ["d", "c"], "not one that was known to have ended"
    assert ended.since("acme", known, 1) == ["d"]
    assert ended.since("acme", ended.last("acme"), 10) == []


def test_a_session_that_ends_twice_counts_once() -> None:
    ended = EndedSessions()
    for at in (0.0, 1.0):
        ended.add("acme", "s", at)
    assert len(ended) == 1
