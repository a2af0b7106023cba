"""The effect of a tenant that floods a server on another tenant's calls."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Mapping

from benchmarks.load import AsyncDriver
from benchmarks.processes import SERVERS, leaseway
from benchmarks.rows.row import TEXT, check
from benchmarks.specials.special import Special
from leaseway.sdk import AsyncClient

__all__ = ["SPECIALS"]

_MAX_CALLS = 16
_FLOOD = 300
"""Calls in flight of the flooding tenant."""
_SECONDS = 12.0
"""Enough for some hundreds of sequential calls of 20 ms."""


async def _flooded() -> Mapping[str, float]:
    slow = {
        "transport": "stdio",
        "command": sys.executable,
        "args": [str(SERVERS / "slow.py"), str(_MAX_CALLS)],
        "truely-stateless": True,
    }
    servers = {
        "turns": {**slow, "max_calls": _MAX_CALLS, "transform": [{"prefix": "turns_"}]},
        "none": {**slow, "transform": [{"prefix": "none_"}]},
    }
    async with contextlib.AsyncExitStack() as stack:
        system = await stack.enter_async_context(leaseway(servers))
        quiet, loud = [
            await stack.enter_async_context(AsyncClient(system.address, tenant=tenant))
            for tenant in ("quiet", "loud")
        ]

        async def p99(tool: str) -> float:
            async def call(_caller: int) -> None:
                check((await quiet.call_tool(tool, {"text": TEXT})).text, TEXT)

            return (await AsyncDriver(call, system.workers).load(1, _SECONDS)).p99

        alone = await p99("turns_echo")
        async with _flood(loud, "turns_echo"):
            beside = await p99("turns_echo")
        async with _flood(loud, "none_echo"):
            without = await p99("none_echo")
    return {
        "p99_alone_us": alone,
        "p99_beside_us": beside,
        "p99_without_turns_us": without,
        "p99_ratio": beside / alone,
    }


@contextlib.asynccontextmanager
async def _flood(client: AsyncClient, tool: str) -> AsyncIterator[None]:
    """Keep many calls in flight."""

    async def calls() -> None:
        while True:
            await client.call_tool(tool, {"text": TEXT}, timeout=60)

    tasks = [asyncio.create_task(calls()) for _ in range(_FLOOD)]
    await asyncio.sleep(1.0)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if not isinstance(result, asyncio.CancelledError) and isinstance(result, BaseException):
                raise result


SPECIALS = (Special("flooded", "one tenant floods a server that another tenant uses", _flooded),)
