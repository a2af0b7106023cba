"""The stream of a worker with a blocked event loop is ended."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import grpc
import pytest
from tests.conftest import BOUND
from tests.control_plane.fake_worker import FakeWorker, worker

from leaseway.control_plane.sync import service
from leaseway.v1 import sync_pb2

if TYPE_CHECKING:
    from tests.control_plane.conftest import Running

PULSE = sync_pb2.Pulse()


async def beat(fake: FakeWorker) -> None:
    while True:
        await fake.send(pulse=PULSE)
        await asyncio.sleep(0.02)


async def test_the_stream_of_a_silent_worker_is_ended(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_PULSE_INTERVAL", 0.5)
    async with (
        worker(running.address, "silent") as silent,
        worker(running.address, "beats") as beats,
        worker(running.address, "of a release before") as older,
    ):
        beating = asyncio.create_task(beat(beats))
        try:
            await silent.send(pulse=PULSE)
            assert await silent.ended() == grpc.StatusCode.ABORTED
            async with asyncio.timeout(BOUND):
                while "silent" in running.plane.streams:
                    await asyncio.sleep(0.01)
            assert set(running.plane.streams) == {beats.id, older.id}
        finally:
            beating.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await beating
        # The same run may reconnect as a normal worker.
        async with worker(running.address, "silent"):
            assert running.plane.state.workers["silent"].connected


async def test_the_welcome_contains_the_pulse_interval(running: Running) -> None:
    fake = FakeWorker(running.address)
    welcome = await fake.join()
    assert 0 < welcome.pulse_interval.ToTimedelta().total_seconds() < 5
    await fake.close()
