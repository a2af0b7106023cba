"""Lines of a byte stream, and lines that are too long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseway.data_plane.mcp.protocol.messages.reading import (
    LineSplitter,
    LineTooLong,
    response_key,
)


def splitter(limit: int, skipped: list[tuple[bytes, bytes, int]] | None = None) -> LineSplitter:
    found = [] if skipped is None else skipped
    return LineSplitter(limit, lambda *line: found.append(line), 10 * limit)


@given(st.lists(st.binary(max_size=20).map(lambda b: b.replace(b"\n", b"")), max_size=8), st.data())
def test_lines_do_not_depend_on_the_reads(lines: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(line + b"\n" for line in lines) + b"rest"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    # Lines of more than 10 bytes are skipped and reported.
    skipped: list[tuple[bytes, bytes, int]] = []
    whole, short = splitter(100), splitter(10, skipped)
    found, kept = list[bytes](), list[bytes]()
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += whole.feed(stream[start:end])
        for piece in range(start, end, 10):  # a read is never longer than the limit of a line
            kept += short.feed(stream[piece : min(end, piece + 10)])
    assert found == lines
    assert kept == [line for line in lines if len(line) <= 10]
    long = [line for line in lines if len(line) > 10]
    assert [line[1:] for line in skipped] == [(line, len(line)) for line in long]
    assert all(line.startswith(head) for line, (head, _, _) in zip(long, skipped, strict=True))


@pytest.mark.parametrize("piece", [1, 3, 10])
def test_a_line_at_the_limit_passes_and_a_longer_one_is_skipped(piece: int) -> None:
    skipped: list[tuple[bytes, bytes, int]] = []
    lines, stream, found = splitter(10, skipped), b"x" * 10 + b"\n" + b"y" * 11 + b"\nz\n", []
    for start in range(0, len(stream), piece):
        found += lines.feed(stream[start : start + piece])
    assert found == [b"x" * 10, b"z"]
    assert skipped == [(b"y" * 11, b"y" * 11, 11)]


def test_only_the_start_and_the_end_of_a_long_line_are_kept() -> None:
    skipped: list[tuple[bytes, bytes, int]] = []
    lines = splitter(100_000, skipped)
    for _ in range(50):
        assert lines.feed(b"x" * 10_000) == []
    assert lines.feed(b"end\nnext\n") == [b"next"]
    assert skipped == [(b"x" * 1024, b"x" * 1021 + b"end", 500_003)]


def test_an_endless_line_fails_at_the_skip_limit() -> None:
    lines = splitter(10)
    lines.feed(b"x" * 100)
    with pytest.raises(LineTooLong):
        lines.feed(b"x")


@pytest.mark.parametrize(
    ("line", "key"),
    [
        (b'{"jsonrpc":"2.0","id":5,"result":{"a":', 5),
        (b'{ "id" : 5 , "jsonrpc" : "2.0", "result":{"a":', 5),
        (b'{"id":"5","error":{"code":', 5),
        (b'{"id":"listen-1","result":{', "listen-1"),
        (b'{"result":{"id":7},"jsonrpc":"2.0","id":5}', 5),
        (b'{"jsonrpc":"2.0","result":{},"id":5} ', 5),
        (b'{"result":{},"id":5,"jsonrpc":"2.0"}', 5),
        (b'{"result":{"content":[],"id":5}}', None),
        (b'{"jsonrpc":"2.0","id":5,"method":"sampling/createMessage","params":{', None),
        (b'{"jsonrpc":"2.0","method":"notifications/message","params":{},"id":5}', None),
        (b'[{"id":5,"result":', None),
        (b"INFO id 5 result", None),
    ],
)
def test_the_request_of_an_unreadable_line_is_found_or_unknown(line: bytes, key: object) -> None:
    assert response_key(line, line) == key
