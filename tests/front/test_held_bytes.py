"""What clients do not read, or do not finish to send, takes a bounded part of a front's memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from aiohttp import web
from tests.front.http.fake_fronts import BOUND, FakeFront, Keys

from leaseway.front.app import McpListener
from leaseway.front.http.callers import Callers
from leaseway.front.http.connection import FrontConnection, FrontConnections, HeadHandler
from leaseway.front.http.request_checks import AccessCheck, HttpError, read_body
from leaseway.front.http.resumption import ResumableStreams
from leaseway.front.http.server import HttpServer
from leaseway.front.http.streams import Holding
from leaseway.identity.authenticator import Authenticator
from leaseway.wire import bounds
from leaseway.wire.bounds import MIB
from leaseway.wire.channels.endpoint import Endpoint
from leaseway.wire.sharing.fair_shares import Holder
from leaseway.wire.sharing.held_bytes import HeldBytes

RESPONSE = 12 * MIB
"""Bytes of a response, of which the sockets of both sides keep some."""
LIMIT = 30 * MIB


class LargeFront(FakeFront):
    """Responds to GET with a large body, and reads that of POST."""

    async def respond(self, http: web.BaseRequest) -> web.Response:
        if http.method == "POST":
            return web.Response(body=b"%d" % len(await read_body(http)))
        return web.Response(body=bytes(RESPONSE))


class Client:
    """A client that sends what a test lets it send, and reads nothing by itself."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: str):
        self.reader, self.writer, self._key = reader, writer, key

    async def send(self, method: str, length: int, body: bytes = b"") -> None:
        head = f"{method} /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self._key}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        self.writer.write(head.encode() + body)
        await self.writer.drain()

    async def response(self) -> bytes:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
        assert head.startswith("http/1.1 200"), head
        length = head.split("content-length: ")[1].split("\r\n")[0]
        return await self.reader.readexactly(int(length))


class Served:
    """A front of keys."""

    def __init__(self, address: tuple[str, int], connections: FrontConnections) -> None:
        self._address, self.connections = address, connections
        self._clients: list[Client] = []

    async def connect(self, key: str) -> Client:
        reader, writer = await asyncio.open_connection(*self._address, limit=1024)
        self._clients.append(Client(reader, writer, key))
        return self._clients[-1]

    @property
    def held(self) -> int:
        return self.connections._bytes.total

    def close(self) -> None:
        for client in self._clients:
            client.writer.close()


@asynccontextmanager
async def served(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    monkeypatch.setattr(bounds, "MAX_HELD", LIMIT)
    build: Any = LargeFront
    callers = Callers(build, "none", "mcp", None, Authenticator(keys=keys.file))
    listener = McpListener(Endpoint("127.0.0.1", 0), None)
    server = HttpServer(AccessCheck(listener.endpoint, None), callers)
    async with asyncio.timeout(BOUND), callers.running(), server.serving(listener.socket):
        endpoint = listener.endpoint
        front = Served((endpoint.host, endpoint.port), server._connections)
        try:
            yield front
        finally:
            front.close()


async def test_responses_that_a_tenant_does_not_read_cost_its_connections_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = Keys(tmp_path)
    greedy, quiet = keys.make("acme"), keys.make("beta")
    async with served(keys, monkeypatch) as front:
        slow = await front.connect(quiet)
        await slow.send("GET", 0)
        for _ in range(12):
            await (await front.connect(greedy)).send("GET", 0)
        while len(front.connections) > 1 + LIMIT // (RESPONSE // 2):
            await asyncio.sleep(0.01)
            assert front.held <= LIMIT
        assert len(await slow.response()) == RESPONSE


async def test_messages_that_a_tenant_does_not_finish_cost_its_connections_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = Keys(tmp_path)
    greedy, quiet = keys.make("acme"), keys.make("beta")
    async with served(keys, monkeypatch) as front:
        late = await front.connect(quiet)
        await late.send("POST", 4 * MIB, bytes(4 * MIB - 1))
        for _ in range(12):
            await (await front.connect(greedy)).send("POST", 4 * MIB, bytes(4 * MIB - 1))
        while len(front.connections) > LIMIT // (4 * MIB):
            await asyncio.sleep(0.01)
        assert front.held <= LIMIT
        late.writer.write(b"}")
        assert await late.response() == b"%d" % (4 * MIB)
        assert front.held <= LIMIT - 4 * MIB


async def test_a_request_that_outlives_its_connection_counts_until_it_ends() -> None:
    sizes: list[int] = []
    holding = Holding(sizes.append)
    handling = asyncio.create_task(asyncio.Event().wait())
    holding.set("request", MIB)
    holding.set("unread", MIB)
    holding.keep_for([handling])
    holding.end_request()
    holding.lose_connection(is_handled=False)
    assert sizes[-1] == MIB
    holding.cancel_requests()
    await asyncio.wait([handling])
    await asyncio.sleep(0)
    assert sizes[-1] == 0


async def test_a_request_whose_connection_is_lost_before_its_handler_starts_counts_no_more() -> (
    None
):
    table = FrontConnections()
    connection = FrontConnection(Mock(), table)
    connection.connection_made(Mock())
    unknown = HeadHandler(
        lambda _body, _reply: None, cancel_on_disconnect=True, accepts_stream=True
    )
    connection._start(unknown, bytes(MIB), b"", b"")
    assert table._bytes.total == MIB
    connection.connection_lost(None)
    assert table._bytes.total == 0


def test_streams_that_can_be_resumed_are_bounded_over_all_credentials() -> None:
    kept: HeldBytes[Any] = HeldBytes(3 * MIB)
    live: Any = SimpleNamespace(sealed=SimpleNamespace(version="2025-06-18"))
    callers = [ResumableStreams(Holder("acme", f"key {number}"), kept) for number in range(4)]
    streams: list[Any] = [caller.open(live, "") for caller in callers for _ in range(2)]
    for stream in streams:
        stream.put(bytes(MIB), keep=True)
        assert kept.total <= 3 * MIB
    assert callers[3].resumed(live, f"{streams[-1]._name.decode()}-0") is streams[-1]
    with pytest.raises(HttpError, match="not known here"):
        callers[0].resumed(live, f"{streams[0]._name.decode()}-0")
    for caller in callers:
        caller.close()
    assert kept.total == 0
