"""Closed clients leave no connection, task or descriptor behind."""

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
MAX_LEASING = 3
"""How many of the clients at once lease: each needs a process of the server."""


async def open_and_close(address: str, number: int) -> None:
    """Open a client, call, and close it with or without a call in flight."""
    client = AsyncClient(address, agent="test")
    in_flight: asyncio.Task[object] | None = None
    async with client:
        assert (await client.call_tool("sum_next")).text.isdecimal()
        if number % AT_ONCE < MAX_LEASING:
            async with client.session(f"visit-{number}") as session:
                await session.call_tool("counter_next")
        if number % 2:
            call = client.call_tool("sum_sleep", {"seconds": 600}, timeout=900)
            in_flight = asyncio.create_task(call)
            await asyncio.sleep(0)
    if in_flight is not None:
        await asyncio.wait([in_flight])
        in_flight.exception()


async def wave(address: str, first: int) -> None:
    await asyncio.gather(*(open_and_close(address, first + number) for number in range(AT_ONCE)))


def own_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.mark.usefixtures("leak_guard")
async def test_a_hundred_closed_clients_leave_no_descriptor_open(tmp_path: Path) -> None:
    async with running(tmp_path, SERVERS) as (system, client):
        assert system.control_plane is not None
        parts = [system.control_plane, *system.workers.values()]
        await client.call_tool("sum_next")
        await wave(system.address, 0)  # creates everything that is created once and kept

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
