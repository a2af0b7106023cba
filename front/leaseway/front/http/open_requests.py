"""What one caller has open, and how the front's end ends it: requests and streams.

The streams are those on which clients with sessions get notifications outside of their requests
(GET).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any, Final

from aiohttp import web

from leaseway.front.http.direct_calls import DirectCall
from leaseway.front.http.request_checks import HttpError
from leaseway.front.http.streams import HOLDING, EventStream, Reply
from leaseway.front.protocol.messages import CUT_OFF, error_message
from leaseway.front.sessions.live_session import LiveSession

_MAX_STREAMS: Final = 16
"""Streams of one session."""
_RESPONSE_TIMEOUT: Final = 1.0
"""Seconds in which tasks that are cut off respond."""


class RequestsInFlight(set["asyncio.Task[Any] | DirectCall"]):
    """The requests in flight: their tasks, and calls that have none.

    Attributes:
        are_cut_off: Whether the front ends, so that a cancelled request needs a response: its
            client would wait for it, or repeat what has run.
    """

    are_cut_off = False

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Count the current task as a request while the block runs."""
        task = asyncio.current_task()
        assert task is not None
        self.add(task)
        try:
            yield
        finally:
            self.discard(task)

    async def finish(self, http: web.BaseRequest, *tasks: asyncio.Task[None]) -> None:
        """Wait for requests that their client does not cancel when it disconnects."""
        holding = http.get(HOLDING)
        if holding is not None:
            holding.keep_for(tasks)
        try:
            await asyncio.shield(asyncio.gather(*tasks))
        except asyncio.CancelledError:
            if not self.are_cut_off:
                raise
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def cut_off_calls(self) -> None:
        """Cancel the calls without tasks; from now on, what is cancelled is cut off."""
        self.are_cut_off = True
        for request in tuple(self):
            if isinstance(request, DirectCall):
                request.cut_off()

    async def cut_off_tasks(self) -> None:
        """Cancel all tasks, and let them respond."""
        tasks = [request for request in self if isinstance(request, asyncio.Task)]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_RESPONSE_TIMEOUT)

    def answer_cancelled(self, reply: Reply, request_id: bytes) -> bool:
        """Respond to a cancelled request if it is cut off; return whether it is."""
        if self.are_cut_off:
            reply.finish(error_message(request_id, CUT_OFF))
        return self.are_cut_off


class NotificationStreams:
    """The open streams of one caller's sessions."""

    def __init__(self) -> None:
        self._streams: dict[LiveSession, list[EventStream]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._streams.values()))

    def __contains__(self, live: object) -> bool:
        return live in self._streams

    @contextlib.contextmanager
    def opened(self, live: LiveSession) -> Iterator[EventStream]:
        """Open a stream of a session while the block runs; raises `HttpError` at the limit."""
        stream = EventStream(ends_when_full=True)
        stream.prime()
        streams = self._streams.setdefault(live, [])
        if len(streams) >= _MAX_STREAMS:
            message = f"This session has {_MAX_STREAMS} streams open, the limit; close some."
            raise HttpError(429, message, {"Retry-After": "1"})
        streams.append(stream)
        live.streams.append(stream.put)
        live.on_stop.append(stream.end)
        try:
            yield stream
        finally:
            streams.remove(stream)
            live.streams.remove(stream.put)
            live.on_stop.remove(stream.end)
            if not streams:
                self._streams.pop(live, None)

    def end(self) -> None:
        for streams in self._streams.values():
            for stream in streams:
                stream.end()
