"""The effect of a server that never responds on calls of another server on the same worker."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping

from benchmarks.load import AsyncDriver
from benchmarks.processes import SERVERS, echo_server, leaseway
from benchmarks.rows.row import TEXT, check
from benchmarks.specials.special import Special
from leaseway.sdk import AsyncClient

__all__ = ["SPECIALS"]

_UNANSWERED = 256
_IN_FLIGHT = 32
_SECONDS = 3.0


async def _neighbour() -> Mapping[str, float]:
    shared = {"truely-stateless": True}
    mute = {"transport": "stdio", "command": sys.executable, "args": [str(SERVERS / "mute.py")]}
    renamed = {"transform": [{"prefix": "mute_"}]}
    servers = {"echo": echo_server(**shared), "mute": {**mute, **shared, **renamed}}
    async with leaseway(servers) as system, AsyncClient(system.address) as client:

        async def call(_caller: int) -> None:
            check((await client.call_tool("echo", {"text": TEXT})).text, TEXT)

        driver = AsyncDriver(call, system.workers)
        without = await driver.load(_IN_FLIGHT, _SECONDS)
        waiting = [
            asyncio.create_task(client.call_tool("mute_never", {})) for _ in range(_UNANSWERED)
        ]
        beside = await driver.load(_IN_FLIGHT, _SECONDS)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    return {
        "p99_alone_us": without.p99,
        "p99_beside_us": beside.p99,
        "p99_ratio": beside.p99 / without.p99,
    }


SPECIALS = (Special("neighbour", "beside a server that never answers", _neighbour),)
