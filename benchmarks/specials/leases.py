"""What taking a lease costs: with the start of a process, and from a warm spare."""

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

_TIMES = 40
_SPARES = 8
_FILL = 30.0


async def _leases() -> Mapping[str, float]:
    servers = {"cold": echo_server(start="lazy"), "warm": echo_server(warm=_SPARES)}
    async with leaseway(servers) as system, AsyncClient(system.address) as client:
        cold = [await _take(client, "cold", number) for number in range(_TIMES)]
        warm = []
        for number in range(_TIMES):
            await _spares_ready(client)
            warm.append(await _take(client, "warm", number))
        calls = [await _one_call(client) for _ in range(_TIMES * 10)]
    return {
        "cold_p50_ms": _at(cold, 0.5),
        "cold_p99_ms": _at(cold, 0.99),
        "warm_p50_ms": _at(warm, 0.5),
        "warm_p99_ms": _at(warm, 0.99),
        "call_p50_ms": _at(calls, 0.5),
    }


async def _take(client: AsyncClient, server: str, number: int) -> float:
    async with client.session(f"{server}-{number}") as session:
        began = time.perf_counter()
        await session.acquire(server)
        return time.perf_counter() - began


async def _spares_ready(client: AsyncClient) -> None:
    """Wait until the spares that were taken are replaced: what is measured is a warm one."""
    async with asyncio.timeout(_FILL):
        while True:
            server = next(each for each in await client.servers() if each.id == "warm")
            ready = [each for each in server.instances if each.state == "ready"]
            if len([each for each in ready if not each.lease_id]) >= _SPARES:
                return
            await asyncio.sleep(0.02)


async def _one_call(client: AsyncClient) -> float:
    began = time.perf_counter()
    result = await client.call_tool("cold:echo", {"text": TEXT})
    taken = time.perf_counter() - began
    check(result.text, TEXT)
    return taken


def _at(seconds: list[float], share: float) -> float:
    return percentile(sorted(seconds), share) * 1000


SPECIALS = (Special("leases", "taking a lease", _leases),)
