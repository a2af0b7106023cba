"""The cost of changing one of five hundred servers (design.md#reload, steps 3 to 5)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from tests.control_plane.conftest import Running
from tests.control_plane.core.builders import spec
from tests.control_plane.fake_worker import FakeWorker, recorded
from tests.specs import part

from leaseway.spec.model import VariantKey
from leaseway.v1 import sync_pb2

MANY = 500


class CountingWorker(FakeWorker):
    """Answers every probe, applies every delta, and counts both by server id."""

    def __init__(self, address: str, worker_id: str) -> None:
        super().__init__(address, worker_id)
        self.probes: list[str] = []
        self.upserts: list[str] = []

    async def work(self) -> None:
        """Handle messages until cancelled."""
        while True:
            message = await self._next()
            match message.WhichOneof("message"):
                case "probe":
                    await self._answer(message.probe)
                case "delta":
                    ids = [upsert.hashes.key.server_id for upsert in message.delta.upserts]
                    self.upserts += ids
                    await self._apply(message.delta)

    async def _answer(self, probe: sync_pb2.Probe) -> None:
        self.probes.append(probe.key.server_id)
        result = sync_pb2.ProbeResult(
            id=probe.id, key=probe.key, launch_hash=probe.launch_hash, tools=recorded("hello")
        )
        await self.send(probe_result=result)


@contextlib.asynccontextmanager
async def working(address: str, *ids: str) -> AsyncIterator[list[CountingWorker]]:
    """Run such workers."""
    fakes = [CountingWorker(address, worker_id) for worker_id in ids]
    for fake in fakes:
        await fake.join()
    tasks = [asyncio.create_task(fake.work()) for fake in fakes]
    try:
        yield fakes
    finally:
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        for fake in fakes:
            await fake.close()
    assert all(isinstance(end, asyncio.CancelledError) for end in ends), ends


async def test_a_change_of_one_server_is_one_probe_and_one_upsert_per_worker(
    running: Running,
) -> None:
    specs = [spec(f"s{number:03}") for number in range(MANY)]
    running.load(*specs)
    async with working(running.address, "w1", "w2") as workers:

        async def all_hold(command: str, number: int) -> None:
            key = VariantKey(f"s{number:03}")
            await running.until(
                lambda state: (
                    state.ready
                    and part(state.visible.served[key].spec).command == command
                    and all(
                        record.subscription.acked_version == state.committed.version
                        for record in state.workers.values()
                    )
                )
            )

        everything = [each_spec.key.server_id for each_spec in specs]
        await all_hold(part(specs[0]).command, 0)
        assert sorted(workers[0].probes + workers[1].probes) == everything
        for worker in workers:
            assert sorted(worker.upserts) == everything
            worker.probes.clear()
            worker.upserts.clear()
        running.load(*specs[:7], spec("s007", command="other"), *specs[8:])
        await all_hold("other", 7)
        running.load(*specs[:7], spec("s007", command="third"), *specs[8:])
        await all_hold("third", 7)  # nothing else of the first change was still under way
        assert workers[0].probes + workers[1].probes == ["s007", "s007"]
        assert [worker.upserts for worker in workers] == [["s007", "s007"]] * 2
