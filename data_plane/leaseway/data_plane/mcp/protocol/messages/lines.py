"""Splits a byte stream into lines, and finds the request id in an unreadable line. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final

from leaseway.data_plane.mcp.protocol.messages.codec import request_key

_EXCERPT: Final = 1024
"""Bytes that are kept of the start and of the end of a skipped line."""

_VERSION: Final = rb'"jsonrpc"\s*:\s*"2\.0"'
_ID: Final = rb'"id"\s*:\s*(\d{1,18}|"[^"\\]{1,64}")'
_id_first: Final = re.compile(
    rb"\s*\{\s*(?:%b\s*,\s*)?%b\s*,\s*(?:%b\s*,\s*)?\"(?:result|error)\""
    % (_VERSION, _ID, _VERSION)
).match
_result_first: Final = re.compile(rb"\s*\{\s*(?:%b\s*,\s*)?\"(?:result|error)\"" % _VERSION).match
# Only one brace follows, so the id is the message's own, not part of its result.
_id_last: Final = re.compile(rb"%b\s*(?:,\s*%b\s*)?\}\s*$" % (_ID, _VERSION)).search


class LineTooLong(Exception):
    """A line exceeds the limit for skipping, too."""


class LineSplitter:
    """Splits a byte stream into lines, in linear time.

    Args:
        limit: Maximum bytes of a line. A longer one is skipped.
        on_skipped: Called after a skipped line, with its start, its end and its length.
        skip_limit: Maximum bytes of a skipped line.
    """

    def __init__(
        self, limit: int, on_skipped: Callable[[bytes, bytes, int], None], skip_limit: int
    ) -> None:
        self._limit = limit
        self._on_skipped = on_skipped
        self._skip_limit = skip_limit
        self._parts: list[bytes] = []
        self._size = 0
        self._head = self._tail = b""
        self._skipping = False

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that end in `data`, without their newline.

        Raises:
            LineTooLong: A line exceeds the skip limit; the stream is unusable.
        """
        if self._skipping:
            data = self._skip(data)
        lines = data.split(b"\n")
        rest = lines.pop()
        if lines and self._parts:
            self._parts.append(lines[0])
            lines[0] = b"".join(self._parts)
            self._parts.clear()
            self._size = 0
        # Only the first line may have started in earlier data; the others are at most one read.
        if lines and len(lines[0]) > self._limit:
            long = lines.pop(0)
            self._on_skipped(long[:_EXCERPT], long[-_EXCERPT:], len(long))
        if rest:
            self._parts.append(rest)
            self._size += len(rest)
            if self._size > self._limit:
                self._start_skipping()
        return lines

    def _start_skipping(self) -> None:
        # Do not join the parts: that may be tens of megabytes.
        parts = self._parts
        self._head = b"".join(_excerpt_parts(parts))[:_EXCERPT]
        self._tail = b"".join(reversed(_excerpt_parts(reversed(parts))))[-_EXCERPT:]
        parts.clear()
        self._skipping = True
        self._check()

    def _skip(self, data: bytes) -> bytes:
        """Return the data after the line that is being skipped."""
        line, newline, after = data.partition(b"\n")
        self._size += len(line)
        self._tail = (self._tail + line[-_EXCERPT:])[-_EXCERPT:]
        self._check()
        if newline:
            head, tail, size = self._head, self._tail, self._size
            self._skipping, self._size, self._head, self._tail = False, 0, b"", b""
            self._on_skipped(head, tail, size)
        return after

    def _check(self) -> None:
        if self._size > self._skip_limit:
            raise LineTooLong


def _excerpt_parts(parts: Iterable[bytes]) -> list[bytes]:
    """Return the first parts that together reach the length of an excerpt."""
    taken: list[bytes] = []
    size = 0
    for part in parts:
        taken.append(part)
        size += len(part)
        if size >= _EXCERPT:
            break
    return taken


def response_key(head: bytes, tail: bytes) -> int | str | None:
    """Return the key of the request that an unreadable line answers, or None if unknown.

    `head` and `tail` are the line's start and end, at least 200 bytes of each if it is longer.
    """
    found = _id_first(head)
    if found is None and _result_first(head) is not None:
        found = _id_last(tail)
    return request_key(found.group(1).decode().strip('"')) if found is not None else None
