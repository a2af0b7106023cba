"""Web pages of other origins at the front: what a browser asks, and what a page may read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from tests.console.browser import browser
from tests.front.harness import front

from leaseway.sdk.testing import FakeLeaseway

PAGE = "https://app.example"
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "page", "version": "1"},
    },
}


@pytest.fixture
def fake() -> Iterator[FakeLeaseway]:
    with FakeLeaseway() as fake:
        server = fake.server("shared")

        @server.tool
        def greet() -> str:
            """Greet."""
            return "Hello."

        yield fake


def _ask(*headers: str, origin: str = PAGE) -> dict[str, str]:
    return {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": ",".join(headers),
    }


async def test_a_browser_learns_what_an_allowed_page_may_send(fake: FakeLeaseway) -> None:
    asked = ("Authorization", "content-type", "mcp-session-id", "Mcp-Param-Region", "x-other")
    async with (
        front(fake, key="k", origins=[PAGE]) as url,
        aiohttp.ClientSession() as http,
        http.options(url, headers=_ask(*asked)) as answer,
    ):
        assert answer.status == 204
        said = answer.headers
    assert said["Access-Control-Allow-Origin"] == PAGE
    assert said["Access-Control-Allow-Headers"] == (
        "authorization, content-type, mcp-session-id, mcp-param-region"
    )
    assert said["Access-Control-Allow-Methods"] == "GET, POST, DELETE"
    assert "Access-Control-Allow-Credentials" not in said


async def test_another_page_learns_nothing(fake: FakeLeaseway) -> None:
    async with front(fake, origins=[PAGE]) as url, aiohttp.ClientSession() as http:
        asked = _ask("content-type", origin="https://evil.example")
        async with http.options(url, headers=asked) as answer:
            assert answer.status == 403
            assert not [name for name in answer.headers if name.startswith("Access-Control")]


async def test_a_page_of_this_machine_reads_nothing_unless_it_is_named(fake: FakeLeaseway) -> None:
    local = "http://localhost:3000"
    async with (
        front(fake, origins=[PAGE]) as url,
        aiohttp.ClientSession() as http,
        http.options(url, headers=_ask("content-type", origin=local)) as asked,
        http.post(url, json=INITIALIZE, headers={"Origin": local}) as answer,
    ):
        assert asked.status != 204
        assert answer.status == 200
        said = [*asked.headers, *answer.headers]
        assert not [name for name in said if name.startswith("Access-Control")]


async def test_a_page_of_this_machine_sends_nothing_that_a_browser_does_not_ask_for(
    fake: FakeLeaseway,
) -> None:
    body, untyped = json.dumps(INITIALIZE).encode(), ("Content-Type",)
    async with (
        front(fake) as url,
        aiohttp.ClientSession(skip_auto_headers=untyped) as http,
        http.post(url, data=body, headers={"Origin": "http://localhost:3000"}) as answer,
    ):
        assert answer.status == 415


async def test_an_allowed_page_reads_why_it_was_refused(fake: FakeLeaseway) -> None:
    async with (
        front(fake, key="k", origins=[PAGE]) as url,
        aiohttp.ClientSession() as http,
        http.post(url, json=INITIALIZE, headers={"Origin": PAGE}) as answer,
    ):
        assert answer.status == 401
        assert answer.headers["Access-Control-Allow-Origin"] == PAGE
        assert "WWW-Authenticate" in answer.headers["Access-Control-Expose-Headers"]


async def test_a_client_that_is_no_page_gets_no_such_headers(fake: FakeLeaseway) -> None:
    async with (
        front(fake, origins=[PAGE]) as url,
        aiohttp.ClientSession() as http,
        http.post(url, json=INITIALIZE) as answer,
    ):
        assert answer.status == 200
        assert not [name for name in answer.headers if name.startswith("Access-Control")]


async def test_a_page_in_a_browser_keeps_a_session_and_calls_a_tool(
    fake: FakeLeaseway, tmp_path: Path
) -> None:
    async def blank(_request: web.Request) -> web.Response:
        return web.Response(text="<!doctype html><title>page</title>", content_type="text/html")

    app = web.Application()
    app.router.add_get("/", blank)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    origin = f"http://app.example:{port}"
    script = """(async (url, first) => {
      const headers = {"Content-Type": "application/json",
                       "Accept": "application/json, text/event-stream"};
      const post = async (body) => {
        const answer = await fetch(url, {method: "POST", headers, body: JSON.stringify(body)});
        headers["Mcp-Session-Id"] ||= answer.headers.get("Mcp-Session-Id");
        return answer.text();
      };
      await post(first);
      await post({jsonrpc: "2.0", method: "notifications/initialized"});
      const text = await post({jsonrpc: "2.0", id: 2, method: "tools/call",
                               params: {name: "greet", arguments: {}}});
      return [headers["Mcp-Session-Id"], text];
    })"""
    try:
        async with (
            front(fake, origins=[origin]) as url,
            browser(tmp_path, "--host-resolver-rules=MAP app.example 127.0.0.1") as page,
        ):
            await page.open(f"{origin}/")
            await page.until("document.title === 'page'")
            session, text = await page.run(f"{script}({json.dumps(url)}, {json.dumps(INITIALIZE)})")
    finally:
        await runner.cleanup()
    assert session
    assert "Hello." in text
