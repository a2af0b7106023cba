"""HTTP connections with a fast path: requests with a known head are handled without aiohttp.

aiohttp parses a request with a new head, and its handler checks it: credentials, origin, session,
versions. A later request on the same connection with the same head, apart from its length, would
pass the same checks, so that it is handled at once. If its reply becomes an event stream, the
request is passed to aiohttp after all.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import time
from collections.abc import Callable, Coroutine, Mapping
from contextvars import copy_context
from dataclasses import dataclass
from email.utils import formatdate
from functools import partial
from http import HTTPStatus
from itertools import islice
from typing import Any, Final, Protocol

from aiohttp import web

from leaseway.front.http.streams import LONG, PING, WRITE_TIMEOUT, EventStream, Holding, HttpReply
from leaseway.telemetry.http_listener import address_of
from leaseway.wire import bounds
from leaseway.wire.sharing.fair_shares import Holder, who_gives_way
from leaseway.wire.sharing.held_bytes import HeldBytes
from leaseway.wire.sharing.newest import Newest

_IDLE_TIMEOUT: Final = 75.0
"""Seconds that a connection may wait for another request."""
_MAX_CONNECTIONS: Final = 20_000
_OTHER_FILES: Final = 600
"""Open files that are no connections of clients: two for each credential, and some more."""
_OLDEST: Final = 64
"""Connections of a caller, the oldest, of which an idle one is closed for a new connection."""
_MAX_HEADS: Final = 16
"""Remembered heads of a connection; a modern client has one for each tool."""
_MAX_HEAD: Final = 16 * 1024
_MAX_MESSAGE: Final = 256 * 1024
"""Longer messages are read by aiohttp, in pieces."""
_CHECK_INTERVAL: Final = 5.0
"""Seconds between checks of timeouts. A message that is incomplete for longer is passed to
aiohttp, which responds with a timeout."""
_HEAD_END: Final = b"\r\n\r\n"
_HEADERS: Final = b"\r\nContent-Type: application/json\r\nContent-Length: %d\r\nDate: %b\r\n\r\n"
_OK: Final = b"HTTP/1.1 200 OK" + _HEADERS
_LENGTH: Final = b"content-length:"
_log: Final = logging.getLogger("leaseway.front")
_TOO_MUCH: Final = (
    "MCP clients hold too many unread bytes, those of %s the most; it loses a connection."
)


class Direct(Protocol):
    """A request that is handled without a task; it tells the reply's owner when it has ended."""

    def done(self) -> bool:
        """Return whether it has ended, or goes on in a task."""

    def cancel_for_client(self) -> None:
        """Cancel it: its client has gone."""


@dataclass(frozen=True, slots=True)
class HeadHandler:
    """Handles further requests with a head that was checked before.

    Attributes:
        start: Starts to handle a body; returns None if the request must be checked again.
        cancel_on_disconnect: Whether a lost connection cancels a request.
        accepts_stream: Whether the client accepts an event stream.
        resource_metadata: Where it finds the front's metadata; see `HttpReply`.
    """

    start: Callable[[bytes, HttpReply], asyncio.Task[None] | Direct | None]
    cancel_on_disconnect: bool
    accepts_stream: bool
    resource_metadata: str = ""


class KnownHead:
    """The head of an earlier request, and what it is without the digits of its content length.

    Args:
        head: The head.
        start: Where those digits begin.
        end: Where they end.
        handler: Handles requests with this head.

    Attributes:
        last: The newest head with its length.
        start: Where the body of a message with that begins.
        end: Where it ends.
    """

    __slots__ = ("_after", "_before", "end", "handler", "last", "start")

    def __init__(self, head: bytes, start: int, end: int, handler: HeadHandler) -> None:
        self._before = head[:start]
        self._after = head[end:]
        # The newest head with its length: most messages of a client are as long as the last one.
        self.last = head
        self.start = len(head)
        self.end = self.start + int(head[start:end])
        self.handler = handler

    @property
    def key(self) -> tuple[bytes, bytes]:
        return self._before, self._after

    def find_body(self, data: bytes) -> tuple[int, int] | None:
        """Return the start and end of a message's body, or None if its head differs."""
        if data.startswith(self.last):
            return self.start, self.end
        if not data.startswith(self._before):
            return None
        start = len(self._before)
        end = data.find(b"\r", start, start + 8)
        digits = data[start:end]
        if end < 0 or not digits.isdigit() or not data.startswith(self._after, end):
            return None
        body = end + len(self._after)
        self.last, self.start, self.end = data[:body], body, body + int(digits)
        return body, self.end


