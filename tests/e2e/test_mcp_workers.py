"""MCP served by workers: their servers and leases, those of other workers, and their end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.conftest import BOUND
from tests.e2e.mcp_front import COUNTER, INITIALIZE, JSON, echo
from tests.e2e.system import System, eventually, running
from tests.mcp_answers import response_in

from leaseway.sdk import AsyncClient

KEY = "a-key-that-all-know"
BEARER = {**JSON, "Authorization": f"Bearer {KEY}"}


@asynccontextmanager
async def two_workers(
    folder: Path, servers: Mapping[str, object]
) -> AsyncIterator[tuple[System, AsyncClient, dict[str, str]]]:
    """Run two workers that serve MCP; yield their URLs by their names, too."""
    options = ("--mcp", "127.0.0.1:0")
    async with running(
        folder, servers, workers=2, environment={"LEASEWAY_KEY": KEY}, worker_options=options
    ) as (system, sdk):
        urls = {}
        for name, worker in system.workers.items():
            assert worker.process.stdout is not None
            line = (await asyncio.wait_for(worker.process.stdout.readline(), BOUND)).decode()
            assert line.startswith("mcp ")
            urls[name] = line.split()[1]
        yield system, sdk, urls


async def begin(http: aiohttp.ClientSession, url: str) -> str:
    """Return the id of a new session."""
    async with http.post(url, json=INITIALIZE) as answer:
        return answer.headers["Mcp-Session-Id"]


async def call(http: aiohttp.ClientSession, url: str, tool: str, **arguments: Any) -> Any:
    """Call a tool in the session of the client's headers; return the answer's text or its error."""
    params = {"name": tool, "arguments": arguments}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    async with http.post(url, json=message) as answer:
        assert answer.status == 200, await answer.text()
        response = await response_in(answer)
    if "error" in response:
        return response["error"]["data"]["reason"]
    return response["result"]["content"][0]["text"]


async def test_a_session_goes_on_at_every_worker_wherever_its_lease_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while the worker with its lease drains, which lets its requests finish."""
    monkeypatch.setenv("LEASEWAY_KEY", KEY)
    servers = {**COUNTER, "echo": echo("echo")}
    async with (
        two_workers(tmp_path, servers) as (system, sdk, urls),
        aiohttp.ClientSession(headers=BEARER) as http,
    ):
        first, second = urls.values()
        async with http.post(first, json=INITIALIZE, headers={"Authorization": ""}) as answer:
            assert answer.status == 401
        http.headers["Mcp-Session-Id"] = await begin(http, first)
        counts = [await call(http, url, "next") for url in (first, second, second, first)]
        assert counts == ["1", "2", "3", "4"]
        await eventually(lambda: _holds(sdk, 1))
        (lease,) = await sdk.leases()
        holder = lease.worker
        (other,) = (url for name, url in urls.items() if name != holder)
        own = urls[holder]

        running_call = asyncio.create_task(call(http, own, "sleep", seconds=1.5))
        await eventually(lambda: _is_busy(sdk, holder))
        ending = asyncio.create_task(system.workers[holder].end())
        await eventually(lambda: _health(http, own, 503))
        assert await running_call == "slept"
        assert await ending == 0
        assert await call(http, other, "next") == "LEASE_REVOKED"
        assert await call(http, other, "next") == "1"
        assert await call(http, other, "echo", text="hi") == "hi"


async def test_a_lease_is_placed_on_the_worker_that_serves_its_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEASEWAY_KEY", KEY)
    # No instance of a probe waits on the other worker: a spare attracts the next lease.
    counter = {"counter": {**COUNTER["counter"], "start": "lazy"}}
    async with two_workers(tmp_path, counter) as (_, sdk, urls):
        name, url = next(iter(urls.items()))
        for _ in range(5):
            async with aiohttp.ClientSession(headers=BEARER) as http:
                http.headers["Mcp-Session-Id"] = await begin(http, url)
                assert await call(http, url, "next") == "1"
        await eventually(lambda: _holds(sdk, 5))
        assert {lease.worker for lease in await sdk.leases()} == {name}


async def _holds(sdk: AsyncClient, leases: int) -> bool:
    return len(await sdk.leases()) == leases


async def _is_busy(sdk: AsyncClient, worker: str) -> bool:
    return any(
        each_worker.id == worker and each_worker.in_flight
        for each_worker in await sdk.workers(load=True)
    )


async def _health(http: aiohttp.ClientSession, url: str, status: int) -> bool:
    async with http.get(url.removesuffix("/mcp") + "/healthz") as answer:
        return answer.status == status
