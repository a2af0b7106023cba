"""MCP sessions outlive their front, expire without their client; requests are bounded."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from mcp import Client
from tests.e2e.mcp_front import (
    BEARER,
    COUNTER,
    INITIALIZE,
    JSON,
    KEY,
    echo,
    front,
    no_leases,
    part,
    text_of,
)
from tests.e2e.servers import raw_http_server
from tests.e2e.system import eventually, official_server, running
from tests.mcp_answers import response_in


async def call(
    http: aiohttp.ClientSession, url: str, session: str, tool: str, **arguments: Any
) -> dict[str, Any]:
    """Call a tool in an MCP session."""
    params = {"name": tool, "arguments": arguments}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    async with http.post(url, json=message, headers={"Mcp-Session-Id": session}) as answer:
        assert answer.status == 200, await answer.text()
        response: dict[str, Any] = await response_in(answer)
        return response


async def listed(http: aiohttp.ClientSession, url: str, session: str) -> set[str]:
    """Return the names of the tools that an MCP session sees."""
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    async with http.post(url, json=message, headers={"Mcp-Session-Id": session}) as answer:
        tools = (await response_in(answer))["result"]["tools"]
        return {tool["name"] for tool in tools}


async def test_a_session_keeps_its_lease_on_another_front_after_its_front_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEASEWAY_KEY", KEY)
    environment = {"LEASEWAY_KEY": KEY}
    async with (
        running(tmp_path, {"growing": official_server("growing.py")}, environment=environment) as (
            system,
            sdk,
        ),
        part(system) as one,
        part(system) as other,
        aiohttp.ClientSession(headers=BEARER) as http,
    ):
        first, second = (f"http://{each_part.address}/mcp" for each_part in (one, other))
        async with http.post(first, json=INITIALIZE) as answer:
            session = answer.headers["Mcp-Session-Id"]
        assert "error" not in await call(http, first, session, "login", user="ada")
        assert "whoami" in await listed(http, first, session)
        before: list[str] = []

        async def is_listed() -> bool:  # the worker reports its lease with a delay
            before[:] = [lease.id for lease in await sdk.leases()]
            return len(before) == 1

        await eventually(is_listed)
        await one.end(signal.SIGKILL)
        assert "whoami" in await listed(http, second, session)
        assert "error" not in await call(http, second, session, "whoami", prefix="I am")
        assert [lease.id for lease in await sdk.leases()] == before
        async with http.delete(second, headers={"Mcp-Session-Id": session}) as answer:
            assert answer.status == 204
        await eventually(lambda: no_leases(sdk))


async def test_a_front_requires_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEASEWAY_KEY", KEY)
    async with (
        running(tmp_path, COUNTER, environment={"LEASEWAY_KEY": KEY}) as (system, _),
        front(system) as url,
        aiohttp.ClientSession(headers=JSON) as http,
    ):
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            async with http.post(url, json=INITIALIZE, headers=headers) as answer:
                assert answer.status == 401
                assert answer.headers["WWW-Authenticate"].startswith("Bearer")
        async with http.post(url, json=INITIALIZE, headers=BEARER) as answer:
            assert answer.status == 200
        async with http.get(url.replace("/mcp", "/healthz")) as answer:
            assert answer.status == 200


async def test_leases_of_200_disconnected_clients_expire(tmp_path: Path) -> None:
    async with (
        raw_http_server() as server,
        running(tmp_path, {"raw": {"transport": "streamable_http", "url": f"{server}/mcp"}}) as (
            system,
            sdk,
        ),
        front(system, "--session-idle", "8", "--sessions-per-client", "200") as url,
        aiohttp.ClientSession(headers=JSON) as http,
    ):
        tool = next(iter(await sdk.list_tools()))

        async def open_session() -> str:
            async with http.post(url, json=INITIALIZE) as answer:
                session = answer.headers["Mcp-Session-Id"]
            await call(http, url, session, tool.name)
            return session

        sessions: list[str] = []
        leases: set[str] = set()

        async def has_seen_all() -> bool:
            leases.update(lease.id for lease in await sdk.leases())
            return len(leases) == len(sessions)

        while len(sessions) < 200:
            sessions += await asyncio.gather(*(open_session() for _ in range(25)))
            await eventually(has_seen_all)  # reports follow the calls
        # A session expires after 8 s, and its lease at most that long after it.
        await eventually(lambda: no_leases(sdk), within=120)
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        async with http.post(url, json=ping, headers={"Mcp-Session-Id": sessions[0]}) as answer:
            assert answer.status == 404  # the client must open a new session


async def test_requests_beyond_the_bounds_are_rejected_and_affect_no_other_client(
    tmp_path: Path,
) -> None:
    async with (
        running(tmp_path, {"echo": echo("echo")}) as (system, _),
        front(system) as url,
        aiohttp.ClientSession(headers=JSON) as http,
    ):
        long = json.dumps({**INITIALIZE, "padding": "x" * (64 << 20)}).encode()
        try:
            async with http.post(
                url, data=long, headers={"Content-Type": "application/json"}
            ) as answer:
                assert answer.status == 413
        except aiohttp.ClientConnectionError:
            pass  # the connection is closed while the client still sends
        for headers in ({"Host": "evil.example.com"}, {"Origin": "https://evil.example.com"}):
            async with http.post(url, json=INITIALIZE, headers=headers) as answer:
                assert answer.status == 403
        for wrong, status in ((b"{", 400), (b"[]", 400), (b'{"id":1}', 400)):
            async with http.post(
                url, data=wrong, headers={"Content-Type": "application/json"}
            ) as answer:
                assert answer.status == status
        async with http.post(url, data=b"{}", headers={"Content-Type": "text/plain"}) as answer:
            assert answer.status == 415
        async with http.put(url, json={}) as answer:
            assert answer.status == 405
        async with Client(url, mode="2026-07-28") as client:
            assert text_of(await client.call_tool("echo", {"text": "still here"})) == "still here"


async def test_a_model_searches_tools_if_they_are_not_listed(tmp_path: Path) -> None:
    servers = {"echo": echo("echo"), **COUNTER}
    async with running(tmp_path, servers) as (system, _), front(system, "--tools", "search") as url:
        of_handles = ["lease_acquire", "lease_release"]
        for era, others in (("legacy", []), ("2026-07-28", of_handles)):
            async with Client(url, mode=era) as client:
                names = [tool.name for tool in (await client.list_tools()).tools]
                assert names == ["call_tool", "describe_tool", *others, "search_tools"]
                found = await client.call_tool("search_tools", {"query": "the next"})
                assert found.structured_content is not None
                assert found.structured_content["tools"][0]["name"] == "next"
                described = await client.call_tool("describe_tool", {"name": "echo"})
                assert "text" in text_of(described)
                call_echo = {"name": "echo", "arguments": {"text": "found"}}
                assert text_of(await client.call_tool("call_tool", call_echo)) == "found"
