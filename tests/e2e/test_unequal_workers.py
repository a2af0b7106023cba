"""Workers of which one cannot start a server: no call and no lease fails for it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.conftest import BOUND
from tests.e2e.system import kit, running

pytestmark = pytest.mark.usefixtures("leak_guard")
CALLS, LEASES = 12, 3


async def test_calls_and_leases_go_past_a_worker_that_cannot_start_their_server(
    tmp_path: Path,
) -> None:
    env = {"NEEDED": {"env": "ONLY_HERE"}}
    servers = {
        name: kit(
            tmp_path,
            env=env,
            transform=[{"prefix": f"{name}_"}],
            **{"truely-stateless": name == "clock"},
        )
        for name in ("clock", "desk")
    }
    async with running(tmp_path, servers, environment={"ONLY_HERE": "x"}) as (system, client):
        await system.start_worker("worker-2", without="ONLY_HERE")
        async with asyncio.timeout(6 * BOUND):
            while len(await client.workers()) < 2:
                await asyncio.sleep(0.05)
            for number in range(CALLS):
                await client.call_tool("clock_current_time", timeout=BOUND)
                if number < LEASES:
                    session = client.session(f"s{number}")
                    await session.call_tool("desk_current_time", timeout=2 * BOUND)
            assert {lease.worker for lease in await client.leases()} == {"worker-1"}
