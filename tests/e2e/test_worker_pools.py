"""Worker pools: servers that run only on workers with certain labels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.conftest import BOUND
from tests.e2e.system import eventually, python_server, running

from leaseway.sdk import AsyncClient, ServerNotReady

pytestmark = pytest.mark.usefixtures("leak_guard")


async def check_problems(client: AsyncClient, *reasons: str) -> None:
    """Wait until the open problems have these reasons."""

    async def have_reasons() -> bool:
        return [problem.reason for problem in await client.problems()] == list(reasons)

    await eventually(have_reasons, within=2 * BOUND)


async def test_calls_and_leases_use_the_pool_of_their_server(tmp_path: Path) -> None:
    shared = {"truely-stateless": True}
    servers = {
        "common": python_server("echo_raw.py", transform=[{"prefix": "common_"}], **shared),
        "pooled": python_server(
            "echo_raw.py", transform=[{"prefix": "pooled_"}], worker_labels={"pool": "b"}, **shared
        ),
        "leased": python_server(
            "echo_raw.py", transform=[{"prefix": "leased_"}], worker_labels={"pool": "b"}
        ),
    }
    async with running(tmp_path, servers) as (system, client):
        await check_problems(client, *["NO_MATCHING_WORKER"] * 2)
        with pytest.raises(ServerNotReady, match="requires workers with pool=b"):
            await client.session("early").acquire("leased")
        await system.start_worker("worker-2", "--label", "pool=b")
        await check_problems(client)

        async def are_listed() -> bool:  # a worker has probed their servers
            names = {tool.name for tool in await client.list_tools()}
            return names >= {"pooled_echo", "leased_echo"}

        await eventually(are_listed)
        for _ in range(4):
            await client.call_tool("pooled_echo", timeout=2 * BOUND)
            await client.call_tool("common_echo", timeout=2 * BOUND)
        for number in range(3):
            session = client.session(f"s{number}")
            await session.call_tool("leased_echo", timeout=2 * BOUND)

        async def are_on_worker_2() -> bool:
            servers = {server.id: server for server in await client.servers()}
            leases = [lease.worker for lease in await client.leases()]
            instances = {instance.worker for instance in servers["pooled"].instances}
            return leases == ["worker-2"] * 3 and instances == {"worker-2"}

        await eventually(are_on_worker_2)
        by_id = {server.id: server for server in await client.servers()}
        assert by_id["pooled"].workers == ("worker-2",)
        assert by_id["pooled"].worker_labels == {"pool": "b"}
        labels = {worker.id: dict(worker.labels) for worker in await client.workers()}
        assert labels == {"worker-1": {}, "worker-2": {"pool": "b"}}
        # Another pool: the lease is drained on the worker that no longer matches.
        servers["leased"]["worker_labels"] = {"pool": "nowhere"}
        system.write(json.loads(json.dumps(servers)))
        await check_problems(client, "NO_MATCHING_WORKER")
