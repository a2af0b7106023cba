"""Faults of HTTP servers affect only their own calls."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.conftest import BOUND
from tests.data_plane.mcp.conftest import Bench

from leaseway.wire.errors import Reason


@pytest.fixture(params=[(), ("--legacy",)], ids=["modern", "legacy"])
async def address(request: pytest.FixtureRequest, bench: Bench) -> AsyncIterator[str]:
    async with bench.serving("http_raw", *request.param) as address:
        yield address


@pytest.mark.parametrize("how", ["trickle", "trickle events", "trickle headers"])
async def test_a_response_that_trickles_can_be_cancelled(
    bench: Bench, address: str, how: str
) -> None:
    instance = await bench.start(bench.http_spec(f"{address}/mcp"))
    call, outcome = bench.start_call(instance, "echo", {"text": how})
    await bench.written(call)
    assert await bench.text(instance, "echo", {"text": "meanwhile"}) == "meanwhile"
    assert not outcome.done()
    call.cancel("the deadline has passed")
    assert instance.in_flight == 0
    assert await bench.text(instance, "echo", {"text": "on"}) == "on"
    async with asyncio.timeout(BOUND):
        await instance.close()


async def test_a_burst_of_server_errors_does_not_affect_the_connection(
    bench: Bench, address: str
) -> None:
    instance = await bench.start(bench.http_spec(f"{address}/mcp"))
    slow = [bench.start_call(instance, "echo", {"text": "slow"})[1] for _ in range(5)]
    burst = (bench.call(instance, "echo", {"text": f"status {500 + n % 5}"}) for n in range(100))
    faults = [outcome.fault for outcome in await asyncio.gather(*burst)]
    assert {fault.reason for fault in faults if fault} == {Reason.SERVER_ERROR}
    assert {fault.started for fault in faults if fault} == {"unknown", "no"}
    async with asyncio.timeout(BOUND):
        assert [(await outcome).fault for outcome in slow] == [None] * 5
    assert await bench.text(instance, "echo", {"text": "on"}) == "on"
    assert instance.state == "ready"


RPC = '{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Unauthorized"}}'


@pytest.mark.parametrize("protocol", ["auto", "legacy", "2026-07-28"])
@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (
            401,
            '{"error":"invalid_token","error_description":"expired"}',
            "it requires a credential",
        ),
        (401, RPC, "it requires a credential"),
        (403, "", "its credential does not allow that; check headers in its entry"),
        (403, "Forbidden: invalid Host header", "does not accept requests for this host name"),
        (403, RPC.replace("Unauthorized", "Invalid Host: a.test"), "does not accept requests for"),
        (403, "Invalid Origin header", "or from this origin"),
        (403, "<!DOCTYPE html><p>Origin</p>", ": that is a web page, as of a firewall or proxy "),
        (421, "Invalid Host header", "which hosts and origins it allows"),
        (503, "closed for repairs\nuntil noon", "HTTP status 503 (closed for repairs)."),
        (418, "<html>tea</html>", "HTTP status 418."),
    ],
)
async def test_a_start_with_an_error_status_reports_it(
    bench: Bench, status: int, body: str, words: str, protocol: str
) -> None:
    async def refuse(_: web.Request) -> web.Response:
        return web.Response(status=status, text=body)

    app = web.Application()
    app.router.add_route("*", "/mcp", refuse)
    async with TestServer(app) as server:
        where = f"{server.make_url('')}".rstrip("/")
        fault = await bench.fails(bench.http_spec(f"{where}/mcp?key=k3y", protocol=protocol))
    assert words in fault.message
    assert fault.metadata["http_status"] == str(status)
    assert "agree on a protocol" not in fault.message
    assert "k3y" not in fault.message
    if status in (401, 403):
        assert f"HTTP status {status} from {where}" in fault.message


@pytest.mark.parametrize(
    ("status", "challenge", "words"),
    [
        (401, 'Bearer resource_metadata="https://a.test/x"', "such as auth: { authorization_code"),
        (
            403,
            'Bearer error="insufficient_scope", scope="mail.read"',
            "lacks the scopes mail.read;",
        ),
        (403, 'Bearer error="insufficient_scope"', "lacks a scope; check auth"),
    ],
)
async def test_a_server_that_asks_for_a_token_is_told_apart_from_others(
    bench: Bench, status: int, challenge: str, words: str
) -> None:
    async def refuse(_: web.Request) -> web.Response:
        return web.Response(status=status, headers={"WWW-Authenticate": challenge})

    app = web.Application()
    app.router.add_route("*", "/mcp", refuse)
    async with TestServer(app) as server:
        fault = await bench.fails(bench.http_spec(str(server.make_url("/mcp"))))
    assert words in fault.message
    assert fault.metadata["http_status"] == str(status)


async def test_a_firewall_that_wants_to_see_a_browser_is_named(bench: Bench) -> None:
    async def challenge(_: web.Request) -> web.Response:
        text = "<!DOCTYPE html><title>Just a moment...</title>"
        return web.Response(status=403, text=text, headers={"cf-mitigated": "challenge"})

    app = web.Application()
    app.router.add_route("*", "/mcp", challenge)
    async with TestServer(app) as server:
        fault = await bench.fails(bench.http_spec(str(server.make_url("/mcp"))))
    assert ": a firewall before it wants to see a browser first; ask " in fault.message
    assert "credential" not in fault.message


@pytest.mark.parametrize("session_id", [b"a\x01b", b"\xe9"])
async def test_a_session_id_that_no_header_may_contain_fails_the_start(
    bench: Bench, session_id: bytes
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = b'{"jsonrpc":"2.0","id":1,"result":{}}'
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
        named = b"Mcp-Session-Id: %b\r\n\r\n" % session_id
        writer.write(head % len(body) + named + body)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
        fault = await bench.fails(bench.http_spec(url, protocol="legacy"))
    assert "an MCP session id that has characters that no header may contain" in fault.message


async def test_a_configured_session_id_that_no_header_may_contain_fails_the_start(
    bench: Bench, address: str
) -> None:
    fault = await bench.fails(bench.http_spec(f"{address}/mcp", session_id="a\nb"))
    assert "session_id of the server" in fault.message
    assert "write it as one line" in fault.message


class Proxy:
    """A proxy to a server that can be closed."""

    def __init__(self, address: str) -> None:
        host, _, port = address.removeprefix("http://").rpartition(":")
        self._target = (host, int(port))
        self._streams: set[asyncio.StreamWriter] = set()
        self.port = 0

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._forward, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        self._server.close()
        for stream in self._streams:
            stream.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inward, outward = await asyncio.open_connection(*self._target)
        self._streams |= {writer, outward}
        await asyncio.gather(self._pump(reader, outward), self._pump(inward, writer))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
        writer.close()


async def test_an_unreachable_server_is_a_problem_until_it_is_reachable(
    bench: Bench, address: str
) -> None:
    proxy = Proxy(address)
    await proxy.open()
    instance = await bench.start(bench.http_spec(f"http://127.0.0.1:{proxy.port}/mcp"))
    assert await bench.text(instance, "echo", {"text": "on"}) == "on"
    proxy.close()

    async def is_not_sent() -> bool:  # a call in flight at the close had been sent
        fault = (await bench.call(instance, "echo", {"text": "off"})).fault
        return fault is not None and fault.started == "no"

    async with asyncio.timeout(BOUND):
        while not await is_not_sent():
            await asyncio.sleep(0.01)
    assert instance.state == "ready"
    [(reason, text)] = bench.warned
    assert reason == "SERVER_UNREACHABLE"
    assert f"could not be reached at http://127.0.0.1:{proxy.port}" in text
    await proxy.open()
    assert await bench.text(instance, "echo", {"text": "on"}) == "on"
    assert bench.warned == []
    await instance.close()
    proxy.close()
