from __future__ import annotations

import asyncio

from tests.sdk.fakes import BOUND

from leaseway.wire.timing.deadlines import Deadlines


async def test_calls_expire_in_the_order_of_their_deadlines() -> None:
    loop = asyncio.get_running_loop()
    live: dict[int, None] = {}
    done = asyncio.Event()
    expired: list[int] = []

    def expire(call_id: int) -> None:
        del live[call_id]
        expired.append(call_id)
        if not live:
            done.set()

    deadlines = Deadlines(loop, live, expire)
    now = loop.time()
    for call_id, delay in ((1, 0.02), (2, 0.0), (3, 0.01)):
        live[call_id] = None
        deadlines.add(now + delay, call_id)
    async with asyncio.timeout(BOUND):
        await done.wait()
    assert expired == [2, 3, 1]
    assert loop.time() >= now + 0.02


async def test_ended_calls_do_not_expire_and_are_not_kept() -> None:
    loop = asyncio.get_running_loop()
    live: dict[int, None] = {}
    expired: list[int] = []
    deadlines = Deadlines(loop, live, expired.append)
    for call_id in range(10_000):
        live[call_id] = None
        deadlines.add(loop.time() + 3600, call_id)
        del live[call_id]
    assert len(deadlines._heap) <= 1025
    deadlines.close()
    assert expired == []
