"""One connection of a client, on which requests like an earlier one are answered in place.

aiohttp reads a request whose head is new, and its handler checks it: credentials, origin, session,
versions. A later request on the same connection whose head is the same, byte for byte but for its
length, would be read and checked to the same end; it is answered without doing so again. Where
such an answer turns out to be a stream of events, the request is handed to aiohttp after all.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, Final, Protocol

from aiohttp import web

from leaseway.front.http.streams import PATIENCE, PING, EventStream, Reply

_IDLE: Final = 75.0
"""Seconds that a connection may wait for another request."""
_MOST_HEADS: Final = 16
"""Heads that one connection remembers: a modern client's names the tool."""
_LONGEST_HEAD: Final = 16 * 1024
_LONGEST: Final = 256 * 1024
"""A longer message is read by aiohttp, in pieces."""
_HELD_FOR: Final = 5.0
"""Seconds after which the rest of a message is waited for by aiohttp, which tells its client."""
_END: Final = b"\r\n\r\n"
_REST: Final = b"\r\nContent-Type: application/json\r\nContent-Length: %d\r\nDate: %b\r\n\r\n"
_HEAD: Final = b"HTTP/1.1 200 OK" + _REST
_LENGTH: Final = b"content-length:"


class Known(Protocol):
    """What a head is known to lead to."""

    def begin(self, body: bytes, reply: Reply) -> asyncio.Task[None] | None:
        """Begin to answer a request; None where it has to be read and checked anew."""

    @property
    def ends_with_connection(self) -> bool:
        """Whether a client that loses its connection has cancelled its request."""


class Head:
    """The head of an earlier request, around the digits of its length.

    Args:
        before: Its bytes up to those digits.
        after: Its bytes behind them.
        known: What it leads to.
    """

    __slots__ = ("_after", "_before", "known")

    def __init__(self, before: bytes, after: bytes, known: Known) -> None:
        self._before = before
        self._after = after
        self.known = known

    @property
    def name(self) -> tuple[bytes, bytes]:
        return self._before, self._after

    def split(self, data: bytes) -> tuple[int, int] | None:
        """Return where the body of a message begins and ends, or None where its head differs."""
        if not data.startswith(self._before):
            return None
        start = len(self._before)
        end = data.find(b"\r", start, start + 8)
        digits = data[start:end]
        if end < 0 or not digits.isdigit() or not data.startswith(self._after, end):
            return None
        begins = end + len(self._after)
        return begins, begins + int(digits)


