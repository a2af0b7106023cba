"""A fleet at rest: keep-alives and pulses, and what looking at it costs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import aiohttp
import grpc

from benchmarks.processes import free_port
from benchmarks.scale.row import LEASES, ScaleRow, Size
from benchmarks.scale.system import ControlPlane, control_plane, fleet
from leaseway.v1 import admin_pb2, admin_pb2_grpc

__all__ = ["REST"]

_SERVERS: Final = 100
_SECONDS: Final = 10.0
_LOOKS: Final = 5


async def _rest(size: Size) -> Mapping[str, float]:
    """Measure the control plane's CPU without any event, with an open console, and per question."""
    metrics, console = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    async with (
        control_plane(_SERVERS, options=["--metrics", metrics, "--console", console]) as plane,
        fleet(plane.address, size.workers, _SERVERS, 200, leases=LEASES) as workers,
        grpc.aio.insecure_channel(plane.address, options=_OPTIONS) as channel,
        aiohttp.ClientSession() as http,
    ):
        await workers.do("join")
        await asyncio.sleep(_SECONDS / 2)  # what the joins have caused is done
        alone = await _cores(plane)
        async with http.get(f"http://{console}/api/live") as stream:
            stream.raise_for_status()
            watched = await _cores(plane)
        admin: Any = admin_pb2_grpc.AdminServiceStub(channel)

        async def read_metrics() -> None:
            async with http.get(f"http://{metrics}/metrics") as page:
                page.raise_for_status()
                await page.read()

        return {
            "cores": alone,
            "cores_with_console": watched,
            "cpu_ms_a_metrics_page": await _cpu_ms(plane, read_metrics),
            "cpu_ms_a_page_of_workers": await _cpu_ms(
                plane, lambda: admin.ListWorkers(admin_pb2.ListWorkersRequest())
            ),
            "cpu_ms_a_page_of_leases": await _cpu_ms(
                plane, lambda: admin.ListHeldLeases(admin_pb2.ListHeldLeasesRequest())
            ),
            "peak_mib": plane.peak_mib,
        }


async def _cores(plane: ControlPlane) -> float:
    """Return how many cores the control plane uses while nothing happens."""
    cpu, start = plane.cpu, time.perf_counter()
    await asyncio.sleep(_SECONDS)
    return (plane.cpu - cpu) / (time.perf_counter() - start)


async def _cpu_ms(plane: ControlPlane, ask: Callable[[], Awaitable[object]]) -> float:
    before = plane.cpu
    for _ in range(_LOOKS):
        await ask()
    return (plane.cpu - before) / _LOOKS * 1e3


_OPTIONS: Final = [("grpc.max_receive_message_length", 2**24)]

REST = ScaleRow("rest", "a fleet at rest, 100 leases a worker", _rest)
