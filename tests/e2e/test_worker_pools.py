"""Pools: servers that only workers with certain labels run."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tests.conftest import BOUND
from tests.e2e.system import kit, running

from leaseway.sdk import AsyncClient, ServerNotReady

pytestmark = pytest.mark.usefixtures("leak_guard")


async def problems(client: AsyncClient, count: int) -> list[str]:
    """Return the reasons of the open problems once there are so many."""
    async with asyncio.timeout(6 * BOUND):
        while len(found := [one.reason for one in await client.problems()]) != count:
            await asyncio.sleep(0.05)
    return found


async def listed(client: AsyncClient, *names: str) -> None:
    """Wait until the tools are listed: their servers were tried on a worker."""
    async with asyncio.timeout(2 * BOUND):
        while not {tool.name for tool in await client.list_tools()}.issuperset(names):
            await asyncio.sleep(0.05)


async def workers_of_leases(client: AsyncClient, count: int) -> set[str]:
    """Return where the leases are once so many were reported."""
    async with asyncio.timeout(BOUND):
        while len(found := await client.leases()) != count:
            await asyncio.sleep(0.05)
    return {lease.worker for lease in found}


async def workers_of_instances(client: AsyncClient, server_id: str) -> set[str]:
    """Return where a server's instances are once one was reported."""
    async with asyncio.timeout(BOUND):
        while True:
            found = {server.id: server.instances for server in await client.servers()}
            if found[server_id]:
                return {instance.worker for instance in found[server_id]}
            await asyncio.sleep(0.05)


async def test_calls_and_leases_go_to_the_pool_that_a_server_asks_for(tmp_path: Path) -> None:
    shared = {"truely-stateless": True}
    servers = {
        "common": kit(tmp_path, transform=[{"prefix": "common_"}], **shared),
        "pooled": kit(
            tmp_path, transform=[{"prefix": "pooled_"}], worker_labels={"pool": "b"}, **shared
        ),
        "leased": kit(tmp_path, transform=[{"prefix": "leased_"}], worker_labels={"pool": "b"}),
    }
    async with running(tmp_path, servers) as (system, client):
        assert await problems(client, 2) == ["NO_MATCHING_WORKER"] * 2
        with pytest.raises(ServerNotReady, match="requires workers with pool=b"):
            await client.session("early").acquire("leased")
        await system.start_worker("worker-2", "--label", "pool=b")
        assert await problems(client, 0) == []
        await listed(client, "pooled_current_time", "leased_current_time")
        for _ in range(4):
            await client.call_tool("pooled_current_time", timeout=2 * BOUND)
            await client.call_tool("common_current_time", timeout=2 * BOUND)
        for number in range(3):
            session = client.session(f"s{number}")
            await session.call_tool("leased_current_time", timeout=2 * BOUND)
        assert await workers_of_leases(client, 3) == {"worker-2"}
        assert await workers_of_instances(client, "pooled") == {"worker-2"}
        by_id = {server.id: server for server in await client.servers()}
        assert by_id["pooled"].workers == ("worker-2",)
        assert by_id["pooled"].worker_labels == {"pool": "b"}
        labels = {worker.id: dict(worker.labels) for worker in await client.workers()}
        assert labels == {"worker-1": {}, "worker-2": {"pool": "b"}}
        # Another pool: the lease drains where the server may run no more.
        servers["leased"]["worker_labels"] = {"pool": "nowhere"}
        system.write(json.loads(json.dumps(servers)))
        assert await problems(client, 1) == ["NO_MATCHING_WORKER"]
