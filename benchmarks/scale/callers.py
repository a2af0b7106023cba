"""Clients of a large fleet, many in a process: each calls a tool every four seconds.

The rows start it as `python -m benchmarks.scale.callers ADDRESS FIRST COUNT SERVERS`. It takes a
command a line and prints an answer a line, both JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
import time
from collections import Counter
from typing import Final

from benchmarks.scale.content import server_id
from benchmarks.usage import own_cpu
from leaseway.sdk import AsyncClient, LeasewayError

_INTERVAL: Final = 4.0
"""Seconds between the calls of a client."""
_OPENED_AT_ONCE: Final = 50


class _Callers:
    """Clients that call tools of the same servers, in turn."""

    def __init__(self, clients: list[AsyncClient], servers: int, first: int) -> None:
        self._clients = clients
        self._tools = [f"{server_id(number)}_0" for number in range(servers)]
        self._random = random.Random(first)
        self._durations: list[float] = []
        self._failed: Counter[str] = Counter()

    async def open(self) -> None:
        """Call each tool once with each client."""
        slots = asyncio.Semaphore(_OPENED_AT_ONCE)

        async def call_all(client: AsyncClient) -> None:
            async with slots:
                for tool in self._tools:
                    await client.call_tool(tool, {})

        await asyncio.gather(*map(call_all, self._clients))

    async def call(self, seconds: float) -> dict[str, object]:
        """Let each client call one tool after another for some seconds."""
        self._durations, self._failed, cpu = [], Counter(), own_cpu()
        end = time.perf_counter() + seconds
        await asyncio.gather(*(self._call_until(end, client) for client in self._clients))
        if self._failed:
            print(f"Failed calls: {dict(self._failed)}", file=sys.stderr)
        return {
            "durations": self._durations,
            "failed": sum(self._failed.values()),
            "cpu": own_cpu() - cpu,
        }

    async def _call_until(self, end: float, client: AsyncClient) -> None:
        await asyncio.sleep(self._random.uniform(0, _INTERVAL))
        while (start := time.perf_counter()) < end:
            try:
                await client.call_tool(self._random.choice(self._tools), {})
            except LeasewayError as error:
                self._failed[f"{type(error).__name__}: {error}"[:300]] += 1
            else:
                self._durations.append(time.perf_counter() - start)
            await asyncio.sleep(max(0.0, start + _INTERVAL - time.perf_counter()))


async def _main(address: str, first: int, count: int, servers: int) -> None:
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(AsyncClient(address)) for _ in range(count)]
        callers = _Callers(clients, servers, first)
        await callers.open()
        print(json.dumps({"ready": True}), flush=True)
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            print(json.dumps(await callers.call(json.loads(line)["seconds"])), flush=True)


if __name__ == "__main__":
    _address, *_numbers = sys.argv[1:]
    _first, _count, _servers = map(int, _numbers)
    asyncio.run(_main(_address, _first, _count, _servers))
