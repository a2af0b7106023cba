"""The only worker is killed and started again with its id."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest
from tests.e2e.system import System, python_server

from leaseway.sdk import AsyncClient, LeaseLost
from leaseway.wire import bounds

SERVERS = {
    "shared": python_server("echo_raw.py", **{"truely-stateless": True}),
    "counter": python_server("counter.py", transform=[{"prefix": "counter_"}]),
}
SOON = bounds.WORKER_LOST_AFTER / 2
"""Seconds, less than the time for which a worker that says nothing might still run."""


async def test_it_serves_calls_and_new_leases_long_before_its_first_run_counts_as_lost(
    tmp_path: Path,
) -> None:
    async with System(tmp_path, SERVERS) as system, AsyncClient(system.address) as client:
        session = client.session("dialog")
        assert (await session.call_tool("counter_next")).text == "1"
        await system.workers["worker-1"].end(signal.SIGKILL)
        await system.start_worker("worker-1")
        async with asyncio.timeout(SOON):
            assert (await client.call_tool("echo", {"text": "x"}, timeout=30)).text == "x"
        with pytest.raises(LeaseLost):
            await session.call_tool("counter_next")
        async with asyncio.timeout(SOON):
            await session.acquire("counter")
            assert (await session.call_tool("counter_next")).text == "1"
        assert not await client.problems()
