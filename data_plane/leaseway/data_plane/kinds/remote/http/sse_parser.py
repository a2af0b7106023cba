"""Parses server-sent events from a byte stream in pieces of any size. Pure."""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_SENDABLE_ID: Final = re.compile(rb"[^\x00-\x08\x0a-\x1f\x7f]{0,4096}")
"""An id that a header may have when the stream is resumed; SSE itself excludes only zero."""


_FIELDS: Final = (b"data:", b"event:", b"id:", b"retry:", b":")


def is_event_stream(start: bytes) -> bool:
    """Return whether a body is an event stream by how it begins, whatever type it states."""
    return start.removeprefix(BOM_UTF8).lstrip().startswith(_FIELDS)


def is_json(start: bytes) -> bool:
    """Return whether a body is JSON by how it begins: no field of an event has such a name."""
    return start.removeprefix(BOM_UTF8).lstrip().startswith((b"{", b"["))


@dataclass(frozen=True)
class SseEvent:
    """One event.

    Attributes:
        data: Its data lines, joined by newlines.
        event: Its type; `message` by default.
        id: The last event id so far; None before the first.
        retry: Seconds before reconnecting, as last sent by the server, or None.
    """

    data: bytes
    event: str = "message"
    id: str | None = None
    retry: float | None = None


_LINES: Final = 256
_PIECE: Final = 512
"""Line ends and bytes that are parsed in a row."""


def turns(data: bytes) -> Sequence[bytes]:
    """Return what a server has sent at once; if it has many short lines, in pieces.

    Each line takes time, and between two pieces other servers and callers have their turn.
    """
    if data.count(b"\n") + data.count(b"\r") <= _LINES:
        return (data,)
    return [data[start : start + _PIECE] for start in range(0, len(data), _PIECE)]


class SseTooLarge(Exception):
    """An event exceeds its limit."""


class SseParser:
    """Parses a byte stream into events of at most `limit` bytes, in linear time."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._line: list[bytes] = []
        self._data: list[bytes] = []
        self._size = 0
        self._event = ""
        self._after_return = False
        self._first = True
        self._id: str | None = None
        self.last_id: str | None = None
        self.retry: float | None = None

    @property
    def begins(self) -> bool:
        """Whether nothing of the stream was read yet."""
        return self._first and not self._line

    def restart(self) -> None:
        """Start a new stream; keep the id of the last whole event and the retry delay."""
        self._id = self.last_id
        self._line.clear()
        self._data.clear()
        self._size = 0
        self._event = ""
        self._after_return = False
        self._first = True

    def feed(self, data: bytes) -> list[SseEvent]:
        """Return the events that end in `data`.

        Raises:
            SseTooLarge: An event exceeds the limit; the stream is unusable.
        """
        *ended, rest = self._normalize(data).split(b"\n")
        events = []
        for piece in ended:
            self._line.append(piece)
            self._grow(len(piece))
            line = b"".join(self._line)
            self._line.clear()
            event = self._parse_line(line)
            if event is not None:
                events.append(event)
        if rest:
            self._line.append(rest)
            self._grow(len(rest))
        return events

    def finish(self) -> bytes:
        """Return the data of an event that the stream ended in: all of it, or a part."""
        line = b"".join(self._line)
        self._line.clear()
        if line:
            self._parse_line(line)
        return b"\n".join(self._data) if self._event in ("", "message") else b""

    def _normalize(self, data: bytes) -> bytes:
        """Replace CR and CRLF by newlines, also across two pieces."""
        if self._after_return and data:
            data = data.removeprefix(b"\n")
            self._after_return = False
        if b"\r" in data:
            self._after_return = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return data

    def _grow(self, size: int) -> None:
        self._size += size
        if self._size > self._limit:
            raise SseTooLarge

    def _parse_line(self, line: bytes) -> SseEvent | None:
        if self._first:
            self._first = False
            line = line.removeprefix(BOM_UTF8)
        if not line:
            return self._dispatch()
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._event = value.decode(errors="replace")
        elif field == b"id" and _SENDABLE_ID.fullmatch(value) is not None:
            self._id = value.decode(errors="replace")
        elif field == b"retry" and value.isdigit():
            self.retry = int(value[:9]) / 1000
        if not self._data:
            self._size = 0  # comments and other fields are not kept
        return None

    def _dispatch(self) -> SseEvent | None:
        event = None
        self.last_id = self._id  # of a whole event only: a server resumes after it
        if self._data:
            data = b"\n".join(self._data)
            event = SseEvent(data, self._event or "message", self.last_id, self.retry)
        self._data.clear()
        self._event = ""
        self._size = 0
        return event
