"""Messages to watchers of tools while a large fleet applies a change."""

from __future__ import annotations

import asyncio

import grpc
from tests.conftest import BOUND
from tests.control_plane.conftest import Running
from tests.control_plane.core.builders import spec
from tests.control_plane.fake_worker import FakeWorker, worker

from leaseway.v1 import catalog_pb2

MANY = 30


async def heard_until(running: Running, watch: object, workers: int) -> int:
    """Return the number of messages until a watcher was notified of all workers."""
    count = 0
    async with asyncio.timeout(BOUND):
        while True:
            message = await watch.read()  # type: ignore[attr-defined]
            assert message is not grpc.aio.EOF
            count += 1
            if len(running.plane.state.visible_state.workers) == workers:
                return count


async def test_watchers_get_few_messages_about_a_change_in_a_fleet(running: Running) -> None:
    running.load(spec("a"))
    async with worker(running.address) as w1:
        await w1.serve("x")
        await w1.apply_until("a")
        await running.until(lambda state: state.ready)
        watch = running.catalog.WatchTools(catalog_pb2.WatchToolsRequest())
        assert await heard_until(running, watch, 1) == 1
        fleet = [FakeWorker(running.address, f"more{number}") for number in range(MANY)]
        try:
            await asyncio.gather(*(fake.join() for fake in fleet))
            joined = asyncio.gather(*(fake.apply_until("a") for fake in fleet))
            told = await heard_until(running, watch, MANY + 1)
            await joined
        finally:
            watch.cancel()
            await asyncio.gather(*(fake.close() for fake in fleet))
    assert told < MANY / 2
