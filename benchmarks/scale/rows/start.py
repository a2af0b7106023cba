"""A control plane and one worker start from nothing, with real servers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Final

from benchmarks.processes import echo_server, free_port, leaseway
from benchmarks.rows.row import TEXT, check
from benchmarks.scale.content import server_id
from benchmarks.scale.row import ScaleRow, Size
from benchmarks.usage import cpu_of, rss_of
from leaseway.sdk import AsyncClient
from leaseway.sdk.errors import (
    ControlPlaneUnavailable,
    DeadlineExceeded,
    ServerNotReady,
    ToolNotFound,
    WorkerLost,
)

__all__ = ["START"]

_SIZES: Final = (Size(1, 10), Size(1, 100), Size(1, 1_000))
_SETTINGS: Final[Mapping[str, object]] = {
    "truely-stateless": True,
    "start": "lazy",
    "transform": [{"prefix": "{server}_"}],
}
_NOT_YET: Final = (
    ControlPlaneUnavailable,
    DeadlineExceeded,
    ServerNotReady,
    ToolNotFound,
    WorkerLost,
)
_AGAIN: Final = 0.2
"""Seconds between tries, few of which cost anything beside the start."""
_LOOK: Final = 1.0
"""Seconds between looks at the number of servers that are up, each of which costs all of them."""
_WITHIN: Final = 600.0


async def _start(size: Size) -> Mapping[str, float]:
    """Call the first server as soon as it answers, then the last one, then wait for all."""
    entry = echo_server(**_SETTINGS)
    servers = {server_id(number): entry for number in range(size.servers)}
    start = time.perf_counter()
    async with leaseway(servers, port=free_port()) as system, AsyncClient(system.address) as client:
        await _until_answered(client, server_id(0))
        first = time.perf_counter() - start
        asked = time.perf_counter()
        await _until_answered(client, server_id(size.servers - 1))
        answered = time.perf_counter() - asked
        await _until_all_are_up(client, size.servers)
        plane = [pid for pid in system.planes if pid not in system.workers]
        return {
            "first_call_s": first,
            "asked_server_s": answered,
            "all_servers_s": time.perf_counter() - start,
            "plane_cpu_s": cpu_of(plane),
            "plane_mib": rss_of(plane),
            "worker_cpu_s": cpu_of(system.workers),
            "worker_mib": rss_of(system.workers),
        }


async def _until_answered(client: AsyncClient, server: str) -> None:
    async with asyncio.timeout(_WITHIN):
        while True:
            try:
                result = await client.call_tool(f"{server}_echo", {"text": TEXT})
            except _NOT_YET:
                await asyncio.sleep(_AGAIN)
            else:
                return check(result.text, TEXT)


async def _until_all_are_up(client: AsyncClient, servers: int) -> None:
    async with asyncio.timeout(_WITHIN):
        status = await client.status()
        while status.servers_up < servers:
            await asyncio.sleep(_LOOK)
            status = await client.status()


START = ScaleRow("start", "a start from nothing, until calls are answered", _start, _SIZES)
