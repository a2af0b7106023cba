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
from collections.abc import Callable
from typing import Final, NamedTuple

from aiohttp import web

from leaseway.front.http.request_checks import HttpError
from leaseway.front.http.streams import LONG, EventStream, event
from leaseway.front.sessions.live_session import LiveSession
from leaseway.wire.bounds import MIB
from leaseway.wire.sharing.fair_shares import Holder
from leaseway.wire.sharing.held_bytes import HeldBytes

_KEPT: Final = 60.0
"""Seconds for which a finished stream can be resumed."""
_MAX_KEPT: Final = 1024
"""Streams of one credential; beyond them the oldest ones are forgotten."""
_MAX_KEPT_BYTES: Final = 256 * MIB
"""Bytes of all streams of a front; beyond them the oldest of whoever has most are forgotten."""
_MAX_EVENTS: Final = 256
_MAX_EVENT_BYTES: Final = MIB
"""Kept notifications of one stream; beyond them the oldest ones are dropped."""


_NOBODY: Final = Holder("", "")

_is_number: Final = re.compile(r"[0-9]{1,9}").fullmatch


class _Event(NamedTuple):
    number: int
    data: bytes
    keep: bool


def _keep_alone(_stream: ResumableStream) -> None:
    """Keep the events of a stream that no other one is counted with."""


class ResumableStream(EventStream):
    """A stream whose events are kept.

    Args:
        name: The part of its events' ids that they share.
        primes: Whether the client understands an event without data (2025-11-25).
        cookie: The value of a `Set-Cookie` header, or empty.
        on_growth: Is told when it keeps more.
    """

    def __init__(
        self,
        name: str,
        *,
        primes: bool,
        cookie: str = "",
        on_growth: Callable[[ResumableStream], None] = _keep_alone,
    ) -> None:
        super().__init__(cookie=cookie)
        self._name = name.encode()
        self._events: deque[_Event] = deque()
        self._number = 0
        self._position = 0
        self._writer: object = None
        self.size = 0
        self.ended_at: float | None = None
        self._primes = primes
        self._on_growth = on_growth
        self.is_forgotten = False
        self._connections = 0
        self._was_written = False

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
        if self.is_forgotten:
            self.forget()
        elif self.size > LONG:
            self._on_growth(self)
        self._count()
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

    @property
    def _unsent(self) -> int:
        if self.size <= LONG:
            return 0
        return sum(len(item.data) for item in self._events if item.number >= self._position)

    def forget(self) -> None:
        """Keep nothing any more that its connection has been sent, and nothing without one."""
        self.is_forgotten = True
        is_lost = self._was_written and not self._connections
        while self._events and (is_lost or self._events[0].number < self._position):
            self.size -= len(self._events.popleft().data)

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

    async def write(self, http: web.BaseRequest) -> web.StreamResponse:
        """Respond with the events from now on, until the stream ends or goes on elsewhere."""
        self._was_written = True
        self._connections += 1
        try:
            return await super().write(http)
        finally:
            self._connections -= 1
            if self.is_forgotten:
                self.forget()

    async def _write(self, response: web.StreamResponse) -> None:
        writer = self._writer = object()
        while self._writer is writer:
            unsent = [item for item in self._events if item.number >= self._position]
            if unsent:
                self._position = unsent[-1].number + 1
                self._count()
                await self._send(response, b"".join(item.data for item in unsent))
                if self.is_forgotten:
                    unsent.clear()
                    self.forget()
            elif self._ended:
                return
            else:
                await self._wait(response)


def kept_events() -> HeldBytes[ResumableStream]:
    """Return what counts the events that a front keeps, for all its callers."""
    return HeldBytes(_MAX_KEPT_BYTES)


class ResumableStreams:
    """The resumable streams of one caller, by the name in their events' ids.

    Args:
        holder: The caller.
        kept: Counts the events of all callers; None means that there is one caller.
    """

    def __init__(
        self, holder: Holder = _NOBODY, kept: HeldBytes[ResumableStream] | None = None
    ) -> None:
        self._holder = holder
        self._kept = kept or kept_events()
        self._streams: OrderedDict[str, tuple[LiveSession, ResumableStream]] = OrderedDict()

    def open(self, live: LiveSession, cookie: str) -> EventStream:
        """Open a stream for a request of a session."""
        self._forget_old()
        name = secrets.token_urlsafe(12)
        stream = ResumableStream(
            name,
            primes=live.sealed.version == "2025-11-25",
            cookie=cookie,
            on_growth=self._keep,
        )
        self._streams[name] = (live, stream)
        return stream

    def resumed(self, live: LiveSession, event_id: str) -> ResumableStream:
        """Return a session's stream, ready to continue behind an event; raises `HttpError`."""
        name, _, number = event_id.rpartition("-")
        owner, stream = self._streams.get(name, (None, None))
        if stream is None or stream.is_forgotten or owner is not live or not _is_number(number):
            raise HttpError(
                400,
                "The stream of this Last-Event-ID is not known here any more: its request ended "
                "more than a minute ago, another front runs it, or too many are kept. Send the "
                "request again if it may be repeated.",
            )
        stream.resume_after(int(number))
        return stream

    def _keep(self, stream: ResumableStream) -> None:
        self._kept.set(stream, self._holder, stream.size)
        for excess in self._kept.pop_excess():
            excess.forget()

    def _forget(self, name: str) -> None:
        _, stream = self._streams.pop(name)
        self._kept.set(stream, self._holder, 0)
        stream.forget()

    def _forget_old(self) -> None:
        oldest_end = time.monotonic() - _KEPT
        for name, (_, stream) in tuple(self._streams.items()):
            if stream.is_forgotten or (
                stream.ended_at is not None and stream.ended_at < oldest_end
            ):
                self._forget(name)
        while len(self._streams) >= _MAX_KEPT:
            self._forget(next(iter(self._streams)))

    def close(self) -> None:
        """Keep nothing any more."""
        for name in tuple(self._streams):
            self._forget(name)
