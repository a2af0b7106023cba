"""Requests with a known head are answered in place; whatever else comes is for aiohttp."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from leaseway.front.http.connection import Connection, Connections
from leaseway.front.http.streams import Reply, json_response

BOUND = 30


class Echo:
    """Answers with the body; what it is told to stream, it streams."""

    ends_with_connection = True

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.read_by_aiohttp: list[bytes] = []
        self.cancelled = asyncio.Event()
        self.stuck = asyncio.Event()

    def begin(self, body: bytes, reply: Reply) -> asyncio.Task[None] | None:
        if body == b"unknown":
            return None
        self.bodies.append(body)
        reply.streams = True
        return asyncio.create_task(self.answer(body, reply))

    async def answer(self, body: bytes, reply: Reply) -> None:
        if body == b"stuck":
            self.stuck.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled.set()
        if body == b"stream":
            reply.send(b"first")
        reply.finish(b"in place " + body)


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

    async def ask(self, body: bytes, *more: str) -> bytes:
        self.send(body, *more)
        return await self.response()


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Client, Echo, Connections]]:
    echo, table = Echo(), Connections()

    async def handle(http: web.BaseRequest) -> web.StreamResponse:
        connection = table.of(http)
        assert connection is not None
        stream = connection.claimed()
        if stream is not None:
            response = await stream.write(http)
        else:
            body = await http.read()
            echo.read_by_aiohttp.append(body)
            response = json_response(b"read " + body)
        await connection.answered(http, response, echo)
        return response

    server = web.Server(handle)
    loop = asyncio.get_running_loop()
    bound = await loop.create_server(lambda: Connection(server(), table), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*bound.sockets[0].getsockname())
    try:
        yield Client(reader, writer), echo, table
    finally:
        writer.close()
        bound.close()
        await server.shutdown(1)


async def test_a_head_that_is_known_is_answered_in_place_whatever_its_length() -> None:
    async with connected() as (client, _, _):
        assert await client.ask(b"one") == b"read one"
        assert await client.ask(b"two") == b"in place two"
        assert await client.ask(b"x" * 1000) == b"in place " + b"x" * 1000


@pytest.mark.parametrize("header", ["Authorization: Bearer other", "Mcp-Session-Id: other"])
async def test_a_head_that_differs_is_read_anew(header: str) -> None:
    async with connected() as (client, echo, _):
        await client.ask(b"one")
        assert await client.ask(b"two", header) == b"read two"
        assert await client.ask(b"three", header) == b"in place three"
        assert echo.bodies == [b"three"]


async def test_a_message_in_pieces_is_put_together() -> None:
    async with connected() as (client, echo, _):
        await client.ask(b"one")
        client.send(b"a body in pieces")
        whole = b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 7\r\nAccept: a\r\n\r\npi"
        await client.response()
        client.writer.write(whole)
        await client.writer.drain()
        await asyncio.sleep(0)
        client.writer.write(b"eces!")
        assert await client.response() == b"in place pieces!"
        assert echo.read_by_aiohttp == [b"one"]


async def test_messages_behind_each_other_are_answered_in_their_order() -> None:
    async with connected() as (client, _, _):
        await client.ask(b"one")
        for body in (b"two", b"stream", b"three", b"unknown", b"four"):
            client.send(body)
        assert await client.response() == b"in place two"
        assert b"data: in place stream" in await client.response()
        assert [await client.response() for _ in range(3)] == [
            b"read three",
            b"read unknown",
            b"read four",
        ]


async def test_an_answer_that_becomes_a_stream_is_sent_by_aiohttp_and_asked_for_once() -> None:
    async with connected() as (client, echo, _):
        await client.ask(b"one")
        said = await client.ask(b"stream")
        assert said.index(b"data: first") < said.index(b"data: in place stream")
        assert echo.bodies == [b"stream"]
        assert echo.read_by_aiohttp == [b"one"]
        assert await client.ask(b"after it") == b"in place after it"


async def test_the_rest_of_a_message_is_waited_for_by_aiohttp_in_the_end() -> None:
    async with connected() as (client, echo, table):
        await client.ask(b"one")
        client.writer.write(
            b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 4\r\nAccept: a\r\n\r\nla"
        )
        await client.writer.drain()
        (connection,) = table._open.values()
        async with asyncio.timeout(BOUND):
            while connection._part_since is None:
                await asyncio.sleep(0.01)
        connection.look(connection._part_since + 6)
        client.writer.write(b"te")
        assert await client.response() == b"read late"
        assert echo.bodies == []


async def test_a_client_that_hangs_up_cancels_where_that_is_meant() -> None:
    async with connected() as (client, echo, table):
        await client.ask(b"one")
        client.send(b"stuck")
        async with asyncio.timeout(BOUND):
            await echo.stuck.wait()
            client.writer.close()
            await echo.cancelled.wait()
            while len(table):
                await asyncio.sleep(0.01)


async def test_a_connection_on_which_nothing_comes_is_closed() -> None:
    async with connected() as (client, _, table):
        await client.ask(b"one")
        (connection,) = table._open.values()
        connection.look(connection._last + 76)
        async with asyncio.timeout(BOUND):
            assert await client.reader.read() == b""


async def test_a_client_that_reads_nothing_is_cut_off() -> None:
    async with connected() as (client, _, table):
        await client.ask(b"one")
        large = b"x" * 200_000
        (connection,) = table._open.values()
        async with asyncio.timeout(BOUND):
            while connection._full_since is None:
                client.send(large)
                await asyncio.sleep(0.001)
        connection.look(connection._full_since + 61)
        async with asyncio.timeout(BOUND):
            while len(table):
                await asyncio.sleep(0.01)
