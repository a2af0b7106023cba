"""Answers over HTTP: JSON where nothing is to be said before, else a stream of events.

Whoever sends never waits. What a slow client has not read yet is bounded: progress and log messages
beyond it are dropped and counted, and a client that reads nothing at all is cut off.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Final

from aiohttp import web

from leaseway.wire.bounds import MIB

_PING: Final = 15.0
"""Seconds of silence after which a stream says that it is there; proxies cut off silent ones."""
_PATIENCE: Final = 60.0
"""Seconds in which a client has to read what it was sent."""
_MOST: Final = 1024
_MOST_BYTES: Final = 4 * MIB
_HEADERS: Final = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-cache, no-transform",
    "X-Accel-Buffering": "no",
}
_JSON: Final = {"Content-Type": "application/json"}

_log = logging.getLogger("leaseway.front")


class EventStream:
    """A stream of events to one client.

    Args:
        http: The request that it answers.
        ends_when_full: Whether a client that is too far behind is cut off, so that it reads anew
            what it missed; else messages are dropped.

    """

    def __init__(self, http: web.BaseRequest, *, ends_when_full: bool = False) -> None:
        self._http = http
        self._ends_when_full = ends_when_full
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._dropped = 0
        self._ended = False
        self._wake = asyncio.Event()

    def put(self, message: bytes, *, keep: bool = False) -> bool:
        """Have a message sent; say whether it found room.

        Args:
            message: A JSON-RPC message.
            keep: Whether it is sent however far behind the client is.

        """
        if self._ended:
            return False
        if not keep and (len(self._waiting) >= _MOST or self._size >= _MOST_BYTES):
            self._dropped += 1
            if self._ends_when_full:
                self.end()
            return False
        self._waiting.append(message)
        self._size += len(message)
        self._wake.set()
        return True

    def end(self) -> None:
        """Have the stream end behind what waits."""
        self._ended = True
        self._wake.set()

    async def write(self) -> web.StreamResponse:
        """Send what is put until the end; a client that has gone ends it, too."""
        response = web.StreamResponse(headers=_HEADERS)
        try:
            await response.prepare(self._http)
            await self._write(response)
            await response.write_eof()
        except (ConnectionError, TimeoutError) as error:
            self.end()
            self._waiting.clear()
            _log.debug("A client did not read its stream to the end: %r", error)
            if self._http.transport is not None:
                self._http.transport.abort()
        if self._dropped:
            _log.warning(
                "%d messages to an MCP client were dropped: they came faster than it read.",
                self._dropped,
            )
        return response

    async def _write(self, response: web.StreamResponse) -> None:
        while self._waiting or not self._ended:
            if not self._waiting:
                self._wake.clear()
                try:
                    async with asyncio.timeout(_PING):
                        await self._wake.wait()
                except TimeoutError:
                    async with asyncio.timeout(_PATIENCE):
                        await response.write(b": ping\n\n")
                continue
            batch = b"".join(map(_event, self._waiting))
            self._waiting.clear()
            self._size = 0
            async with asyncio.timeout(_PATIENCE):
                await response.write(batch)


class Reply:
    """The answer to one POST.

    Args:
        http: The request.
        streams: Whether the client takes a stream of events.

    """

    def __init__(self, http: web.BaseRequest, streams: bool) -> None:
        self._http = http
        self._streams = streams
        self._stream: EventStream | None = None
        self._writing: asyncio.Task[web.StreamResponse] | None = None
        self._timer = asyncio.get_running_loop().call_later(_PING, self._begin) if streams else None

    def send(self, message: bytes) -> None:
        """Say something before the result; for a client that takes JSON only it is lost."""
        if self._streams:
            self._begin().put(message)

    def ask(self, message: bytes) -> None:
        """Send a request to the client, which is never dropped."""
        if self._streams:
            self._begin().put(message, keep=True)

    async def finish(self, message: bytes, status: int = 200) -> web.StreamResponse:
        """Send the response and end."""
        if self._timer is not None:
            self._timer.cancel()
        if self._stream is None or self._writing is None:
            return json_response(message, status)
        self._stream.put(message, keep=True)
        self._stream.end()
        return await self._writing

    async def abandon(self) -> web.StreamResponse:
        """End without a response: the client does not want one any more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._stream is None or self._writing is None:
            return web.Response(status=202)
        self._stream.end()
        return await self._writing

    def _begin(self) -> EventStream:
        if self._stream is None:
            if self._timer is not None:
                self._timer.cancel()
            self._stream = EventStream(self._http)
            self._writing = asyncio.create_task(self._stream.write(), name="front stream")
        return self._stream


def json_response(message: bytes, status: int = 200) -> web.Response:
    """Return one message as JSON."""
    return web.Response(body=message, status=status, headers=_JSON)


def _event(message: bytes) -> bytes:
    # In JSON a line break is whitespace only; in an event it would end the data.
    if b"\n" in message or b"\r" in message:
        message = message.replace(b"\n", b" ").replace(b"\r", b" ")
    return b"event: message\ndata: %b\n\n" % message
