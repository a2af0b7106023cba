"""Closed loops of HTTP requests from raw sockets, to measure servers and not an HTTP client.

A caller has one connection and sends prepared bytes. A client library takes as much time for a call
as the fastest servers do, so that it would be half of every figure.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import re
import select
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from benchmarks.figures import Load
from benchmarks.load import WARM_UP, Meter

__all__ = ["HttpDriver", "RawCall", "open_mcp"]

_TIMEOUT: Final = 30.0
"""Seconds without any response after which a load fails."""
_PIECE: Final = 256 * 1024
_HEAD_END: Final = b"\r\n\r\n"
_OBJECT: Final = re.compile(rb"\{.*\}", re.DOTALL)
_CHUNK_LENGTH: Final = re.compile(rb"\r\n[0-9a-fA-F]+\r\n")
_LAST_CHUNK: Final = b"0\r\n\r\n"
_FIRST_ID: Final = 10**9
"""Ids have a constant number of digits, so that all requests have the same head."""
_PROTOCOL: Final = "2025-06-18"
_HEADERS: Final = {
    "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream",
}


@dataclass(frozen=True)
class RawCall:
    """The requests of one load, which differ in their id alone.

    Attributes:
        before: A request up to its id, or all of it if its requests have none.
        after: What follows the id.
        expected: What a correct response contains, besides the id.
        has_id: Whether requests have an id.
    """

    before: bytes
    after: bytes
    expected: bytes
    has_id: bool = True

    @classmethod
    def of(
        cls, url: str, headers: Mapping[str, str], body: tuple[bytes, bytes], expected: str
    ) -> RawCall:
        """Build the requests to POST to a URL; a body is in two parts, the id between them.

        An empty second part means that there is no id.
        """
        before, after = body
        length = len(before) + len(after) + (len(b"%d" % _FIRST_ID) if after else 0)
        parts = urlsplit(url)
        lines = [f"POST {parts.path} HTTP/1.1", f"Host: {parts.netloc}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        head = "\r\n".join([*lines, f"Content-Length: {length}", "", ""]).encode()
        return cls(head + before, after, expected.encode(), bool(after))


class HttpDriver:
    """Calls from a thread of this process, one connection for each caller.

    Args:
        address: Host and port of the server.
        call: The requests.
        pids: The processes between caller and server.
    """

    def __init__(self, address: tuple[str, int], call: RawCall, pids: Sequence[int]) -> None:
        self._address = address
        self._call = call
        self._ids = itertools.count(_FIRST_ID)
        self.pids = pids

    async def load(self, in_flight: int, seconds: float) -> Load:
        """Run callers for a number of seconds and measure their calls."""
        return await asyncio.to_thread(self._load, in_flight, seconds)

    def _load(self, in_flight: int, seconds: float) -> Load:
        with _Loop(self._address, self._call, self._ids, in_flight) as loop:
            loop.run(min(WARM_UP, seconds))
            meter = Meter(in_flight, self.pids)
            return meter.read(loop.run(seconds))


class _Caller:
    """One connection, with at most one request.

    Args:
        address: Host and port of the server.
    """

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, timeout=_TIMEOUT)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.number = b""
        self.start = 0.0
        self.received = b""

    def send(self, call: RawCall, number: int) -> None:
        self.received = b""
        self.number = b"%d" % number if call.has_id else b""
        self.start = time.perf_counter()
        self.socket.sendall(call.before + self.number + call.after)

    def receive(self, call: RawCall) -> bool:
        """Read what has arrived; return whether the response is complete.

        Raises:
            RuntimeError: It is wrong, or the server has closed the connection.
        """
        piece = self.socket.recv(_PIECE)
        self.received = received = self.received + piece if self.received else piece
        if piece and not is_complete(received):
            return False
        if not (call.expected in received and self.number in received):
            raise RuntimeError(f"A response is wrong: {received[:500]!r}")
        return True


class _Loop:
    """The connections of one load."""

    def __init__(
        self, address: tuple[str, int], call: RawCall, ids: Iterator[int], in_flight: int
    ) -> None:
        self._call = call
        self._ids = ids
        self._poll = select.epoll()
        self._callers: dict[int, _Caller] = {}
        for _ in range(in_flight):
            caller = _Caller(address)
            self._callers[caller.socket.fileno()] = caller
            self._poll.register(caller.socket, select.EPOLLIN)

    def __enter__(self) -> _Loop:
        return self

    def __exit__(self, *_: object) -> None:
        self._poll.close()
        for caller in self._callers.values():
            caller.socket.close()

    def run(self, seconds: float) -> list[float]:
        """Return the durations of the calls that ended; none is in flight afterwards."""
        durations: list[float] = []
        callers, call, ids, clock = self._callers, self._call, self._ids, time.perf_counter
        end = clock() + seconds
        for caller in callers.values():
            caller.send(call, next(ids))
        waiting = len(callers)
        while waiting:
            ready = self._poll.poll(_TIMEOUT)
            if not ready:
                raise RuntimeError(f"The server has sent nothing for {_TIMEOUT:g} s.")
            for descriptor, _ in ready:
                caller = callers[descriptor]
                if not caller.receive(call):
                    continue
                now = clock()
                durations.append(now - caller.start)
                if now < end:
                    caller.send(call, next(ids))
                else:
                    waiting -= 1
        return durations


def is_complete(received: bytes) -> bool:
    """Return whether bytes are a whole response, with a length or in chunks."""
    end = received.find(_HEAD_END)
    if end < 0:
        return False
    head = received[:end].lower()
    at = head.find(b"\r\ncontent-length:")
    if at >= 0:
        length = int(head[at + 17 :].split(b"\r", 1)[0])
        return len(received) >= end + len(_HEAD_END) + length
    # No JSON ends like the last chunk.
    return received.endswith(_LAST_CHUNK)


@dataclass
class _Handshake:
    """The headers that a session's requests carry."""

    address: tuple[str, int]
    url: str
    headers: dict[str, str] = field(default_factory=lambda: dict(_HEADERS))

    def post(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Send a message; return the response to it, or nothing to a notification.

        Raises:
            RuntimeError: It is refused.
        """
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        call = RawCall.of(self.url, self.headers, (body, b""), "HTTP/1.1 2")
        caller = _Caller(self.address)
        with caller.socket:
            caller.send(call, 0)
            while not caller.receive(call):
                pass
        for line in caller.received.partition(_HEAD_END)[0].decode("latin-1").split("\r\n"):
            name, _, value = line.partition(":")
            if name.lower() == "mcp-session-id":
                self.headers[name] = value.strip()
        return _message_in(caller.received)


def _message_in(received: bytes) -> dict[str, Any]:
    """Return the JSON object in a response: its body, or an event in one."""
    found = _OBJECT.search(received.partition(_HEAD_END)[2])
    if found is None:
        return {}
    # An event stream in chunks has their lengths between parts of the object.
    text = _CHUNK_LENGTH.sub(b"", found[0]) if b"\r\n" in found[0] else found[0]
    message: dict[str, Any] = json.loads(text)
    return message


def _open_session(urls: Sequence[str]) -> _Handshake:
    """Open an MCP session at the first of the URLs that serves MCP.

    Raises:
        RuntimeError: None does.
    """
    for url in urls[:-1]:
        with contextlib.suppress(RuntimeError):
            return _opened(url)
    return _opened(urls[-1])


def _opened(url: str) -> _Handshake:
    parts = urlsplit(url)
    handshake = _Handshake((parts.hostname or "", parts.port or 80), url)
    params = {
        "protocolVersion": _PROTOCOL,
        "capabilities": {},
        "clientInfo": {"name": "bench", "version": "1"},
    }
    handshake.post({"id": 0, "method": "initialize", "params": params})
    handshake.headers["Mcp-Protocol-Version"] = _PROTOCOL
    handshake.post({"method": "notifications/initialized"})
    return handshake


def _tool_called(word: str, handshake: _Handshake) -> str:
    """Return the listed tool whose name ends with a word: gateways add prefixes to names.

    Raises:
        RuntimeError: There is none, or there are several.
    """
    listed = handshake.post({"id": 1, "method": "tools/list"})["result"]["tools"]
    names = [tool["name"] for tool in listed if tool["name"].endswith(word)]
    if len(names) != 1:
        raise RuntimeError(f"One tool's name should end with {word}, not those of {names}.")
    return str(names[0])


async def open_mcp(
    urls: Sequence[str], tool: str, text: str, pids: Sequence[int], *, is_listed: bool = False
) -> HttpDriver:
    """Open an MCP session over streamable HTTP; return the driver of calls with one text.

    Args:
        urls: Where the server may be; the first that serves MCP is used.
        tool: The tool to call.
        text: Its argument `text`, which a result repeats.
        pids: The processes between caller and server.
        is_listed: Whether the server lists its tools, of which the one is called whose name ends
            with `tool`.

    Raises:
        RuntimeError: No URL serves MCP, or no tool has this name.
    """
    handshake = await asyncio.to_thread(_open_session, urls)
    name = await asyncio.to_thread(_tool_called, tool, handshake) if is_listed else tool
    rest = {"method": "tools/call", "params": {"name": name, "arguments": {"text": text}}}
    body = b'{"jsonrpc":"2.0","id":', b"," + json.dumps(rest).encode()[1:]
    call = RawCall.of(handshake.url, handshake.headers, body, f'"{text}"')
    return HttpDriver(handshake.address, call, pids)
