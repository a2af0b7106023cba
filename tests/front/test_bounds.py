"""The front's limits against malicious and slow clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from tests.front.fakes import INITIALIZE, JSON, PING, FakeMethods, Sdk

from leaseway.front.app import McpListener
from leaseway.front.http import open_requests, request_checks, streams
from leaseway.front.http.callers import Callers
from leaseway.front.http.request_checks import AccessCheck
from leaseway.front.http.server import HttpServer
from leaseway.front.http.streamable import HttpFront
from leaseway.front.http.streams import EventStream
from leaseway.front.sessions.sealing import Owner, Sealer
from leaseway.front.sessions.table import MAX_SESSIONS, SessionTable, TooManySessions
from leaseway.wire.channels.endpoint import Endpoint

BOUND = 60


class StreamFront:
    """A front that responds with a given stream."""

    sessions, is_idle = 0, False

    def __init__(self, stream: EventStream) -> None:
        self._stream = stream
        self.writing = asyncio.Event()
        self.ended = asyncio.Event()

    def start(self) -> None: ...

    def end_streams(self) -> None: ...

    async def close(self) -> None: ...

    async def respond(self, http: web.BaseRequest) -> web.StreamResponse:
        if http.path == "/quick":
            return web.Response(text="quick")
        self.writing.set()
        try:
            return await self._stream.write(http)
        finally:
            self.ended.set()


def table(limit: int = MAX_SESSIONS) -> SessionTable:
    sdk: Any = Sdk()
    return SessionTable(sdk, Sealer("a key", "mcp session"), Owner("default"), limit=limit)


@asynccontextmanager
async def served(front: Any) -> AsyncIterator[str]:
    """Serve one front for all callers; yields the URL."""
    listener = McpListener(Endpoint("127.0.0.1", 0), None)
    callers = Callers(lambda *_: front, "default", "mcp", None, None)
    server = HttpServer(AccessCheck(listener.endpoint, None), callers)
    async with callers.running(), server.serving(listener.socket):
        yield f"http://{listener.endpoint}"


def http_front(sessions: SessionTable) -> HttpFront:
    methods: Any = FakeMethods()
    return HttpFront(methods, sessions)


async def test_the_limit_is_ten_thousand_sessions() -> None:
    sessions = table()
    first = sessions.create("", "2025-11-25", {})
    for _ in range(MAX_SESSIONS - 1):
        sessions.create("", "2025-11-25", {})
    with pytest.raises(TooManySessions, match="10000 sessions"):
        sessions.create("", "2025-11-25", {})
    stranger = table().create("", "2025-11-25", {})
    with pytest.raises(TooManySessions):
        sessions.find(stranger.id, "")
    assert sessions.find(first.id, "") is first
    await sessions.end(first)
    assert sessions.find(stranger.id, "") is not None
    assert len(sessions) == MAX_SESSIONS


async def test_at_the_session_limit_a_client_gets_retry_after() -> None:
    async with (
        served(http_front(table(limit=1))) as url,
        aiohttp.ClientSession(headers=JSON) as http,
    ):
        async with http.post(f"{url}/mcp", json=INITIALIZE) as answer:
            assert answer.status == 200
            session = {"Mcp-Session-Id": answer.headers["Mcp-Session-Id"]}
        async with http.post(f"{url}/mcp", json=INITIALIZE) as answer:
            assert answer.status == 503
            assert answer.headers["Retry-After"] == "10"
        for _ in range(2):  # the open session continues
            async with http.post(f"{url}/mcp", json=PING, headers=session) as answer:
                assert await answer.json() == {"jsonrpc": "2.0", "id": 1, "result": {}}
        async with http.delete(f"{url}/mcp", headers=session) as answer:
            assert answer.status == 204
        async with http.post(f"{url}/mcp", json=PING, headers=session) as answer:
            assert answer.status == 404


async def test_a_session_has_a_bounded_number_of_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_requests, "_MAX_STREAMS", 2)
    async with (
        asyncio.timeout(BOUND),
        served(http_front(table())) as url,
        aiohttp.ClientSession(headers=JSON) as http,
    ):
        async with http.post(f"{url}/mcp", json=INITIALIZE) as answer:
            session = {"Mcp-Session-Id": answer.headers["Mcp-Session-Id"]}
        kept = [await http.get(f"{url}/mcp", headers=session) for _ in range(2)]
        assert [answer.status for answer in kept] == [200, 200]
        async with http.get(f"{url}/mcp", headers=session) as answer:
            assert answer.status == 429
            assert "2 streams open" in (await answer.json())["error"]["message"]
        for answer in kept:
            answer.close()


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_the_streams_of_a_session_end_with_it(is_deleted: bool) -> None:
    sessions = table()
    async with (
        asyncio.timeout(BOUND),
        served(http_front(sessions)) as url,
        aiohttp.ClientSession(headers=JSON) as http,
    ):
        async with http.post(f"{url}/mcp", json=INITIALIZE) as answer:
            session = {"Mcp-Session-Id": answer.headers["Mcp-Session-Id"]}
        async with http.get(f"{url}/mcp", headers=session) as stream:
            assert await stream.content.readline() == b": ping\n"
            if is_deleted:
                async with http.delete(f"{url}/mcp", headers=session) as answer:
                    assert answer.status == 204
            else:  # for another one at the limit; its next stream tells what it misses
                assert sessions.forget_oldest()
            assert await stream.content.read() == b"\n"


async def test_the_older_transport_is_rejected_with_a_reason() -> None:
    async with served(http_front(table())) as url, aiohttp.ClientSession() as http:
        stream = {"Accept": "text/event-stream"}
        async with http.get(f"{url}/sse", headers=stream) as answer:
            assert answer.status == 404
            message = (await answer.json())["error"]["message"]
            assert "/mcp" in message
            assert "HTTP+SSE is not supported" in message


async def test_a_body_that_never_ends_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_checks, "_BODY_TIMEOUT", 0.2)

    async def body() -> AsyncIterator[bytes]:
        yield b'{"jsonrpc":'
        await asyncio.Event().wait()

    async with served(http_front(table())) as url, aiohttp.ClientSession(headers=JSON) as http:
        headers = {"Content-Type": "application/json"}
        async with (
            asyncio.timeout(BOUND),
            http.post(f"{url}/mcp", data=body(), headers=headers) as answer,
        ):
            assert answer.status == 408
            assert "did not arrive" in await answer.text()


async def test_a_client_that_does_not_read_blocks_no_other_and_is_disconnected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "WRITE_TIMEOUT", 0.5)
    stream = EventStream()
    front = StreamFront(stream)
    async with (
        asyncio.timeout(BOUND),
        served(front) as url,
        aiohttp.ClientSession() as http,
    ):
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
        writer.write(f"GET /stream HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
        await front.writing.wait()
        message = b"x" * (1 << 20)
        while not front.ended.is_set():
            stream.put(message)
            async with http.get(f"{url}/quick") as answer:
                assert await answer.text() == "quick"
        assert not stream.put(message)
        writer.close()
        del reader


async def test_a_full_stream_drops_messages_but_never_a_response() -> None:
    stream = EventStream()
    assert all(stream.put(b"progress") for _ in range(1024))
    assert not stream.put(b"progress")
    assert stream.put(b"the response", keep=True)
