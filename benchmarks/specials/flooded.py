"""What a tenant that floods a server costs the calls of another tenant, with turns and without."""

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

_AT_ONCE = 16
_FLOOD = 300
"""Calls that the tenant keeps in flight that floods."""
_SECONDS = 12.0
"""The calls of the other tenant take 20 ms, one after the other: some hundreds."""


async def _flooded() -> Mapping[str, float]:
    slow = {
        "transport": "stdio",
        "command": sys.executable,
        "args": [str(SERVERS / "slow.py"), str(_AT_ONCE)],
        "truely-stateless": True,
    }
    servers = {
        "turns": {**slow, "max_calls": _AT_ONCE, "transform": [{"prefix": "turns_"}]},
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
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        for each in ended:
            if not isinstance(each, asyncio.CancelledError) and isinstance(each, BaseException):
                raise each


SPECIALS = (Special("flooded", "one tenant floods a server of another one", _flooded),)
