"""A server over HTTP forgets the MCP session that a lease is on: its holder hears of it."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest
from tests.e2e.system import running
from tests.e2e.test_cancellation import http_server

from leaseway.sdk import LeaseLost


async def test_a_lease_on_a_forgotten_session_is_lost_with_the_reason_in_words(
    tmp_path: Path,
) -> None:
    async with http_server("--legacy") as address:
        servers = {"remote": {"transport": "streamable_http", "url": f"{address}/mcp"}}
        async with running(tmp_path, servers) as (_, client):
            session = client.session("one")
            assert (await session.call_tool("echo", {"text": "before"})).text == "before"
            async with aiohttp.ClientSession() as http, http.post(f"{address}/forget"):
                pass
            with pytest.raises(LeaseLost, match="no longer knows its MCP session"):
                await session.call_tool("echo", {"text": "after"})
            with pytest.raises(LeaseLost):  # nothing is acquired behind the holder's back
                await session.call_tool("echo", {"text": "after"})
            await session.acquire("remote")
            assert (await session.call_tool("echo", {"text": "anew"})).text == "anew"
