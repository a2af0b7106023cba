"""Stalls of an event loop."""

from __future__ import annotations

import asyncio
import time

from tests.conftest import BOUND
from tests.stall_finder import Stall, StallFinder

from leaseway.telemetry.diagnostics import measure_stalls


def block(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


async def test_the_longest_recent_stall_is_measured() -> None:
    async with asyncio.timeout(BOUND):
        while await longest_of(0.0) > 0.3:
            pass  # another process took the processor for so long
        assert await longest_of(0.4) > 0.3


async def longest_of(seconds: float) -> float:
    """Return the longest stall that is measured while the loop is blocked for some seconds."""
    with measure_stalls() as meter:
        await asyncio.sleep(0.1)
        block(seconds)
        await asyncio.sleep(0.1)
        return meter.recent()


async def test_the_finder_of_test_runs_finds_what_blocks_the_loop() -> None:
    found: list[Stall] = []
    finder = StallFinder(found.append)
    finder.start()
    await asyncio.sleep(0.1)
    block(0.4)
    async with asyncio.timeout(BOUND):
        while not any(stall.busy > 0.3 and stall.stack for stall in found):
            await asyncio.sleep(0.01)
    finder.stop()
    (stall,) = [stall for stall in found if stall.busy > 0.3]
    assert stall.seconds > 0.3
    assert "block" in "".join(stall.stack)
