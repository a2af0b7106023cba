"""The cost of observation: calls with an open console and remembered calls, to calls without.

Both systems run at once and are measured in turn; they are restarted a few times, because two runs
of the same program differ too. A page of the observed system follows the live stream and requests
the newest calls at each event, as the console's own page does, except while the other system is
measured. The history of events is always on.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from benchmarks.figures import Load
from benchmarks.load import AsyncDriver
from benchmarks.pairs import Pair, compare, measure_pairs
from benchmarks.processes import echo_server, free_port, run_process
from benchmarks.rows.row import TEXT, check
from benchmarks.specials.special import Special
from leaseway.sdk import AsyncClient

__all__ = ["SPECIALS"]

_STARTS = 4
_PAIRS = 5
_IN_FLIGHT = 32
_SECONDS = 0.5
_LEASEWAY = (sys.executable, "-m", "leaseway.cli.main")


@contextlib.asynccontextmanager
async def _system(folder: Path, *, console: str = "") -> AsyncIterator[AsyncDriver]:
    """Run a control plane and a worker; without a console the worker remembers no calls."""
    config = folder / "mcp.yaml"
    servers = {"echo": echo_server(**{"truely-stateless": True})}
    config.write_text(json.dumps({"version": 1, "servers": servers}))
    listen = f"127.0.0.1:{free_port()}"
    watched = ["--console", console] if console else []
    ring = [] if console else ["--recent-calls", "0"]
    async with contextlib.AsyncExitStack() as stack:
        plane = [*_LEASEWAY, "control-plane", "--config", str(config), "--listen", listen, *watched]
        owner, _ = await stack.enter_async_context(run_process(plane, ready_text="ready"))
        worker = [*_LEASEWAY, "worker", "--control-plane", listen, "--listen", "127.0.0.1:0", *ring]
        process, _ = await stack.enter_async_context(run_process(worker, ready_text="ready"))
        client = await stack.enter_async_context(AsyncClient(listen))
        async with asyncio.timeout(60):
            while not await client.list_tools():  # noqa: ASYNC110 - no event says it
                await asyncio.sleep(0.1)

        async def call(_caller: int) -> None:
            check((await client.call_tool("echo", {"text": TEXT})).text, TEXT)

        yield AsyncDriver(call, [process.pid, owner.pid])


@dataclass
class _Page:
    """A page of the console.

    Attributes:
        looks: How often it has requested the newest calls.
        looks_on: Whether it requests them now.
    """

    looks: int = 0
    looks_on: bool = True


@contextlib.asynccontextmanager
async def _page(url: str) -> AsyncIterator[_Page]:
    """Keep a page of the console open."""
    page = _Page()
    opened = asyncio.Event()

    async def follow(http: aiohttp.ClientSession) -> None:
        async with http.get(f"{url}/api/live") as stream:
            stream.raise_for_status()
            async for line in stream.content:
                if not line.startswith(b"data:") or not page.looks_on:
                    continue
                async with http.get(f"{url}/api/calls?select=recent&limit=60") as response:
                    response.raise_for_status()
                    await response.read()
                page.looks += 1
                opened.set()

    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(timeout=timeout) as http, asyncio.timeout(300):
        following = asyncio.create_task(follow(http))
        waiting = asyncio.create_task(opened.wait())
        try:
            await asyncio.wait({following, waiting}, return_when=asyncio.FIRST_COMPLETED)
            yield page
            if following.done():
                await following  # raises its error: it must not end by itself
        finally:
            for task in (following, waiting):
                task.cancel()
            await asyncio.gather(following, waiting, return_exceptions=True)


async def _measure() -> Mapping[str, float]:
    pairs: list[Pair] = []
    looks = 0
    for number in range(_STARTS):
        looks += await _measure_pairs(pairs, watched_first=number % 2 == 0)
    return {**compare(pairs), "looks": float(looks)}


async def _measure_pairs(pairs: list[Pair], *, watched_first: bool) -> int:
    """Start both systems and measure pairs; return how often the page requested calls."""
    console = f"127.0.0.1:{free_port()}"
    async with contextlib.AsyncExitStack() as stack:
        one, other = (Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(2))
        systems = [_system(one, console=console), _system(other)]
        order = systems if watched_first else systems[::-1]
        drivers = [await stack.enter_async_context(system) for system in order]
        watched, alone = drivers if watched_first else drivers[::-1]

        page = await stack.enter_async_context(_page(f"http://{console}"))

        async def seen(driver: AsyncDriver, *, looks_on: bool) -> Load:
            page.looks_on = looks_on
            return await driver.load(_IN_FLIGHT, _SECONDS)

        pairs += await measure_pairs(
            lambda: seen(watched, looks_on=True), lambda: seen(alone, looks_on=False), _PAIRS
        )
        return page.looks


SPECIALS = (Special("watched", "with console, ring and events, to without", _measure, 1),)
