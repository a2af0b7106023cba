"""Many workers leave at once, and the clients with leases on them ask whether they are lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Final

import grpc

from benchmarks.figures import percentile
from benchmarks.scale.row import ScaleRow, Size
from benchmarks.scale.simulated import worker_id
from benchmarks.scale.system import control_plane, fleet
from leaseway.v1 import admin_pb2, admin_pb2_grpc

__all__ = ["LOSS"]

_AGAIN: Final = 0.2
"""Seconds for which a client believes that a worker is alive, as the SDK does."""
_CHANNELS: Final = 50


async def _loss(size: Size) -> Mapping[str, float]:
    """Let a tenth of the workers go; half as many clients as workers ask for one of them each."""
    leaving = max(1, size.workers // 10)
    async with (
        control_plane(20) as plane,
        fleet(plane.address, size.workers, 20, 200) as workers,
    ):
        await workers.do("join")
        channels = [grpc.aio.insecure_channel(plane.address) for _ in range(_CHANNELS)]
        stubs: list[Any] = [admin_pb2_grpc.AdminServiceStub(channel) for channel in channels]
        before, start = plane.cpu, time.perf_counter()
        left = asyncio.create_task(workers.do("leave", count=leaving))
        told = await asyncio.gather(
            *(
                _told(stubs[number % _CHANNELS], worker_id(number % leaving), start)
                for number in range(size.workers // 2)
            )
        )
        await left
        cpu = plane.cpu - before
        for channel in channels:
            await channel.close()
        return {
            "told_p50_s": percentile(sorted(told), 0.5),
            "told_p99_s": percentile(sorted(told), 0.99),
            "cpu_ms": cpu * 1e3,
        }


async def _told(admin: Any, worker: str, start: float) -> float:
    """Ask for a worker until it is lost; return the seconds since the start."""
    request = admin_pb2.ListWorkersRequest(worker_ids=[worker])
    while True:
        answer = await admin.ListWorkers(request)
        if not any(worker.state == "connected" for worker in answer.workers):
            return time.perf_counter() - start
        await asyncio.sleep(_AGAIN)


LOSS = ScaleRow("loss", "a tenth of the workers go, clients ask", _loss)
