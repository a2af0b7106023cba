"""Server-sent events in pieces of any size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseway.data_plane.kinds.remote.http.sse_parser import SseEvent, SseParser, SseTooLarge, turns

STREAM = (
    "\ufeff: a comment\n\n"
    'event: message\nid: 1\nretry: 250\ndata: {"a":\ndata:  1}\n\n'
    "data\n\n"
    "unknown: field\nid: 2\ndata: ünï\n\n"
    "data: unfinished"
).encode()
EVENTS = [
    SseEvent(b'{"a":\n 1}', "message", "1", 0.25),
    SseEvent(b"", "message", "1", 0.25),
    SseEvent("ünï".encode(), "message", "2", 0.25),
]


@given(st.sampled_from(["\n", "\r", "\r\n"]), st.lists(st.integers(0, 200), max_size=12))
def test_events_do_not_depend_on_reads_and_line_ends(end: str, cuts: list[int]) -> None:
    stream = STREAM.replace(b"\n", end.encode())
    parser = SseParser(1000)
    found: list[SseEvent] = []
    edges = sorted(min(cut, len(stream)) for cut in cuts)
    for start, stop in zip([0, *edges], [*edges, len(stream)], strict=True):
        found += parser.feed(stream[start:stop])
    assert found == EVENTS


def test_events_do_not_depend_on_reads_of_single_bytes() -> None:
    parser = SseParser(1000)
    found = [event for n in range(len(STREAM)) for event in parser.feed(STREAM[n : n + 1])]
    assert found == EVENTS


def test_an_event_at_the_limit_passes_and_a_larger_one_does_not() -> None:
    assert SseParser(10).feed(b"data: 3456\n\n")[0].data == b"3456"
    with pytest.raises(SseTooLarge):
        SseParser(10).feed(b"data: 34567\n\n")
    with pytest.raises(SseTooLarge):
        SseParser(10).feed(b"data: 1\ndata: 2\n\n")


def test_an_endless_line_fails_at_the_limit() -> None:
    parser = SseParser(10)
    parser.feed(b"x" * 10)
    with pytest.raises(SseTooLarge):
        parser.feed(b"x")


def test_comments_do_not_count_towards_the_limit() -> None:
    parser = SseParser(20)
    for _ in range(100):
        assert parser.feed(b": keep-alive\n") == []
    assert parser.feed(b"data: 1\n\n")[0].data == b"1"


def test_a_restart_drops_half_an_event_with_its_id() -> None:
    parser = SseParser(100)
    parser.feed(b"id: 7\ndata: whole\n\nid: 8\ndata: half")
    parser.restart()
    assert parser.last_id == "7"
    assert parser.feed(b"data: new\n\n") == [SseEvent(b"new", "message", "7", None)]


@pytest.mark.parametrize("unsendable", [b"a\0", b"a\x01b", b"\x7f", b"x" * 5_000])
def test_an_id_that_no_request_could_resume_by_is_ignored(unsendable: bytes) -> None:
    """Such a header raises, which would end the stream of notifications for good."""
    parser = SseParser(10_000)
    parser.feed(b"id: 7\ndata: 1\n\nid: %b\ndata: 2\n\n" % unsendable)
    assert parser.last_id == "7"


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_an_event_that_the_end_of_the_stream_ends_can_be_read(end: str) -> None:
    parser = SseParser(100)
    parser.feed(f"event: message\ndata: {{\ndata: }}{end}".encode())
    assert parser.finish() == b"{\n}"


def test_other_events_that_the_end_of_the_stream_ends_are_no_messages() -> None:
    parser = SseParser(100)
    parser.feed(b"event: ping\ndata: {}\n")
    assert parser.finish() == b""


def test_many_short_lines_are_parsed_in_turns_and_a_long_one_in_one() -> None:
    flood, message = b":\n" * 32_768, b"data: " + b"x" * 65_536 + b"\n\n"
    pieces = turns(flood)
    assert b"".join(pieces) == flood
    assert max(piece.count(b"\n") for piece in pieces) <= 512
    assert turns(message) == (message,)
