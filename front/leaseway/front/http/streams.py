"""HTTP replies: one JSON response, or an event stream if messages precede the response.

Senders never wait. The queue of a slow client is bounded: when it is full, progress and log
messages are dropped and counted. A client that reads nothing is disconnected.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Final, Literal, Protocol

from aiohttp import web

from leaseway.front.http.pages import let_page_read
from leaseway.wire.bounds import MIB

PING: Final = 15.0
"""Seconds of silence after which a stream sends a ping, because proxies close silent streams."""
WRITE_TIMEOUT: Final = 60.0
_MAX_QUEUED: Final = 1024
_MAX_QUEUED_BYTES: Final = 4 * MIB
_HEADERS: Final = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-cache, no-transform",
    "X-Accel-Buffering": "no",
}
_COMMENT: Final = b": ping\n\n"
_NO_HEADERS: Final[Mapping[str, str]] = {}
RESOURCE_METADATA: Final = web.RequestKey("resource_metadata", str)
"""Where the front's metadata are, in a request of a client that sends a token of its own."""
_JSON: Final = {"Content-Type": "application/json"}
LONG: Final = 16 * 1024
"""Bytes from which on what a connection holds is counted."""

Part = Literal["request", "waiting", "unread", "stream"]
"""What a connection holds: its request, further ones, responses in its buffer and in its stream."""

_log = logging.getLogger("leaseway.front")


class Holding:
    """What one connection holds in memory.

    Args:
        on_change: Gets the bytes of all parts when they change.

    Attributes:
        parts: The bytes of each part that is long.
    """

    def __init__(self, on_change: Callable[[int], None]) -> None:
        self._on_change = on_change
        self._requests: set[asyncio.Task[Any]] = set()
        self.parts: dict[Part, int] = {}

    @property
    def size(self) -> int:
        return sum(self.parts.values())

    def set(self, part: Part, size: int) -> None:
        """Note how many bytes a part has now."""
        if size <= LONG:
            if self.parts.pop(part, 0):
                self._on_change(self.size)
        elif self.parts.get(part) != size:
            self.parts[part] = size
            self._on_change(self.size)

    def keep_for(self, handling: Iterable[asyncio.Task[Any]]) -> None:
        """Keep the request until its handling has ended, which may outlive the connection."""
        for task in handling:
            self._requests.add(task)
            task.add_done_callback(self._on_handled)

    def _on_handled(self, handling: asyncio.Task[Any]) -> None:
        self._requests.discard(handling)
        self.end_request()

    def end_request(self) -> None:
        """Note that the request has ended, unless it is still handled."""
        if self.parts and not self._requests:
            self.set("request", 0)

    def lose_connection(self, *, is_handled: bool) -> None:
        """Keep only a request that is still handled: the client has gone."""
        for part in ("unread", "waiting"):
            self.set(part, 0)
        if not is_handled:
            self.end_request()

    def cancel_requests(self) -> None:
        for handling in self._requests:
            handling.cancel()


HOLDING: Final = web.RequestKey("holding", Holding)
"""What the connection of a request holds."""


