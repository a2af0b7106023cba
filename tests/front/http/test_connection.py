"""Requests with a known head are handled directly, all others by aiohttp."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from leaseway.front.http.connection import FrontConnection, FrontConnections, HeadHandler
from leaseway.front.http.streams import HttpReply, json_response

BOUND = 30


class Direct:
    """A request without a task: it ends at once, or when a test says so."""

    def __init__(self, body: bytes, reply: HttpReply) -> None:
        self._body, self._reply, self._is_done = body, reply, False
        self.cancelled = asyncio.Event()
        if body == b"direct at once":
            self.end()

    def done(self) -> bool:
        return self._is_done

    def end(self) -> None:
        self._is_done = True
        self._reply.finish(b"taskless " + self._body)
        assert self._reply.owner is not None
        self._reply.owner.end_direct()

    def cancel_for_client(self) -> None:
        self.cancelled.set()


class Echo:
    """Responds with the body; the body `stream` makes it respond with a stream."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.read_by_aiohttp: list[bytes] = []
        self.cancelled = asyncio.Event()
        self.stuck = asyncio.Event()
        self.directs: asyncio.Queue[Direct] = asyncio.Queue()

    def start(self, body: bytes, reply: HttpReply) -> asyncio.Task[None] | Direct | None:
        if body == b"unknown":
            return None
        if body.startswith(b"direct"):
            direct = Direct(body, reply)
            self.directs.put_nowait(direct)
            return direct
        self.bodies.append(body)
        return asyncio.create_task(self.answer(body, reply))

    async def answer(self, body: bytes, reply: HttpReply) -> None:
        if body == b"stuck":
            self.stuck.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled.set()
        if body == b"stream":
            reply.send(b"first")
        reply.finish(b"direct " + body)


