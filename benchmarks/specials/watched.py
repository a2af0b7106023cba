"""What it costs to be watched: calls with the console open and remembered, to calls with neither.

Both systems run at once and are measured in turn, so that both see the same machine. Of the one
that is watched a page is open: it follows the live stream, and asks for the newest calls at each
beat, as the console's own page does. The history of events is always on.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import aiohttp

from benchmarks.figures import Load
from benchmarks.load import AsyncDriver
from benchmarks.processes import echo_server, started
from benchmarks.rows.row import TEXT, check
from benchmarks.specials.special import Special
from leaseway.sdk import AsyncClient

__all__ = ["SPECIALS"]

_PAIRS = 10
_IN_FLIGHT = 32
_SECONDS = 2.0
_LEASEWAY = (sys.executable, "-m", "leaseway.cli.main")


@contextlib.asynccontextmanager
async def _system(folder: Path, *, console: str = "") -> AsyncIterator[AsyncDriver]:
    """Run a control plane and a worker; without a console the worker remembers no call."""
    config = folder / "mcp.yaml"
    servers = {"echo": echo_server(**{"truely-stateless": True})}
    config.write_text(json.dumps({"version": 1, "servers": servers}))
    listen = f"127.0.0.1:{_free_port()}"
    watched = ["--console", console] if console else []
    ring = [] if console else ["--recent-calls", "0"]
    async with contextlib.AsyncExitStack() as stack:
        plane = [*_LEASEWAY, "control-plane", "--config", str(config), "--listen", listen, *watched]
        await stack.enter_async_context(started(plane, says="ready"))
        worker = [*_LEASEWAY, "worker", "--control-plane", listen, "--listen", "127.0.0.1:0", *ring]
        process, _ = await stack.enter_async_context(started(worker, says="ready"))
        client = await stack.enter_async_context(AsyncClient(listen))
        async with asyncio.timeout(60):
            while not await client.list_tools():  # noqa: ASYNC110 - no event says it
                await asyncio.sleep(0.1)

        async def call(_caller: int) -> None:
            check((await client.call_tool("echo", {"text": TEXT})).text, TEXT)

        yield AsyncDriver(call, [process.pid])


@contextlib.asynccontextmanager
async def _page(url: str) -> AsyncIterator[list[int]]:
    """Keep a page of the console open; the list counts its looks at the newest calls."""
    looks = [0]
    opened = asyncio.Event()

    async def follow(http: aiohttp.ClientSession) -> None:
        async with http.get(f"{url}/api/live") as stream:
            stream.raise_for_status()
            async for line in stream.content:
                if not line.startswith(b"data:"):
                    continue
                async with http.get(f"{url}/api/calls?select=recent&limit=60") as answer:
                    answer.raise_for_status()
                    await answer.read()
                looks[0] += 1
                opened.set()

    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(timeout=timeout) as http, asyncio.timeout(300):
        following = asyncio.create_task(follow(http))
        waiting = asyncio.create_task(opened.wait())
        try:
            await asyncio.wait({following, waiting}, return_when=asyncio.FIRST_COMPLETED)
            yield looks
            if following.done():
                await following  # it may not end by itself
        finally:
            for task in (following, waiting):
                task.cancel()
            await asyncio.gather(following, waiting, return_exceptions=True)


async def _measure() -> Mapping[str, float]:
    console = f"127.0.0.1:{_free_port()}"
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        async with (
            _system(Path(one), console=console) as watched,
            _system(Path(other)) as alone,
        ):
            looks = 0
            pairs: list[tuple[Load, Load]] = []
            for number in range(_PAIRS):
                without = await _load(alone) if number % 2 else None
                async with _page(f"http://{console}") as page:
                    seen = await _load(watched)
                looks += page[0]
                pairs.append((seen, without or await _load(alone)))
    return {
        "rate_ratio": statistics.median(seen.rate / bare.rate for seen, bare in pairs),
        "worker_cpu_ratio": statistics.median(
            seen.worker_cpu / bare.worker_cpu for seen, bare in pairs
        ),
        "watched_calls_s": statistics.median(seen.rate for seen, _ in pairs),
        "alone_calls_s": statistics.median(bare.rate for _, bare in pairs),
        "looks": float(looks),
    }


async def _load(driver: AsyncDriver) -> Load:
    return await driver.load(_IN_FLIGHT, _SECONDS)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


SPECIALS = (Special("watched", "with console, ring and events, to without", _measure, 1),)
