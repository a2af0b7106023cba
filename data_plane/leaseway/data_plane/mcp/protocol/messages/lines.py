"""Cutting a byte stream into lines, and what can be known of a line that can't be read. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final

from leaseway.data_plane.mcp.protocol.messages.codec import request_key

_KEPT: Final = 1024
"""Bytes of a too long line that are kept, of its begin and of its end each."""

_VERSION: Final = rb'"jsonrpc"\s*:\s*"2\.0"'
_ID: Final = rb'"id"\s*:\s*(\d{1,18}|"[^"\\]{1,64}")'
_id_first: Final = re.compile(
    rb"\s*\{\s*(?:%b\s*,\s*)?%b\s*,\s*(?:%b\s*,\s*)?\"(?:result|error)\""
    % (_VERSION, _ID, _VERSION)
).match
_result_first: Final = re.compile(rb"\s*\{\s*(?:%b\s*,\s*)?\"(?:result|error)\"" % _VERSION).match
# Only one brace follows, so this id is the message's own and none of a part of its result.
_id_last: Final = re.compile(rb"%b\s*(?:,\s*%b\s*)?\}\s*$" % (_ID, _VERSION)).search


class LineTooLong(Exception):
    """A line is so long that it is not even skipped."""


class LineSplitter:
    """Cuts a byte stream into lines, in time linear in the bytes.

    Args:
        limit: The most bytes of one line. A longer one is skipped.
        on_skipped: Called after a skipped line, with its begin, its end and its length.
        skip_limit: The most bytes of a line that is skipped.
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
            LineTooLong: A line exceeds even the second bound; the stream can't be read on.
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
        # Only the first line may have begun in earlier data; the others are at most one read long.
        if lines and len(lines[0]) > self._limit:
            long = lines.pop(0)
            self._on_skipped(long[:_KEPT], long[-_KEPT:], len(long))
        if rest:
            self._parts.append(rest)
            self._size += len(rest)
            if self._size > self._limit:
                self._begin_to_skip()
        return lines

    def _begin_to_skip(self) -> None:
        # Made whole, the line would be tens of megabytes that nobody reads.
        parts = self._parts
        self._head = b"".join(_enough(parts))[:_KEPT]
        self._tail = b"".join(reversed(_enough(reversed(parts))))[-_KEPT:]
        parts.clear()
        self._skipping = True
        self._check()

    def _skip(self, data: bytes) -> bytes:
        """Return what follows the line that is being skipped."""
        line, newline, after = data.partition(b"\n")
        self._size += len(line)
        self._tail = (self._tail + line[-_KEPT:])[-_KEPT:]
        self._check()
        if newline:
            head, tail, size = self._head, self._tail, self._size
            self._skipping, self._size, self._head, self._tail = False, 0, b"", b""
            self._on_skipped(head, tail, size)
        return after

    def _check(self) -> None:
        if self._size > self._skip_limit:
            raise LineTooLong


def _enough(parts: Iterable[bytes]) -> list[bytes]:
    """Return the first parts that together are as long as what is kept."""
    taken: list[bytes] = []
    size = 0
    for part in parts:
        taken.append(part)
        size += len(part)
        if size >= _KEPT:
            break
    return taken


def reply_key(head: bytes, tail: bytes) -> int | str | None:
    """Return which request a line that can't be read answers, or None where it does not say so.

    Args:
        head: The line's begin, at least 200 bytes of it if it is longer.
        tail: Its end, likewise.
    """
    found = _id_first(head)
    if found is None and _result_first(head) is not None:
        found = _id_last(tail)
    return request_key(found.group(1).decode().strip('"')) if found is not None else None
