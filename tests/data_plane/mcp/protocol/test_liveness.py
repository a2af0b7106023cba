"""When a server's silence is suspicious."""

from __future__ import annotations

from leaseway.data_plane.mcp.protocol.messages.liveness import Liveness


def test_an_abandoned_call_without_a_message_makes_the_server_doubtful() -> None:
    liveness = Liveness()
    liveness.mark_doubtful(abandoned=3, newest=5)
    assert liveness.in_doubt
    liveness.mark_received(newest=5)
    assert not liveness.in_doubt


def test_a_call_abandoned_after_a_message_does_not() -> None:
    liveness = Liveness()
    liveness.mark_received(newest=3)
    liveness.mark_doubtful(abandoned=3, newest=5)
    assert not liveness.in_doubt


def test_calls_started_before_the_doubt_explain_the_silence_and_later_ones_do_not() -> None:
    liveness = Liveness()
    assert liveness.is_explained_by(9)
    liveness.mark_doubtful(abandoned=1, newest=5)
    assert liveness.is_explained_by(5)
    assert not liveness.is_explained_by(6)


def test_more_abandoned_calls_do_not_postpone_the_doubt() -> None:
    liveness = Liveness()
    liveness.mark_doubtful(abandoned=1, newest=5)
    liveness.mark_doubtful(abandoned=6, newest=9)
    assert not liveness.is_explained_by(6)
    liveness.mark_received(newest=9)
    liveness.mark_doubtful(abandoned=10, newest=12)
    assert liveness.is_explained_by(12)
    assert not liveness.is_explained_by(13)
