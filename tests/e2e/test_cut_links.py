"""A worker without a connection to the control plane, while callers reach both."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.e2e.links import Link
from tests.e2e.system import System, eventually, python_server

from leaseway.sdk import AsyncClient

SERVERS = {
    "shared": python_server(
        "echo_raw.py", **{"truely-stateless": True, "transform": [{"prefix": "shared_"}]}
    ),
    "counter": python_server("counter.py", transform=[{"prefix": "counter_"}]),
}


@pytest.mark.usefixtures("leak_guard")
async def test_calls_continue_while_the_control_plane_counts_their_worker_as_lost(
    tmp_path: Path,
) -> None:
    system = System(tmp_path, SERVERS)
    await system.start_control_plane()
    link = Link(system.address)
    await link.open()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(link.close)
        stack.push_async_callback(system.stop)
        client = await stack.enter_async_context(AsyncClient(system.address))
        control_plane, system.address = system.address, link.address
        await system.start_worker("worker-1")
        system.address = control_plane
        await system.ready()
        session = client.session("dialog")
        assert (await session.call_tool("counter_next")).text == "1"
        assert (await client.call_tool("shared_echo", {"text": "x"})).text
        link.cut()

        async def state() -> str:
            return {worker.id: worker.state for worker in await client.workers()}["worker-1"]

        async def lost() -> bool:
            return "WORKER_LOST" in {problem.reason for problem in await client.problems()}

        calls = 1
        while not await lost():  # for 10 s, in which every call succeeds
            await asyncio.sleep(0.1)  # to keep the load low
            calls += 1
            assert (await session.call_tool("counter_next")).text == str(calls)
            assert (await client.call_tool("shared_echo", {"text": "x"})).text
        assert await state() == "lost"
        for target in client._runtime().resolver._targets.values():
            target.refresh_at = 0.0  # as after another 10 s
        for _ in range(20):
            calls += 1
            assert (await session.call_tool("counter_next")).text == str(calls)
            assert (await client.call_tool("shared_echo", {"text": "x"})).text
        async with AsyncClient(system.address) as fresh:  # it has resolved no name before
            assert (await fresh.call_tool("shared_echo", {"text": "x"})).text
        link.join()

        async def is_connected() -> bool:
            return await state() == "connected"

        await eventually(is_connected)
        assert (await session.call_tool("counter_next")).text == str(calls + 1)
        await session.release("counter")
