"""Answers over HTTP: JSON where nothing is to be said before, else a stream of events.

Whoever sends never waits. What a slow client has not read yet is bounded: progress and log messages
beyond it are dropped and counted, and a client that reads nothing at all is cut off.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Final, Protocol

from aiohttp import web

from leaseway.wire.bounds import MIB

PING: Final = 15.0
"""Seconds of silence after which a stream says that it is there; proxies cut off silent ones."""
PATIENCE: Final = 60.0
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
        ends_when_full: Whether a client that is too far behind is cut off, so that it reads anew
            what it missed; else messages are dropped.
    """

    def __init__(self, *, ends_when_full: bool = False) -> None:
        self._ends_when_full = ends_when_full
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._dropped = 0
        self._ended = False
        self._wake = asyncio.Event()

    def put(self, message: bytes, *, keep: bool = False) -> bool:
        """Queue a message; return whether it found room.

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
        self._ended = True
        self._wake.set()

    async def write(self, http: web.BaseRequest) -> web.StreamResponse:
        """Answer a request with what is put until the end; a client that has gone ends it, too."""
        response = web.StreamResponse(headers=_HEADERS)
        try:
            await response.prepare(http)
            await self._write(response)
            await response.write_eof()
        except (ConnectionError, TimeoutError) as error:
            self.end()
            self._waiting.clear()
            _log.debug("A client did not read its stream to the end: %r", error)
            if http.transport is not None:
                http.transport.abort()
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
                    async with asyncio.timeout(PING):
                        await self._wake.wait()
                except TimeoutError:
                    async with asyncio.timeout(PATIENCE):
                        await response.write(b": ping\n\n")
                continue
            batch = b"".join(map(_event, self._waiting))
            self._waiting.clear()
            self._size = 0
            async with asyncio.timeout(PATIENCE):
                await response.write(batch)


class Sender(Protocol):
    """Sends the answer to one POST, in one of three ways."""

    def message(self, message: bytes, status: int) -> None:
        """Answer with one message as JSON."""

    def nothing(self) -> None:
        """Answer without a message."""

    def stream(self, stream: EventStream) -> None:
        """Answer with a stream of events."""


class Reply:
    """The answer to one POST, once it is clear what it is.

    Args:
        sender: Sends it.
        times: Whether it becomes a stream by itself after some silence; else somebody else calls
            `begin`.

    Attributes:
        streams: Whether the client takes a stream of events.
    """

    __slots__ = ("_sender", "_stream", "_timer", "streams")

    def __init__(self, sender: Sender, *, streams: bool = False, times: bool = True) -> None:
        self.streams = streams
        self._sender = sender
        self._stream: EventStream | None = None
        self._timer = (
            asyncio.get_running_loop().call_later(PING, self.begin) if times and streams else None
        )

    def send(self, message: bytes) -> None:
        """Say something before the result; for a client that takes JSON only it is lost."""
        if self.streams:
            self._begun().put(message)

    def ask(self, message: bytes) -> None:
        """Send a request to the client, which is never dropped."""
        if self.streams:
            self._begun().put(message, keep=True)

    def finish(self, message: bytes, status: int = 200) -> None:
        """Send the response and end."""
        if self._stream is None:
            self._quiet()
            self._sender.message(message, status)
        else:
            self._stream.put(message, keep=True)
            self._stream.end()

    def abandon(self) -> None:
        """End without a response: the client does not want one any more."""
        if self._stream is None:
            self._quiet()
            self._sender.nothing()
        else:
            self._stream.end()

    def begin(self) -> None:
        """Become a stream, so that the client hears that its request is under way."""
        if self.streams:
            self._begun()

    def _begun(self) -> EventStream:
        if self._stream is None:
            self._quiet()
            self._stream = EventStream()
            self._sender.stream(self._stream)
        return self._stream

    def _quiet(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class HttpSender:
    """Makes the answer to a request that aiohttp has read; `response` is to be returned to it.

    Args:
        http: The request.
    """

    def __init__(self, http: web.BaseRequest) -> None:
        self._http = http
        self._response: web.StreamResponse | None = None
        self._writing: asyncio.Task[web.StreamResponse] | None = None

    def message(self, message: bytes, status: int) -> None:
        self._response = json_response(message, status)

    def nothing(self) -> None:
        """Answer without a message."""
        self._response = web.Response(status=202)

    def stream(self, stream: EventStream) -> None:
        self._writing = asyncio.create_task(stream.write(self._http), name="front stream")

    async def response(self) -> web.StreamResponse:
        """Return the answer, when it has ended."""
        if self._writing is not None:
            return await self._writing
        assert self._response is not None
        return self._response


def json_response(message: bytes, status: int = 200) -> web.Response:
    return web.Response(body=message, status=status, headers=_JSON)


def _event(message: bytes) -> bytes:
    # In JSON a line break is whitespace only; in an event it would end the data.
    if b"\n" in message or b"\r" in message:
        message = message.replace(b"\n", b" ").replace(b"\r", b" ")
    return b"event: message\ndata: %b\n\n" % message
