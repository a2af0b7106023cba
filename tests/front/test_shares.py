"""What one caller of the front takes is not taken from the others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.front.fakes import INITIALIZE, JSON, PING, FakeMethods, Sdk
from tests.front.http.fake_fronts import BOUND, Keys, bearer

from leaseway.front.app import McpListener
from leaseway.front.http import server as server_module
from leaseway.front.http.callers import Callers, TooManyCallers
from leaseway.front.http.connection import FrontConnections
from leaseway.front.http.request_checks import AccessCheck
from leaseway.front.http.server import HttpServer
from leaseway.front.http.streamable import HttpFront
from leaseway.front.sessions import table as sessions_module
from leaseway.front.sessions.sealing import Owner, Sealer
from leaseway.front.sessions.table import SessionTable
from leaseway.identity.authenticator import Authenticator
from leaseway.identity.tokens import MAX_TOKEN
from leaseway.wire.channels.endpoint import Endpoint


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """For how long the leases of forgotten sessions are kept, in seconds."""
    kept: list[float] = []

    async def leave(_session: Any, keep: float) -> None:
        kept.append(keep)

    monkeypatch.setattr(sessions_module, "leave_leases", leave)
    return kept


def front_of(callers: list[Callers], tenant: str, limit: int) -> HttpFront:
    sdk: Any = Sdk()
    methods: Any = FakeMethods()
    table = SessionTable(
        sdk,
        Sealer("a key", "mcp session"),
        Owner(tenant),
        limit=limit,
        count=lambda: callers[0].sessions,
        make_room=lambda: callers[0].make_room_for_session(front),
    )
    front = HttpFront(methods, table)
    return front


@asynccontextmanager
async def served(
    authenticator: Authenticator | None, *, credentials: int = 256, sessions: int = 10_000
) -> AsyncIterator[str]:
    made: list[Callers] = []
    callers = Callers(
        lambda tenant, *_: front_of(made, tenant, sessions),
        "default",
        "mcp",
        None,
        authenticator,
        limit=credentials,
    )
    made.append(callers)
    listener = McpListener(Endpoint("127.0.0.1", 0), None)
    server = HttpServer(AccessCheck(listener.endpoint, None), callers)
    async with callers.running(), server.serving(listener.socket):
        yield f"http://{listener.endpoint}/mcp"


class Client:
    """An MCP client with its own credential."""

    def __init__(self, http: aiohttp.ClientSession, url: str, key: str | None) -> None:
        self.http = http
        self.url = url
        self.headers = {**JSON} if key is None else {**JSON, "Authorization": bearer(key)}

    async def initialize(self) -> tuple[int, str]:
        async with self.http.post(self.url, json=INITIALIZE, headers=self.headers) as answer:
            return answer.status, answer.headers.get("Mcp-Session-Id", "")

    async def ping(self, session: str) -> int:
        headers = {**self.headers, "Mcp-Session-Id": session}
        async with self.http.post(self.url, json=PING, headers=headers) as answer:
            return answer.status


async def test_one_callers_sessions_lock_out_neither_others_nor_itself(
    tmp_path: Path, left: list[float]
) -> None:
    keys = Keys(tmp_path)
    authenticator = Authenticator(keys=keys.file)
    flood, other = keys.make("acme"), keys.make("beta")
    async with served(authenticator, sessions=20) as url, aiohttp.ClientSession() as http:
        quiet, greedy = Client(http, url, other), Client(http, url, flood)
        _, kept = await quiet.initialize()
        opened = [await greedy.initialize() for _ in range(50)]
        assert {status for status, _ in opened} == {200}
        assert await quiet.ping(kept) == 200
        assert (await quiet.initialize())[0] == 200
        assert len(left) >= 31
        assert await greedy.ping(opened[0][1]) == 200, "a forgotten session goes on by its id"


async def test_without_credentials_the_longest_unused_session_makes_room(
    left: list[float],
) -> None:
    async with served(None, sessions=5) as url, aiohttp.ClientSession() as http:
        client = Client(http, url, None)
        opened = [await client.initialize() for _ in range(30)]
        assert {status for status, _ in opened} == {200}
        assert {await client.ping(session) for _, session in opened} == {200}


async def test_one_tenants_credentials_lock_no_other_tenant_out(
    tmp_path: Path, left: list[float]
) -> None:
    keys = Keys(tmp_path)
    flood = [keys.make("acme") for _ in range(12)]
    first, late = keys.make("beta"), keys.make("gamma")
    authenticator = Authenticator(keys=keys.file)
    async with served(authenticator, credentials=6) as url, aiohttp.ClientSession() as http:
        _, session = await Client(http, url, first).initialize()
        for key in flood:  # each has a session, so that it is not idle
            status, _ = await Client(http, url, key).initialize()
            assert status == 200
        assert await Client(http, url, first).ping(session) == 200
        assert (await Client(http, url, late).initialize())[0] == 200


async def test_a_credential_in_use_is_not_dropped_for_one_of_an_equal(tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    callers = keys.callers(limit=1)
    async with callers.running():
        front: Any = (await callers.identify(bearer(keys.make("acme"))))[0]
        front.is_idle, front.is_busy = False, True
        with pytest.raises(TooManyCallers):
            await callers.identify(bearer(keys.make("beta")))


@pytest.fixture
def few_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "FrontConnections", lambda: FrontConnections(8))


async def test_idle_connections_make_room_for_new_ones(few_connections: None) -> None:
    async with served(None) as url, AsyncExitStack() as stack:
        host, _, port = url.removeprefix("http://").removesuffix("/mcp").rpartition(":")
        idle = [await asyncio.open_connection(host, int(port)) for _ in range(40)]
        for _, writer in idle:
            stack.callback(writer.close)
        http = await stack.enter_async_context(aiohttp.ClientSession())
        async with asyncio.timeout(BOUND):
            assert (await Client(http, url, None).initialize())[0] == 200


async def test_a_malformed_header_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secret = "lwk_planted-secret"
    for bad in (
        f"Authorization: Bearer {secret}\x00",
        f"Mcp-Session-Id {secret}",
        f"Mcp-Session-Id\x01: {secret}",
        f"X: {secret}\r\n: {secret}",
        f"Authorization: Bearer {secret * 2000}",
    ):
        async with served(None) as url:
            host, _, port = url.removeprefix("http://").removesuffix("/mcp").rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(f"POST /mcp HTTP/1.1\r\nHost: localhost\r\n{bad}\r\n\r\n".encode())
            async with asyncio.timeout(BOUND):
                assert b" 400 " in await reader.readline()
            writer.close()
    assert "planted" not in caplog.text
    assert "malformed HTTP" in caplog.text


async def test_the_longest_token_is_checked_and_not_too_long(tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    keys.make("acme")
    authenticator = Authenticator(keys=keys.file)
    async with served(authenticator) as url, aiohttp.ClientSession() as http:
        assert (await Client(http, url, "x" * MAX_TOKEN).initialize())[0] == 401
