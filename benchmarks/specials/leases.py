"""The cost of acquiring a lease, with the start of a process and from a warm spare."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from benchmarks.figures import percentile
from benchmarks.processes import echo_server, leaseway
from benchmarks.rows.row import TEXT, check
from benchmarks.specials.special import Special
from leaseway.sdk import AsyncClient

__all__ = ["SPECIALS"]

_REPEATS = 40
_SPARES = 8
_SPARES_TIMEOUT = 30.0


async def _leases() -> Mapping[str, float]:
    servers = {"cold": echo_server(start="lazy"), "warm": echo_server(warm=_SPARES)}
    async with leaseway(servers) as system, AsyncClient(system.address) as client:
        cold = [await _acquire(client, "cold", number) for number in range(_REPEATS)]
        warm = []
        for number in range(_REPEATS):
            await _wait_for_spares(client)
            warm.append(await _acquire(client, "warm", number))
        calls = [await _one_call(client) for _ in range(_REPEATS * 10)]
    return {
        "cold_p50_ms": _percentile_ms(cold, 0.5),
        "cold_p99_ms": _percentile_ms(cold, 0.99),
        "warm_p50_ms": _percentile_ms(warm, 0.5),
        "warm_p99_ms": _percentile_ms(warm, 0.99),
        "call_p50_ms": _percentile_ms(calls, 0.5),
    }


async def _acquire(client: AsyncClient, server: str, number: int) -> float:
    async with client.session(f"{server}-{number}") as session:
        start = time.perf_counter()
        await session.acquire(server)
        return time.perf_counter() - start


async def _wait_for_spares(client: AsyncClient) -> None:
    """Wait until used spares have been replaced, so that the next lease gets a warm one."""
    async with asyncio.timeout(_SPARES_TIMEOUT):
        while True:
            server = next(listed for listed in await client.servers() if listed.id == "warm")
            ready = [instance for instance in server.instances if instance.state == "ready"]
            if len([instance for instance in ready if not instance.lease_id]) >= _SPARES:
                return
            await asyncio.sleep(0.02)


async def _one_call(client: AsyncClient) -> float:
    start = time.perf_counter()
    result = await client.call_tool("cold:echo", {"text": TEXT})
    seconds = time.perf_counter() - start
    check(result.text, TEXT)
    return seconds


def _percentile_ms(seconds: list[float], share: float) -> float:
    return percentile(sorted(seconds), share) * 1000


SPECIALS = (Special("leases", "acquiring a lease", _leases),)
