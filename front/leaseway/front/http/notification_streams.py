"""The streams on which clients with sessions get notifications outside of their requests (GET)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from leaseway.front.calling.listening import changed_notification
from leaseway.front.http.request_checks import HttpError
from leaseway.front.http.streams import EventStream
from leaseway.front.sessions.live_session import LiveSession

_MAX_STREAMS: Final = 16
"""Streams of one session."""


class NotificationStreams:
    """The open streams of one caller's sessions."""

    def __init__(self) -> None:
        self._streams: dict[LiveSession, list[EventStream]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._streams.values()))

    def __contains__(self, live: object) -> bool:
        return live in self._streams

    @contextmanager
    def opened(self, live: LiveSession) -> Iterator[EventStream]:
        """Open a stream of a session while the block runs; raises `HttpError` at the limit."""
        stream = EventStream(ends_when_full=True)
        streams = self._streams.setdefault(live, [])
        if len(streams) >= _MAX_STREAMS:
            message = f"This session has {_MAX_STREAMS} streams open, the limit; close some."
            raise HttpError(429, message, {"Retry-After": "1"})
        streams.append(stream)
        live.streams.append(stream.put)
        try:
            yield stream
        finally:
            streams.remove(stream)
            live.streams.remove(stream.put)
            if not streams:
                self._streams.pop(live, None)

    def on_list_changed(self, kind: str, servers: frozenset[str], client: bytes) -> None:
        """Tell the sessions that see one of the servers about a changed list."""
        for live in tuple(self._streams):
            if client and client != live.client.encoded:
                continue
            if not live.scope or live.scope in servers:
                live.push(changed_notification(kind))

    def end(self) -> None:
        for streams in self._streams.values():
            for stream in streams:
                stream.end()