class Client:
    """Sends bytes and reads responses."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, body: bytes, *more: str, head: str = "POST / HTTP/1.1") -> None:
        lines = [head, "Host: here", *more, f"Content-Length: {len(body)}", "Accept: a", "", ""]
        self.writer.write("\r\n".join(lines).encode() + body)

    async def response(self) -> bytes:
        async with asyncio.timeout(BOUND):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
            assert head.startswith("http/1.1 200"), head
            if "chunked" in head:
                return await self.reader.readuntil(b"\r\n0\r\n\r\n")
            length = head.split("content-length: ")[1].split("\r\n")[0]
            return await self.reader.readexactly(int(length))

    async def call(self, body: bytes, *more: str) -> bytes:
        self.send(body, *more)
        return await self.response()


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Client, Echo, FrontConnections]]:
    echo, table = Echo(), FrontConnections()
    handler = HeadHandler(echo.start, cancel_on_disconnect=True, accepts_stream=True)

    async def handle(http: web.BaseRequest) -> web.StreamResponse:
        connection = table.get(http.protocol)
        assert connection is not None
        stream = connection.pop_stream()
        if stream is not None:
            response = await stream.write(http)
        else:
            body = await http.read()
            echo.read_by_aiohttp.append(body)
            response = json_response(b"read " + body)
        await connection.finish(http, response, handler)
        return response

    server = web.Server(handle)
    loop = asyncio.get_running_loop()
    bound = await loop.create_server(lambda: FrontConnection(server(), table), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*bound.sockets[0].getsockname())
    try:
        yield Client(reader, writer), echo, table
    finally:
        writer.close()
        bound.close()
        await server.shutdown(1)


async def test_a_known_head_is_handled_directly_with_any_content_length() -> None:
    async with connected() as (client, _, _):
        assert await client.call(b"one") == b"read one"
        assert await client.call(b"two") == b"direct two"
        assert await client.call(b"x" * 1000) == b"direct " + b"x" * 1000


@pytest.mark.parametrize("header", ["Authorization: Bearer other", "Mcp-Session-Id: other"])
async def test_a_different_head_is_read_by_aiohttp(header: str) -> None:
    async with connected() as (client, echo, _):
        await client.call(b"one")
        assert await client.call(b"two", header) == b"read two"
        assert await client.call(b"three", header) == b"direct three"
        assert echo.bodies == [b"three"]


async def test_a_message_in_pieces_is_assembled() -> None:
    async with connected() as (client, echo, _):
        await client.call(b"one")
        client.send(b"a body in pieces")
        whole = b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 7\r\nAccept: a\r\n\r\npi"
        await client.response()
        client.writer.write(whole)
        await client.writer.drain()
        await asyncio.sleep(0)
        client.writer.write(b"eces!")
        assert await client.response() == b"direct pieces!"
        assert echo.read_by_aiohttp == [b"one"]


async def test_pipelined_messages_are_answered_in_order() -> None:
    async with connected() as (client, _, _):
        await client.call(b"one")
        for body in (b"two", b"stream", b"three", b"unknown", b"four"):
            client.send(body)
        assert await client.response() == b"direct two"
        assert b"data: direct stream" in await client.response()
        assert [await client.response() for _ in range(3)] == [
            b"read three",
            b"read unknown",
            b"read four",
        ]


async def test_requests_without_tasks_are_answered_in_order_however_many_are_pipelined() -> None:
    async with connected() as (client, echo, table):
        await client.call(b"one")
        client.send(b"direct later")
        for _ in range(2000):  # each ends while it is started
            client.send(b"direct at once")
        async with asyncio.timeout(BOUND):
            first = await echo.directs.get()
            (connection,) = table.values()
            assert table.busy == 1
            draining = asyncio.create_task(connection.drain(BOUND))
            await asyncio.sleep(0)
            first.end()
            await draining
        assert await client.response() == b"taskless direct later"
        for _ in range(2000):
            assert await client.response() == b"taskless direct at once"
        assert table.busy == 0
        assert await client.call(b"two") == b"direct two"


async def test_a_reply_that_becomes_a_stream_is_sent_by_aiohttp_and_handled_once() -> None:
    async with connected() as (client, echo, _):
        await client.call(b"one")
        stream = await client.call(b"stream")
        assert stream.index(b"data: first") < stream.index(b"data: direct stream")
        assert echo.bodies == [b"stream"]
        assert echo.read_by_aiohttp == [b"one"]
        assert await client.call(b"after it") == b"direct after it"


async def test_an_incomplete_message_is_passed_to_aiohttp_after_a_timeout() -> None:
    async with connected() as (client, echo, table):
        await client.call(b"one")
        client.writer.write(
            b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 4\r\nAccept: a\r\n\r\nla"
        )
        await client.writer.drain()
        (connection,) = table.values()
        async with asyncio.timeout(BOUND):
            while connection._incomplete_since is None:
                await asyncio.sleep(0.01)
        connection.check_timeouts(connection._incomplete_since + 6)
        client.writer.write(b"te")
        assert await client.response() == b"read late"
        assert echo.bodies == []


async def test_a_lost_connection_cancels_its_request() -> None:
    async with connected() as (client, echo, table):
        await client.call(b"one")
        client.send(b"stuck")
        async with asyncio.timeout(BOUND):
            await echo.stuck.wait()
            client.writer.close()
            await echo.cancelled.wait()
            while len(table):
                await asyncio.sleep(0.01)


async def test_a_lost_connection_cancels_its_request_without_a_task() -> None:
    async with connected() as (client, echo, _):
        await client.call(b"one")
        client.send(b"direct")
        async with asyncio.timeout(BOUND):
            direct = await echo.directs.get()
            client.writer.close()
            await direct.cancelled.wait()


async def test_an_idle_connection_is_closed() -> None:
    async with connected() as (client, _, table):
        await client.call(b"one")
        (connection,) = table.values()
        connection.check_timeouts(connection._last_active + 76)
        async with asyncio.timeout(BOUND):
            assert await client.reader.read() == b""


async def test_a_client_that_does_not_read_is_disconnected() -> None:
    async with connected() as (client, _, table):
        await client.call(b"one")
        large = b"x" * 200_000
        (connection,) = table.values()
        async with asyncio.timeout(BOUND):
            while connection._blocked_since is None:
                client.send(large)
                await asyncio.sleep(0.001)
        connection.check_timeouts(connection._blocked_since + 61)
        async with asyncio.timeout(BOUND):
            while len(table):
                await asyncio.sleep(0.01)
