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
    with measure_stalls() as meter:
        await asyncio.sleep(0.1)
        assert meter.recent() < 0.3
        block(0.4)
        async with asyncio.timeout(BOUND):
            while meter.recent() < 0.3:
                await asyncio.sleep(0.01)


async def test_the_finder_of_test_runs_finds_what_blocks_the_loop() -> None:
    found: list[Stall] = []
    finder = StallFinder(found.append)
    finder.start()
    await asyncio.sleep(0.1)
    block(0.4)
    async with asyncio.timeout(BOUND):
        while not any(stall.seconds > 0.3 and stall.stack for stall in found):
            await asyncio.sleep(0.01)
    finder.stop()
    (stall,) = [stall for stall in found if stall.seconds > 0.3]
    assert stall.busy > 0.3
    assert "block" in "".join(stall.stack)
