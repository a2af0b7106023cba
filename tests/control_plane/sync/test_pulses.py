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
from leaseway.v1 import leases_pb2, sync_pb2
from leaseway.wire.names import LeaseKey

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


async def test_the_welcome_contains_the_pulse_interval_and_the_patience(running: Running) -> None:
    fake = FakeWorker(running.address)
    welcome = await fake.join()
    interval = welcome.pulse_interval.ToTimedelta().total_seconds()
    assert 0 < interval < 5
    assert welcome.patience.ToTimedelta().total_seconds() == 4 * interval
    await fake.close()


async def test_a_pulse_is_answered_after_the_leases_that_were_given_away_are_revoked(
    running: Running,
) -> None:
    lease = leases_pb2.Lease(id="L1", server_id="desk", tenant="default", session="s")
    with running.plane.transition() as (state, _now):
        state.roster.fence(lease.id, LeaseKey("default", "s", "desk"))
    async with worker(running.address, leases=[lease]) as back:
        await back.send(pulse=sync_pb2.Pulse(number=7))
        assert (await back.receive("revoke")).revoke.lease_id == "L1"
        assert (await back.receive("pulse")).pulse.number == 7