class EventStream:
    """A stream of server-sent events to one client.

    Args:
        ends_when_full: Whether to end the stream when the queue is full, so that the client
            reconnects and reads again what it missed; else messages are dropped.
        cookie: The value of a `Set-Cookie` header, or empty.
    """

    def __init__(self, *, ends_when_full: bool = False, cookie: str = "") -> None:
        self._ends_when_full = ends_when_full
        self._cookie = cookie
        self._queue: deque[bytes] = deque()
        self._size = 0
        self._dropped = 0
        self._ended = False
        self._is_primed = False
        self._wake = asyncio.Event()
        self._holding: Holding | None = None

    @classmethod
    def with_cookie(cls, cookie: str) -> EventStream:
        """Return a stream for a reply with a `Set-Cookie` header."""
        return cls(cookie=cookie)

    def prime(self) -> None:
        """Begin the stream before its first message.

        Some proxies hold even the headers until there is something behind them.
        """
        self._is_primed = True

    def put(self, message: bytes, *, keep: bool = False) -> bool:
        """Queue a JSON-RPC message; return False if it was dropped.

        Args:
            message: The message.
            keep: Whether to queue it even if the queue is full.
        """
        if self._ended:
            return False
        if not keep and (len(self._queue) >= _MAX_QUEUED or self._size >= _MAX_QUEUED_BYTES):
            self._dropped += 1
            if self._ends_when_full:
                self.end()
            return False
        self._queue.append(message)
        self._size += len(message)
        self._count()
        self._wake.set()
        return True

    def end(self) -> None:
        self._ended = True
        self._wake.set()

    @property
    def _unsent(self) -> int:
        """The bytes that wait to be sent."""
        return self._size

    def _count(self) -> None:
        """Let them count for the connection on which they are sent."""
        if self._holding is not None:
            self._holding.set("stream", self._unsent)

    async def write(self, http: web.BaseRequest) -> web.StreamResponse:
        """Respond with the queued messages until the stream ends or the client disconnects."""
        response = web.StreamResponse(headers=_HEADERS)
        _set_cookie(response, self._cookie)
        let_page_read(http, response)
        holding = self._holding = http.get(HOLDING)
        self._count()
        try:
            await response.prepare(http)
            if self._is_primed:
                await self._send(response, _COMMENT)
            await self._write(response)
            await response.write_eof()
        except (ConnectionError, TimeoutError) as error:
            self._on_disconnect()
            _log.debug("A client did not read its event stream to the end: %r", error)
            if http.transport is not None:
                http.transport.abort()
        finally:
            if holding is not None:
                holding.set("stream", 0)
            if self._holding is holding:  # it may go on elsewhere
                self._holding = None
        if self._dropped:
            _log.warning(
                "%d messages to an MCP client were dropped: it read too slowly.",
                self._dropped,
            )
        return response

    def _on_disconnect(self) -> None:
        """End the stream: its client has gone."""
        self.end()
        self._queue.clear()

    async def _write(self, response: web.StreamResponse) -> None:
        while self._queue or not self._ended:
            if not self._queue:
                await self._wait(response)
                continue
            batch = b"".join(map(event, self._queue))
            self._queue.clear()
            self._size = 0
            self._count()
            await self._send(response, batch)

    async def _wait(self, response: web.StreamResponse) -> None:
        """Wait for something to send; ping the client meanwhile."""
        self._wake.clear()
        try:
            async with asyncio.timeout(PING):
                await self._wake.wait()
        except TimeoutError:
            await self._send(response, _COMMENT)

    async def _send(self, response: web.StreamResponse, data: bytes) -> None:
        async with asyncio.timeout(WRITE_TIMEOUT):
            await response.write(data)


class Sender(Protocol):
    """Sends the response to one POST, in one of three forms."""

    def send_message(self, message: bytes, status: int, headers: Mapping[str, str]) -> None:
        """Respond with one JSON message, and with further headers."""

    def send_accepted(self) -> None:
        """Respond with 202 and no message."""

    def send_stream(self, stream: EventStream) -> None:
        """Respond with an event stream."""


OpenStream = Callable[[str], EventStream]
"""Opens the stream of a reply, given the value of its `Set-Cookie` header."""