class FrontConnection(asyncio.Protocol):
    """One connection.

    Args:
        inner: The protocol of aiohttp for this connection.
        table: All open connections, to which it adds itself if there is room.

    Attributes:
        holder: Who it counts for: its caller, or its address as long as the caller is unknown.
        holding: What it holds in memory.
    """

    def __init__(self, inner: Any, table: FrontConnections) -> None:
        self._inner = inner
        self._table = table
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self._rejected = False
        self.holder = Holder("", "")
        self._heads: Newest[tuple[bytes, bytes], KnownHead] = Newest(_MAX_HEADS)
        self._newest: KnownHead | None = None
        # The bytes passed to aiohttp since it was last known to wait for a new message.
        self._with_aiohttp = False
        self._passed = b""
        self._passed_size = 0
        self._handlers = 0
        # The request that is handled here, and the bytes received after it.
        self._task: asyncio.Task[None] | Direct | None = None
        self._over: asyncio.Future[None] | None = None
        self._context = copy_context()
        self._handler: HeadHandler | None = None
        self._reply: HttpReply | None = None
        self._message = b""
        self._is_stream = False
        self._stream: EventStream | None = None
        self._buffer = b""
        self._incomplete_since: float | None = None
        self._paused = False
        self._last_active = time.monotonic()
        self._blocked_since: float | None = None
        self.holding = Holding(partial(table.hold, self))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self.holder = address_of(transport)
        if not self._table.add(self._inner, self):
            self._rejected = True
            transport.close()
            return
        self._inner.connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._rejected:
            return
        self._table.remove(self._inner)
        self.holding.lose_connection(is_handled=self._task is not None or self._handlers > 0)
        self._inner.connection_lost(exc)
        if self._handler is not None and self._handler.cancel_on_disconnect:
            self._cancel()

    def _cancel(self) -> None:
        if isinstance(self._task, asyncio.Task):
            self._task.cancel()
        elif self._task is not None:
            self._task.cancel_for_client()

    def eof_received(self) -> bool | None:
        stay_open: bool | None = None if self._rejected else self._inner.eof_received()
        return stay_open

    def pause_writing(self) -> None:
        self._blocked_since = time.monotonic()
        self._inner.pause_writing()
        self.holding.set("unread", self._transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._blocked_since = None
        self.holding.set("unread", 0)
        self._inner.resume_writing()
        if self._buffer and not self._with_aiohttp and self._task is None:
            self._handle_buffered()

    def data_received(self, data: bytes) -> None:
        if self._rejected:
            return
        task = self._task
        if isinstance(task, asyncio.Task) and task.done():
            self._on_done(task)  # the client was faster than the loop's next round
            if self._transport.is_closing():
                return
        if self._with_aiohttp:
            self._pass_on(data)
        elif self._task is not None or self._blocked_since is not None:
            self._buffer += data
            if len(self._buffer) > LONG:
                self.holding.set("waiting", len(self._buffer))
            if len(self._buffer) > _MAX_MESSAGE and not self._paused:
                self._paused = True
                self._transport.pause_reading()
        elif self._buffer:
            self._buffer += data
            self._handle_buffered()
        else:
            self._handle(data)

    def _handle_buffered(self) -> None:
        data, self._buffer = self._buffer, b""
        self._resume_reading()
        self._handle(data)

    def _resume_reading(self) -> None:
        if self._paused:
            self._paused = False
            self._transport.resume_reading()

    def _handle(self, data: bytes) -> None:
        newest = self._newest
        if (
            # What nearly every message is: as long as the last one, and alone.
            newest is not None
            and newest.end == len(data) <= _MAX_MESSAGE
            and data.startswith(newest.last)
        ):
            self._start(newest.handler, data, data[newest.start :], b"")
            return
        for head in reversed(self._heads.values()):
            body = head.find_body(data)
            if body is None:
                continue
            start, end = body
            if end > _MAX_MESSAGE:
                break
            if end > len(data):
                self._buffer = data
                self.holding.set("waiting", len(data))
                if self._incomplete_since is None:
                    self._incomplete_since = time.monotonic()
                return
            self._newest = head
            self._start(head.handler, data[:end], data[start:end], data[end:])
            return
        self._pass_on(data)

    def _start(self, handler: HeadHandler, message: bytes, body: bytes, rest: bytes) -> None:
        reply = HttpReply(
            self,
            accepts_stream=handler.accepts_stream,
            has_timer=False,
            resource_metadata=handler.resource_metadata,
        )
        reply.owner = self
        self._incomplete_since = None
        self._message = message
        self._buffer = rest
        if len(message) > LONG or self.holding.parts:
            self.holding.set("waiting", len(rest))
            self.holding.set("request", len(message))
        self._is_stream = False
        self._handler = handler
        self._reply = reply
        self._last_active = time.monotonic()
        started = handler.start(body, reply)
        if started is None:
            self._handler = self._reply = None
            self._message, self._buffer = b"", b""
            self._pass_on(message + rest)
        elif isinstance(started, asyncio.Task):
            self._task = started
            started.add_done_callback(self._on_done)
        elif not started.done():
            self._task = started

    def end_direct(self) -> None:
        """Note the end of a request that had no task; the next one is handled in another turn."""
        self._task = self._handler = self._reply = None
        self._message = b""
        self.holding.end_request()
        self._last_active = time.monotonic()
        if self._over is not None:
            self._say_over(self._over)
        if self._buffer:
            self._loop.call_soon(self._handle_rest, context=self._context)

    def go_on_in(self, handling: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Let a request that had no task go on in a new one."""
        # Not in the context of whoever has a result or a fault for it.
        task = self._task = self._loop.create_task(handling, context=self._context)
        task.add_done_callback(self._on_done)
        return task

    def _handle_rest(self) -> None:
        is_free = self._task is None and not self._with_aiohttp and self._blocked_since is None
        if self._buffer and is_free and not self._transport.is_closing():
            self._handle_buffered()

    def _say_over(self, over: asyncio.Future[None]) -> None:
        if not over.done():
            over.set_result(None)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if task is not self._task:
            return  # its end was noted when the next message arrived
        self._task = self._handler = self._reply = None
        self._message = b""
        self.holding.end_request()
        self._last_active = time.monotonic()
        if self._over is not None:
            self._say_over(self._over)
        if task.cancelled():
            if not self._is_stream:
                self._transport.abort()  # no response was sent
                return
        elif (error := task.exception()) is not None:
            self._loop.call_exception_handler(
                {"message": "A request failed.", "exception": error, "task": task}
            )
            self._transport.abort()
        if self._buffer and not self._with_aiohttp and self._blocked_since is None:
            self._handle_buffered()

    def send_message(self, message: bytes, status: int, headers: Mapping[str, str]) -> None:
        """Respond with one JSON message, and with further headers."""
        head = (_OK if status == 200 else _response_head(status)) % (len(message), _date())
        if headers:
            for name, value in headers.items():
                head = head[:-2] + b"%b: %b\r\n\r\n" % (name.encode(), value.encode())
        self._write(head, message)

    def send_accepted(self) -> None:
        """Respond with 202 and no message."""
        self._write(
            b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\nDate: %b\r\n\r\n" % _date(), b""
        )

    def _write(self, head: bytes, body: bytes) -> None:
        if self._transport.is_closing():
            return
        if len(body) < 64 * 1024:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))

    def send_stream(self, stream: EventStream) -> None:
        """Respond with an event stream: pass the request to aiohttp, whose handler sends it."""
        self._stream, self._is_stream = stream, True
        message, self._message = self._message, b""
        rest, self._buffer = self._buffer, b""
        self._resume_reading()
        self._pass_on(message + rest)

    def _pass_on(self, data: bytes) -> None:
        """Pass received bytes to aiohttp."""
        self._with_aiohttp = True
        self._incomplete_since = None
        self.holding.set("waiting", 0)
        self._passed_size += len(data)
        if len(self._passed) < _MAX_HEAD:
            self._passed += data[:_MAX_HEAD]
        self._inner.data_received(data)

    def pop_stream(self) -> EventStream | None:
        """Return the stream that answers the request that aiohttp has just read, or None."""
        stream, self._stream = self._stream, None
        return stream

    def count_handlers(self, change: int) -> None:
        """Count the running handlers of aiohttp: 1 for a started one, -1 for an ended one."""
        self._handlers += change
        if not self._handlers:
            self.holding.end_request()
        self._last_active = time.monotonic()

    async def finish(
        self, http: web.BaseRequest, response: web.StreamResponse, handler: HeadHandler | None
    ) -> None:
        """Send the response of aiohttp's handler, and remember the head of its request.

        Args:
            http: The request.
            response: The response.
            handler: Handles further requests with the same head, or None.
        """
        if self._transport.is_closing():
            return
        await response.prepare(http)
        await response.write_eof()
        end = self._passed.find(_HEAD_END)
        length = http.content_length or 0
        if (
            end < 0
            or not response.keep_alive
            or "Transfer-Encoding" in http.headers
            or "Upgrade" in http.headers
            or "Expect" in http.headers  # it waits for an interim response
            or end + len(_HEAD_END) + length != self._passed_size
            or self._transport.is_closing()
        ):
            return
        passed, self._passed, self._passed_size = self._passed, b"", 0
        self._with_aiohttp = False
        if handler is not None and http.method == "POST":
            self._remember(passed[: end + len(_HEAD_END)], length, handler)

    def _remember(self, head: bytes, length: int, handler: HeadHandler) -> None:
        lower = head.lower()
        name = lower.find(b"\r\n" + _LENGTH)
        if name < 0 or lower.find(_LENGTH, name + len(_LENGTH)) > 0 or b"\r\nexpect:" in lower:
            return
        start = name + 2 + len(_LENGTH)
        start += len(head[start:]) - len(head[start:].lstrip(b" \t"))
        end = head.index(b"\r", start)
        if head[start:end] != b"%d" % length:
            return
        known = KnownHead(head, start, end, handler)
        self._heads[known.key] = known
        self._newest = None  # another handler may have its head now

    def check_timeouts(self, now: float) -> None:
        """Close an idle or blocked connection; open the stream of a long request."""
        if self._blocked_since is not None and now - self._blocked_since > WRITE_TIMEOUT:
            self._transport.abort()
        elif self._task is not None:
            if now - self._last_active > PING and self._reply is not None:
                self._reply.open_stream()
        elif self._handlers:
            return
        elif now - self._last_active > _IDLE_TIMEOUT:
            self._transport.close()
        elif self._incomplete_since is not None and now - self._incomplete_since > _CHECK_INTERVAL:
            data, self._buffer = self._buffer, b""
            self._pass_on(data)

    @property
    def is_busy(self) -> bool:
        """Whether a request is handled, or has been received in part."""
        return bool(self._task is not None or self._handlers or self._buffer)

    def abort(self) -> None:
        """Close the connection at once, for the sake of another one."""
        self._table.remove(self._inner)
        self._transport.abort()

    def give_up(self) -> None:
        """Close the connection at once, and cancel its requests, for the memory that they hold."""
        self._cancel()
        self.holding.cancel_requests()
        self.abort()

    def close_idle(self) -> None:
        """Close the connection unless it is busy."""
        if not self.is_busy:
            self._transport.close()

    async def drain(self, timeout: float) -> None:
        """Wait for the request that is handled here."""
        if self._task is not None:
            self._over = self._loop.create_future()
            await asyncio.wait([self._over], timeout=timeout)


class FrontConnections(dict[Any, FrontConnection]):
    """All open connections, by aiohttp's protocol, the oldest first.

    Args:
        limit: The maximum number of connections; None means as many as the process may open.
    """

    def __init__(self, limit: int | None = None) -> None:
        super().__init__()
        self._limit = limit or _possible_connections()
        self._held: dict[Holder, dict[FrontConnection, None]] = {}
        self._bytes: HeldBytes[FrontConnection] = HeldBytes(bounds.MAX_HELD)

    def add(self, inner: Any, connection: FrontConnection) -> bool:
        """Add a connection, in place of another one if necessary; return False without room."""
        if len(self) >= self._limit and not self._make_room(connection.holder):
            return False
        self[inner] = connection
        self._held.setdefault(connection.holder, {})[connection] = None
        return True

    def remove(self, inner: Any) -> None:
        """Remove a connection; no-op if it has been removed."""
        connection = self.pop(inner, None)
        if connection is not None:
            self._forget(connection)

    def set_holder(self, connection: FrontConnection, holder: Holder) -> None:
        """Count a connection for its caller, who is known now."""
        if connection.holder != holder and connection in self._held.get(connection.holder, ()):
            self._forget(connection)
            connection.holder = holder
            self._held.setdefault(holder, {})[connection] = None
            self.hold(connection, connection.holding.size)

    def hold(self, connection: FrontConnection, size: int) -> None:
        """Count the bytes that a connection holds; close those that have to give way."""
        self._bytes.set(connection, connection.holder, size)
        for excess in self._bytes.pop_excess():
            _log.warning(_TOO_MUCH, excess.holder.tenant or excess.holder.principal)
            # Not now: whoever says what it holds may be writing to it.
            asyncio.get_running_loop().call_soon(excess.give_up)

    def _forget(self, connection: FrontConnection) -> None:
        held = self._held[connection.holder]
        del held[connection]
        if not held:
            del self._held[connection.holder]

    def _make_room(self, newcomer: Holder) -> bool:
        counts = {holder: len(held) for holder, held in self._held.items()}
        payer = who_gives_way(counts, newcomer)
        if payer is None:
            return False
        oldest = list(islice(self._held[payer.holder], _OLDEST))
        victim = next((connection for connection in oldest if not connection.is_busy), None)
        if victim is None and payer.at_once:
            victim = oldest[0]
        if victim is None:
            return False
        victim.abort()
        return True

    async def watch(self) -> None:
        """Check the timeouts of all connections until cancelled."""
        while True:
            await asyncio.sleep(_CHECK_INTERVAL)
            now = time.monotonic()
            for connection in tuple(self.values()):
                connection.check_timeouts(now)

    @property
    def busy(self) -> int:
        """The number of connections with a request in flight."""
        return sum(connection.is_busy for connection in self.values())

    def close_idle(self) -> None:
        for connection in tuple(self.values()):
            connection.close_idle()

    async def drain(self, timeout: float) -> None:
        """Wait for the requests that are handled without aiohttp."""
        await asyncio.gather(*(item.drain(timeout) for item in tuple(self.values())))


def _possible_connections() -> int:
    """Return how many connections the limit of open files leaves room for."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return _MAX_CONNECTIONS
    return max(min(_MAX_CONNECTIONS, files - _OTHER_FILES), files // 2)


def _response_head(status: int) -> bytes:
    return b"HTTP/1.1 %d %b" % (status, HTTPStatus(status).phrase.encode()) + _HEADERS


_cached_date: tuple[int, bytes] = (0, b"")


def _date() -> bytes:
    global _cached_date
    now = int(time.time())
    if _cached_date[0] != now:
        _cached_date = (now, formatdate(now, usegmt=True).encode())
    return _cached_date[1]
