"""A front in process, and a host that sends it what a test lets it send."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from tests.mcp_answers import response_in

from leaseway.front.app import McpListener
from leaseway.front.calling.conversations import SessionOptions
from leaseway.front.http.callers import Callers
from leaseway.front.http.request_checks import AccessCheck
from leaseway.front.http.server import HttpServer
from leaseway.front.http.streamable import HttpFront
from leaseway.front.methods import Methods
from leaseway.front.sessions.ended import EndedSessions, SharedEnds
from leaseway.front.sessions.limits import SessionLimits
from leaseway.front.sessions.sealing import Owner, Sealer
from leaseway.front.sessions.table import SessionTable
from leaseway.identity.authenticator import Authenticator
from leaseway.sdk.testing import FakeLeaseway
from leaseway.wire.channels.endpoint import Endpoint

ACCEPT = {"Accept": "application/json, text/event-stream"}
VERSION = "io.modelcontextprotocol/protocolVersion"
MODERN = {VERSION: "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
INFO = {"name": "host", "version": "1"}


@asynccontextmanager
async def front(
    fake: FakeLeaseway,
    options: SessionOptions | None = None,
    authenticator: Authenticator | None = None,
    limits: SessionLimits | None = None,
    *,
    key: str | None = None,
    origins: Collection[str] = (),
    public_url: str = "",
    search: bool = False,
) -> AsyncIterator[str]:
    """Serve a system to MCP clients; yield the URL."""
    options = options or SessionOptions()
    sealer = Sealer("key", "mcp session")
    limits = limits or SessionLimits()

    def build(tenant: str, _agent: str, _key: str | None, principal: str, _user: str) -> HttpFront:
        client = fake.async_client(tenant=tenant)
        ended = EndedSessions()
        ends = SharedEnds(client, ended)
        owner = Owner(tenant, principal)
        table = SessionTable(client, sealer, owner, limits=limits, ended=ended, ends=ends)
        methods = Methods(client, search=search, sessions=options)
        return HttpFront(methods, table, rules=options.rules)

    listener = McpListener(Endpoint("127.0.0.1", 0), None)
    callers = Callers(build, "default", "mcp", None, authenticator)
    server = HttpServer(AccessCheck(listener.endpoint, key, origins), callers, public_url)
    async with callers.running(), server.serving(listener.socket):
        yield f"http://{listener.endpoint}/mcp"


@dataclass
class Host:
    """A host with an HTTP client of its own, which says what a test lets it say."""

    http: aiohttp.ClientSession
    url: str
    key: str | None = None
    status = 0

    async def send(
        self, method: str, params: dict[str, Any], headers: dict[str, str] | None = None
    ) -> Any:
        """Send a request; return its result, or raise an error with its message."""
        sent = {**ACCEPT, **(headers or {})}
        if self.key is not None:
            sent["Authorization"] = f"Bearer {self.key}"
        if VERSION in params.get("_meta", {}):
            sent |= {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": method}
            if "name" in params:
                sent["Mcp-Name"] = params["name"]
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        async with self.http.post(self.url, json=message, headers=sent) as answer:
            self.status = answer.status
            self.session = answer.headers.get("Mcp-Session-Id", "")
            response = await response_in(answer)
        if "error" in response:
            raise LookupError(response["error"]["message"])
        return response["result"]

    async def initialize(self, name: str = "host", version: str = "2025-11-25") -> dict[str, str]:
        """Open a session; return the header that continues it."""
        info = {**INFO, "name": name}
        params = {"protocolVersion": version, "capabilities": {}, "clientInfo": info}
        await self.send("initialize", params)
        return {"Mcp-Session-Id": self.session}

    async def call(
        self,
        headers: dict[str, str] | None = None,
        meta: dict[str, Any] | None = None,
        **arguments: Any,
    ) -> Any:
        """Call `count`; return the result."""
        params = {"name": "count", "arguments": arguments, "_meta": meta or {}}
        return await self.send("tools/call", params, headers)

    async def count(
        self,
        headers: dict[str, str] | None = None,
        meta: dict[str, Any] | None = None,
        **arguments: Any,
    ) -> tuple[str, int]:
        """Call `count`; return the lease that counted, and its number."""
        result = await self.call(headers, meta, **arguments)
        assert not result.get("isError"), result
        lease, number = result["content"][0]["text"].split()
        return lease, int(number)


@asynccontextmanager
async def host(url: str, key: str | None = None, *, cookies: bool = False) -> AsyncIterator[Host]:
    """Run a host, by default one that drops cookies."""
    jar = aiohttp.CookieJar(unsafe=True) if cookies else aiohttp.DummyCookieJar()
    async with aiohttp.ClientSession(cookie_jar=jar) as http:
        yield Host(http, url, key)


def session_of(result: Any) -> str:
    """Return the session that the result of a first call says."""
    session: str = result["_meta"]["leaseway/session"]
    assert f"Session: {session}\n" in result["content"][-1]["text"]
    return session