class TaskOwner(Protocol):
    """Knows which request of its client is in flight."""

    def end_direct(self) -> None:
        """Note the end of a request that had no task."""

    def go_on_in(self, handling: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Let a request that had no task go on in a new one."""


class Reply(Protocol):
    """The reply to one request of a client.

    Attributes:
        accepts_stream: Whether the client accepts messages before the response.
    """

    accepts_stream: bool

    def send(self, message: bytes) -> None:
        """Send a notification; it is lost if the client accepts only JSON."""

    def ask(self, message: bytes) -> None:
        """Send a request to the client; it is never dropped."""

    def set_cookie(self, cookie: str) -> None:
        """Set the value of the `Set-Cookie` header of the response; without one if it is empty."""

    def step_up(self, scope: str) -> None:
        """Ask for a token with further scopes, unless clients' tokens are not their own."""

    def open_by(self, open_stream: OpenStream) -> None:
        """Open the stream, if it is needed, by a function that takes the cookie."""

    def finish(self, message: bytes, status: int = 200) -> None:
        """Send the response."""

    def abandon(self) -> None:
        """End without a response, because the client cancelled the request."""


class HttpReply:
    """The reply to one POST; it becomes a stream with its first message before the response.

    Args:
        sender: Sends it.
        has_timer: Whether it opens the stream itself after some silence; otherwise
            `HttpConnection` calls `open_stream`.

    Attributes:
        accepts_stream: Whether the client accepts an event stream.
        resource_metadata: Where clients that send tokens of their own find the front's metadata;
            empty for others.
        owner: Lets the request be handled without a task; None if it needs one.
    """

    # Class attributes are set on an instance only if they differ, as in few replies.
    _headers: Mapping[str, str] = _NO_HEADERS
    _is_step_up = False
    _open_stream: OpenStream = EventStream.with_cookie
    _stream: EventStream | None = None
    _timer: asyncio.TimerHandle | None = None
    owner: TaskOwner | None = None

    def __init__(
        self,
        sender: Sender,
        *,
        accepts_stream: bool = False,
        has_timer: bool = True,
        resource_metadata: str = "",
    ) -> None:
        self.accepts_stream = accepts_stream
        self.resource_metadata = resource_metadata
        self._sender = sender
        if has_timer and accepts_stream:
            self._timer = asyncio.get_running_loop().call_later(PING, self.open_stream)

    @property
    def is_stream(self) -> bool:
        """Whether the reply has become a stream."""
        return self._stream is not None

    def set_cookie(self, cookie: str) -> None:
        """Set the value of the `Set-Cookie` header of the response; without one if it is empty."""
        others = {name: value for name, value in self._headers.items() if name != "Set-Cookie"}
        self._headers = {**others, "Set-Cookie": cookie} if cookie else others

    def step_up(self, scope: str) -> None:
        """Ask for a token with further scopes, unless clients' tokens are not their own.

        The response is 403 then, if it has not become a stream (RFC 6750, section 3.1).
        """
        if self.resource_metadata:
            known = f'resource_metadata="{self.resource_metadata}"'
            challenge = f'Bearer error="insufficient_scope", scope="{scope}", {known}'
            self._headers = {**self._headers, "WWW-Authenticate": challenge}
            self._is_step_up = True

    def open_by(self, open_stream: OpenStream) -> None:
        """Open the stream, if it is needed, by a function that takes the cookie."""
        self._open_stream = open_stream

    def send(self, message: bytes) -> None:
        """Send a notification; it is lost if the client accepts only JSON."""
        if self.accepts_stream:
            self._open().put(message)

    def ask(self, message: bytes) -> None:
        """Send a request to the client; it is never dropped."""
        if self.accepts_stream:
            self._open().put(message, keep=True)

    def finish(self, message: bytes, status: int = 200) -> None:
        """Send the response."""
        if self._stream is None:
            self._stop_timer()
            self._sender.send_message(message, 403 if self._is_step_up else status, self._headers)
        else:
            self._stream.put(message, keep=True)
            self._stream.end()

    def abandon(self) -> None:
        """End without a response, because the client cancelled the request."""
        if self._stream is None:
            self._stop_timer()
            self._sender.send_accepted()
        else:
            self._stream.end()

    def open_stream(self) -> None:
        """Open the stream, so that its pings show the client that the request is in progress."""
        if self.accepts_stream:
            self._open().prime()

    def _open(self) -> EventStream:
        if self._stream is None:
            self._stop_timer()
            self._stream = self._open_stream(self._headers.get("Set-Cookie", ""))
            self._sender.send_stream(self._stream)
        return self._stream

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class AiohttpSender:
    """Builds the response to a request that aiohttp has read."""

    def __init__(self, http: web.BaseRequest) -> None:
        self._http = http
        self._response: web.StreamResponse | None = None
        self._writing: asyncio.Task[web.StreamResponse] | None = None

    def send_message(self, message: bytes, status: int, headers: Mapping[str, str]) -> None:
        self._response = json_response(message, status)
        self._response.headers.update(headers)

    def send_accepted(self) -> None:
        self._response = web.Response(status=202)

    def send_stream(self, stream: EventStream) -> None:
        self._writing = asyncio.create_task(stream.write(self._http), name="front stream")

    async def response(self) -> web.StreamResponse:
        """Return the response; a stream has been sent completely."""
        if self._writing is not None:
            return await self._writing
        assert self._response is not None
        return self._response


def reply_to(http: web.BaseRequest, accepts_stream: bool) -> tuple[AiohttpSender, HttpReply]:
    """Return the reply to a request that aiohttp has read, and what sends it."""
    sender = AiohttpSender(http)
    metadata = http.get(RESOURCE_METADATA, "")
    return sender, HttpReply(sender, accepts_stream=accepts_stream, resource_metadata=metadata)


def json_response(message: bytes, status: int = 200) -> web.Response:
    return web.Response(body=message, status=status, headers=_JSON)


def stream_of(response: web.Response) -> web.Response:
    """Return a response that is one JSON message as a complete event stream."""
    assert isinstance(response.body, bytes)
    headers = {**response.headers, **_HEADERS}
    return web.Response(body=event(response.body), headers=headers)


def _set_cookie(response: web.StreamResponse, cookie: str) -> None:
    if cookie:
        response.headers["Set-Cookie"] = cookie


def event(message: bytes) -> bytes:
    """Return a message as a server-sent event."""
    # A line break is only whitespace in JSON, but it would end the event's data.
    if b"\n" in message or b"\r" in message:
        message = message.replace(b"\n", b" ").replace(b"\r", b" ")
    return b"event: message\ndata: %b\n\n" % message
