"""When a server's silence is odd."""

from __future__ import annotations

from leaseway.data_plane.mcp.protocol.liveness import Liveness


def test_a_call_given_up_in_silence_brings_the_server_into_doubt_until_it_is_heard() -> None:
    signs = Liveness()
    signs.doubt(given_up=3, newest=5)
    assert signs.in_doubt
    signs.hear(newest=5)
    assert not signs.in_doubt


def test_a_call_given_up_after_something_came_says_nothing() -> None:
    signs = Liveness()
    signs.hear(newest=3)
    signs.doubt(given_up=3, newest=5)
    assert not signs.in_doubt


def test_calls_made_before_the_doubt_explain_the_silence_and_later_ones_do_not() -> None:
    signs = Liveness()
    assert signs.explained_by(9)
    signs.doubt(given_up=1, newest=5)
    assert signs.explained_by(5)
    assert not signs.explained_by(6)


def test_further_calls_given_up_do_not_put_the_doubt_off() -> None:
    signs = Liveness()
    signs.doubt(given_up=1, newest=5)
    signs.doubt(given_up=6, newest=9)
    assert not signs.explained_by(6)
    signs.hear(newest=9)
    signs.doubt(given_up=10, newest=12)
    assert signs.explained_by(12)
    assert not signs.explained_by(13)