class Connection(asyncio.Protocol):
    """One connection.

    Args:
        inner: aiohttp's side of it.
        table: All connections; it is one of them while it is open.
    """

    def __init__(self, inner: Any, table: Connections) -> None:
        self._inner = inner
        self._table = table
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self._heads: OrderedDict[tuple[bytes, bytes], Head] = OrderedDict()
        # What aiohttp was given since it was last known to wait for a new message.
        self._with_aiohttp = False
        self._given = b""
        self._given_size = 0
        self._handling = 0
        # What is answered in place, and what came behind it.
        self._task: asyncio.Task[None] | None = None
        self._known: Known | None = None
        self._reply: Reply | None = None
        self._message = b""
        self._handed = False
        self._stream: EventStream | None = None
        self._held = b""
        self._part_since: float | None = None
        self._paused = False
        self._last = time.monotonic()
        self._full_since: float | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._table.add(self._inner, self)
        self._inner.connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """End; what is under way ends with it where that is what its client means."""
        self._table.discard(self._inner)
        self._inner.connection_lost(exc)
        task, known = self._task, self._known
        if task is not None and known is not None and known.ends_with_connection:
            task.cancel()

    def eof_received(self) -> bool | None:
        ends: bool | None = self._inner.eof_received()
        return ends

    def pause_writing(self) -> None:
        """Note that the client does not read."""
        self._full_since = time.monotonic()
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Note that it does again."""
        self._full_since = None
        self._inner.resume_writing()
        if self._held and not self._with_aiohttp and self._task is None:
            self._next()

    def data_received(self, data: bytes) -> None:
        """Receive what came."""
        if self._with_aiohttp:
            self._give(data)
        elif self._task is not None or self._full_since is not None:
            self._held += data
            if len(self._held) > _LONGEST and not self._paused:
                self._paused = True
                self._transport.pause_reading()
        elif self._held:
            self._held += data
            self._next()
        else:
            self._take(data)

    def _next(self) -> None:
        data, self._held = self._held, b""
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        self._take(data)

    def _take(self, data: bytes) -> None:
        for head in reversed(self._heads.values()):
            found = head.split(data)
            if found is None:
                continue
            begins, ends = found
            if ends > _LONGEST:
                break
            if ends > len(data):
                self._held = data
                if self._part_since is None:
                    self._part_since = time.monotonic()
                return
            self._begin(head.known, data[:ends], data[begins:ends], data[ends:])
            return
        self._give(data)

    def _begin(self, known: Known, message: bytes, body: bytes, rest: bytes) -> None:
        reply = Reply(self, times=False)
        self._part_since = None
        self._message, self._held, self._handed = message, rest, False
        task = known.begin(body, reply)
        if task is None:
            self._message, self._held = b"", b""
            self._give(message + rest)
            return
        self._task, self._known, self._reply = task, known, reply
        self._last = time.monotonic()
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = self._known = self._reply = None
        self._message = b""
        self._last = time.monotonic()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._loop.call_exception_handler(
                {"message": "A request failed.", "exception": error, "task": task}
            )
            self._transport.abort()
        if task.cancelled() and not self._handed:
            self._transport.abort()  # nothing was answered
        elif self._held and not self._with_aiohttp and self._full_since is None:
            self._next()

    def message(self, message: bytes, status: int) -> None:
        """Answer with one message as JSON."""
        head = _HEAD if status == 200 else _head(status)
        self._write(head % (len(message), _date()), message)

    def nothing(self) -> None:
        """Answer without a message."""
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

    def stream(self, stream: EventStream) -> None:
        """Answer with a stream of events: aiohttp reads the request after all, and sends it."""
        self._stream, self._handed = stream, True
        message, self._message = self._message, b""
        rest, self._held = self._held, b""
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        self._give(message + rest)

    def _give(self, data: bytes) -> None:
        self._with_aiohttp = True
        self._part_since = None
        self._given_size += len(data)
        if len(self._given) < _LONGEST_HEAD:
            self._given += data[:_LONGEST_HEAD]
        self._inner.data_received(data)

    def claimed(self) -> EventStream | None:
        """Return the stream that answers the request which aiohttp has just read, or None."""
        stream, self._stream = self._stream, None
        return stream

    def handling(self, change: int) -> None:
        """Note that aiohttp's handler has begun (1) or ended (-1)."""
        self._handling += change
        self._last = time.monotonic()

    async def answered(
        self, http: web.BaseRequest, response: web.StreamResponse, known: Known | None
    ) -> None:
        """Send what aiohttp's handler answered, and remember what its head leads to.

        Args:
            http: The request.
            response: The answer.
            known: What the head leads to; None where nothing is known.
        """
        if self._transport.is_closing():
            return
        await response.prepare(http)
        await response.write_eof()
        end = self._given.find(_END)
        length = http.content_length or 0
        if (
            end < 0
            or not response.keep_alive
            or "Transfer-Encoding" in http.headers
            or "Upgrade" in http.headers
            or end + len(_END) + length != self._given_size
            or self._transport.is_closing()
        ):
            return
        given, self._given, self._given_size = self._given, b"", 0
        self._with_aiohttp = False
        if known is not None and http.method == "POST":
            self._remember(given[: end + len(_END)], length, known)

    def _remember(self, head: bytes, length: int, known: Known) -> None:
        lower = head.lower()
        name = lower.find(b"\r\n" + _LENGTH)
        if name < 0 or lower.find(_LENGTH, name + len(_LENGTH)) > 0 or b"\r\nexpect:" in lower:
            return
        start = name + 2 + len(_LENGTH)
        start += len(head[start:]) - len(head[start:].lstrip(b" \t"))
        end = head.index(b"\r", start)
        if head[start:end] != b"%d" % length:
            return
        kept = Head(head[:start], head[end:], known)
        self._heads[kept.name] = kept
        self._heads.move_to_end(kept.name)
        if len(self._heads) > _MOST_HEADS:
            self._heads.popitem(last=False)

    def look(self, now: float) -> None:
        """Close the connection where nothing comes of it, and let a long call be heard of."""
        if self._full_since is not None and now - self._full_since > PATIENCE:
            self._transport.abort()
        elif self._task is not None:
            if now - self._last > PING and self._reply is not None:
                self._reply.begin()
        elif self._handling:
            return
        elif now - self._last > _IDLE:
            self._transport.close()
        elif self._part_since is not None and now - self._part_since > _HELD_FOR:
            held, self._held = self._held, b""
            self._give(held)

    async def end(self, within: float) -> None:
        """Wait for what is answered in place, for a moment."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=within)


class Connections:
    """All open connections, by aiohttp's side of them."""

    def __init__(self) -> None:
        self._open: dict[Any, Connection] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, inner: Any, connection: Connection) -> None:
        self._open[inner] = connection

    def discard(self, inner: Any) -> None:
        self._open.pop(inner, None)

    def of(self, http: web.BaseRequest) -> Connection | None:
        """Return the one that a request came on; None where it has just been lost."""
        return self._open.get(http.protocol)

    async def look(self) -> None:
        """Look after them for as long as this runs."""
        while True:
            await asyncio.sleep(_HELD_FOR)
            now = time.monotonic()
            for connection in tuple(self._open.values()):
                connection.look(now)

    async def end(self, within: float) -> None:
        """Wait for what is under way, for a moment."""
        await asyncio.gather(*(each.end(within) for each in tuple(self._open.values())))


def _head(status: int) -> bytes:
    return b"HTTP/1.1 %d %b" % (status, HTTPStatus(status).phrase.encode()) + _REST


_dated: tuple[int, bytes] = (0, b"")


def _date() -> bytes:
    global _dated
    now = int(time.time())
    if _dated[0] != now:
        _dated = (now, formatdate(now, usegmt=True).encode())
    return _dated[1]
