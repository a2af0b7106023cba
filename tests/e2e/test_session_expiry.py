"""A server over HTTP forgets the MCP session of a lease: the lease is lost."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest
from tests.e2e.servers import raw_http_server
from tests.e2e.system import running

from leaseway.sdk import LeaseLost


async def test_a_lease_of_a_forgotten_session_is_lost_with_a_reason(
    tmp_path: Path,
) -> None:
    async with raw_http_server("--legacy") as address:
        servers = {"remote": {"transport": "streamable_http", "url": f"{address}/mcp"}}
        async with running(tmp_path, servers) as (_, client):
            session = client.session("one")
            assert (await session.call_tool("echo", {"text": "before"})).text == "before"
            async with aiohttp.ClientSession() as http, http.post(f"{address}/forget"):
                pass
            with pytest.raises(LeaseLost, match="no longer knows its MCP session"):
                await session.call_tool("echo", {"text": "after"})
            with pytest.raises(LeaseLost):  # no new lease is acquired implicitly
                await session.call_tool("echo", {"text": "after"})
            await session.acquire("remote")
            assert (await session.call_tool("echo", {"text": "anew"})).text == "anew"
