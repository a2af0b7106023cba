"""Clients that come, call and are closed leave no connection anywhere."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.e2e.counting import counts, settled
from tests.e2e.system import eventually, python_server, running

from leaseway.sdk import AsyncClient

SERVERS = {
    "counter": python_server("counter.py", transform=[{"prefix": "counter_"}]),
    "sum": python_server(
        "counter.py", transform=[{"prefix": "sum_"}], **{"truely-stateless": True}
    ),
}
AT_ONCE = 20
CLIENTS = 100
MOST_LEASING = 3
"""Clients of those at once that lease: each needs a process of the server."""


async def come_and_go(address: str, number: int) -> None:
    """Open a client, listen for changes, call, and close it with its work done or under way."""
    client = AsyncClient(address, agent="test")
    under_way: asyncio.Task[object] | None = None
    async with client:
        assert (await client.call_tool("sum_next")).text.isdecimal()
        if number % AT_ONCE < MOST_LEASING:
            await client.session(f"visit-{number}").call_tool("counter_next")
        if number % 2:
            call = client.call_tool("sum_sleep", {"seconds": 600}, timeout=900)
            under_way = asyncio.create_task(call)
            await asyncio.sleep(0)
    if under_way is not None:
        await asyncio.wait([under_way])
        under_way.exception()


async def wave(address: str, first: int) -> None:
    await asyncio.gather(*(come_and_go(address, first + each) for each in range(AT_ONCE)))


def own_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.mark.usefixtures("leak_guard")
async def test_a_hundred_closed_clients_leave_no_descriptor_anywhere(tmp_path: Path) -> None:
    async with running(tmp_path, SERVERS) as (system, client):
        assert system.control_plane is not None
        parts = [system.control_plane, *system.workers.values()]
        await client.call_tool("sum_next")
        await wave(system.address, 0)  # what is made once and kept is made now

        async def no_leases() -> bool:
            return not await client.leases()

        await eventually(no_leases)
        before = [await counts(part) for part in parts]
        own = own_descriptors()
        for first in range(AT_ONCE, CLIENTS, AT_ONCE):
            await wave(system.address, first)
        await eventually(no_leases)
        for part, was in zip(parts, before, strict=True):
            await settled(part, was)
        await eventually(lambda: own_descriptors() <= own)
