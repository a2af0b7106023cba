"""Streams that a client can resume after its connection was cut (`Last-Event-ID`).

Versions with sessions let a client continue the stream of a running call by a GET that names the
last event that it has seen. So each event has an id, and the events of a call are kept while it
runs and for a minute after it: a cut connection loses neither a result nor a server request.
"""

from __future__ import annotations

import re
import secrets
import time
from collections import OrderedDict, deque
from typing import Final, NamedTuple

from aiohttp import web

from leaseway.front.http.request_checks import HttpError
from leaseway.front.http.streams import EventStream, event
from leaseway.front.sessions.live_session import LiveSession
from leaseway.wire.bounds import MIB

_KEPT: Final = 60.0
"""Seconds for which a finished stream can be resumed."""
_MAX_KEPT: Final = 1024
_MAX_KEPT_BYTES: Final = 64 * MIB
"""Streams of one caller, and their bytes; beyond them the oldest ones are forgotten."""
_MAX_EVENTS: Final = 256
_MAX_EVENT_BYTES: Final = MIB
"""Kept notifications of one stream; beyond them the oldest ones are dropped."""


_is_number: Final = re.compile(r"[0-9]{1,9}").fullmatch


class _Event(NamedTuple):
    number: int
    data: bytes
    keep: bool


class ResumableStream(EventStream):
    """A stream whose events are kept.

    Args:
        name: The part of its events' ids that they share.
        primes: Whether the client understands an event without data (2025-11-25).
        cookie: The value of a `Set-Cookie` header, or empty.
    """

    def __init__(self, name: str, *, primes: bool, cookie: str = "") -> None:
        super().__init__(cookie=cookie)
        self._name = name.encode()
        self._events: deque[_Event] = deque()
        self._number = 0
        self._position = 0
        self._writer: object = None
        self.size = 0
        self.ended_at: float | None = None
        self._primes = primes

    def prime(self) -> None:
        """Let the client know an id before the first message, with an event without data."""
        super().prime()
        if self._primes and not self._events:
            self._add(b"id: %b-%d\ndata: \n\n" % (self._name, self._number), keep=True)
            self._wake.set()

    def put(self, message: bytes, *, keep: bool = False) -> bool:
        """Keep a message for the client; the oldest notifications make room for new ones."""
        if self._ended:
            return False
        self._add(b"id: %b-%d\n%b" % (self._name, self._number, event(message)), keep=keep)
        while self._is_full() and (oldest := self._oldest_notification()) is not None:
            self._events.remove(oldest)
            self.size -= len(oldest.data)
            self._dropped += oldest.number >= self._position
        self._wake.set()
        return True

    def _add(self, data: bytes, *, keep: bool) -> None:
        self._events.append(_Event(self._number, data, keep))
        self._number += 1
        self.size += len(data)

    def _is_full(self) -> bool:
        return len(self._events) > _MAX_EVENTS or self.size > _MAX_EVENT_BYTES

    def _oldest_notification(self) -> _Event | None:
        return next((item for item in self._events if not item.keep), None)

    def end(self) -> None:
        if self.ended_at is None:
            self.ended_at = time.monotonic()
        super().end()

    def resume_after(self, number: int) -> None:
        """Continue behind an event, on another connection; the earlier one gets nothing more."""
        super().prime()
        self._position = number + 1
        self._writer = None
        self._wake.set()

    def _on_disconnect(self) -> None:
        """Keep the events for the client's next connection."""

    async def _write(self, response: web.StreamResponse) -> None:
        writer = self._writer = object()
        while self._writer is writer:
            unsent = [item for item in self._events if item.number >= self._position]
            if unsent:
                self._position = unsent[-1].number + 1
                await self._send(response, b"".join(item.data for item in unsent))
            elif self._ended:
                return
            else:
                await self._wait(response)


class ResumableStreams:
    """The resumable streams of one caller, by the name in their events' ids."""

    def __init__(self) -> None:
        self._streams: OrderedDict[str, tuple[LiveSession, ResumableStream]] = OrderedDict()

    def open(self, live: LiveSession, cookie: str) -> EventStream:
        """Open a stream for a request of a session."""
        self._forget_old()
        name = secrets.token_urlsafe(12)
        stream = ResumableStream(name, primes=live.sealed.version == "2025-11-25", cookie=cookie)
        self._streams[name] = (live, stream)
        return stream

    def resumed(self, live: LiveSession, event_id: str) -> ResumableStream:
        """Return a session's stream, ready to continue behind an event; raises `HttpError`."""
        name, _, number = event_id.rpartition("-")
        owner, stream = self._streams.get(name, (None, None))
        if stream is None or owner is not live or not _is_number(number):
            raise HttpError(
                400,
                "The stream of this Last-Event-ID is not known here any more: its request ended "
                "more than a minute ago, or another front runs it. Send the request again if it "
                "may be repeated.",
            )
        stream.resume_after(int(number))
        return stream

    def _forget_old(self) -> None:
        oldest_end = time.monotonic() - _KEPT
        for name, (_, stream) in tuple(self._streams.items()):
            if stream.ended_at is not None and stream.ended_at < oldest_end:
                del self._streams[name]
        size = sum(stream.size for _, stream in self._streams.values())
        while self._streams and (len(self._streams) >= _MAX_KEPT or size > _MAX_KEPT_BYTES):
            _, (_, stream) = self._streams.popitem(last=False)
            size -= stream.size
