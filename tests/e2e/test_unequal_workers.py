"""One of two workers cannot start a server: no call and no lease fails."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.conftest import BOUND
from tests.e2e.system import eventually, python_server, running

pytestmark = pytest.mark.usefixtures("leak_guard")
CALLS, LEASES = 12, 3


async def test_calls_and_leases_avoid_a_worker_that_cannot_start_their_server(
    tmp_path: Path,
) -> None:
    env = {"NEEDED": {"env": "ONLY_HERE"}}
    servers = {
        name: python_server(
            "echo_raw.py",
            env=env,
            transform=[{"prefix": f"{name}_"}],
            **{"truely-stateless": name == "shared"},
        )
        for name in ("shared", "leased")
    }
    async with running(tmp_path, servers, environment={"ONLY_HERE": "x"}) as (system, client):
        await system.start_worker("worker-2", without="ONLY_HERE")

        async def both_have_joined() -> bool:
            return len(await client.workers()) == 2

        await eventually(both_have_joined)
        async with asyncio.timeout(4 * BOUND):
            for number in range(CALLS):
                await client.call_tool("shared_echo", timeout=BOUND)
                if number < LEASES:
                    session = client.session(f"s{number}")
                    await session.call_tool("leased_echo", timeout=2 * BOUND)

        async def all_are_listed() -> bool:  # workers report leases with a delay
            return [lease.worker for lease in await client.leases()] == ["worker-1"] * LEASES

        await eventually(all_are_listed)
