"""Memory of a worker: after the start, per idle leased client, and after many calls."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from benchmarks.processes import echo_server, leaseway
from benchmarks.rows.row import TEXT, check
from benchmarks.specials.special import Special
from benchmarks.usage import rss_of
from leaseway.sdk import AsyncClient

__all__ = ["SPECIALS"]

_CLIENTS = 100
_IN_FLIGHT = 128
_FEW, _MANY = 10_000, 1_000_000


async def _idle() -> Mapping[str, float]:
    """Memory after the start, and per idle client after ten, which load shared data."""
    async with leaseway({}) as system:
        fresh = rss_of(system.workers)
    async with leaseway({"echo": echo_server()}) as system, AsyncClient(system.address) as client:
        sessions = [client.session(f"idle-{number}") for number in range(10 + _CLIENTS)]
        for session in sessions[:10]:
            await session.acquire("echo", ttl=600)
        before = rss_of(system.workers)
        for session in sessions[10:]:
            await session.acquire("echo", ttl=600)
        grown = rss_of(system.workers) - before
        for session in sessions:
            await session.release("echo")
    return {"fresh_mib": fresh, "per_idle_client_kib": grown * 1024 / _CLIENTS}


async def _many_calls() -> Mapping[str, float]:
    servers = {"echo": echo_server(**{"truely-stateless": True})}
    async with leaseway(servers) as system, AsyncClient(system.address) as client:
        await _calls(client, _FEW)
        few = rss_of(system.workers)
        await _calls(client, _MANY - _FEW)
        many = rss_of(system.workers)
    return {"after_10000_mib": few, "after_1000000_mib": many, "ratio": many / few}


async def _calls(client: AsyncClient, count: int) -> None:
    remaining = count

    async def caller() -> None:
        nonlocal remaining
        while remaining > 0:
            remaining -= 1
            check((await client.call_tool("echo", {"text": TEXT})).text, TEXT)

    async with asyncio.TaskGroup() as group:
        for _ in range(_IN_FLIGHT):
            group.create_task(caller())


SPECIALS = (
    Special("memory", "memory of an idle worker", _idle, rounds=1),
    Special("million", "memory after a million calls", _many_calls, rounds=1),
)
