"""Many clients meet one event while they call tools: a restart, a reload, lost workers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Final

from benchmarks.scale.content import configuration
from benchmarks.scale.row import ScaleRow, Size
from benchmarks.scale.system import Callers, ControlPlane, Fleet, callers, control_plane, fleet

__all__ = ["HERDS"]

_SERVERS: Final = 20
_SCHEMA: Final = 2_000
_SECONDS: Final = 12.0
_BEFORE: Final = 2.0
"""Seconds of calls before the event."""

Event = Callable[[ControlPlane, Fleet, Size], Awaitable[object]]


@contextlib.asynccontextmanager
async def _herd(size: Size) -> AsyncIterator[tuple[ControlPlane, Fleet, Callers]]:
    """Start workers and half as many clients, which have called all tools."""
    async with (
        control_plane(_SERVERS, shared=True) as plane,
        fleet(plane.address, size.workers, _SERVERS, _SCHEMA, shared=True) as workers,
    ):
        await workers.do("join")
        async with callers(plane.address, size.workers // 2, _SERVERS) as clients:
            yield plane, workers, clients


def _measure(event: Event) -> Callable[[Size], Awaitable[Mapping[str, float]]]:
    async def measure(size: Size) -> Mapping[str, float]:
        async with _herd(size) as (plane, workers, clients):
            calm = await clients.call(_BEFORE * 2)
            before = plane.cpu
            calling = asyncio.create_task(clients.call(_SECONDS))
            await asyncio.sleep(_BEFORE)
            await event(plane, workers, size)
            calls = await calling
            used = plane.cpu
            return {
                **calls.figures(),
                "calm_p50_ms": calm.figures()["call_p50_ms"],
                "calm_p99_ms": calm.figures()["call_p99_ms"],
                "plane_cpu_s": used - before if used >= before else used,
                "callers_cpu_ms_a_call": calls.cpu / max(1, len(calls.durations)) * 1e3,
            }

    return measure


async def _restart(plane: ControlPlane, workers: Fleet, _size: Size) -> None:
    """Stop the control plane and start it again, and wait until all workers are back."""
    await plane.stop()
    await plane.start()


async def _reload(plane: ControlPlane, _workers: Fleet, _size: Size) -> None:
    """Change all servers: every name that the clients use is out of date."""
    changed = configuration(_SERVERS, shared=True).replace(
        "command:", "description: x\n    command:"
    )
    plane.write(changed)


async def _lose(_plane: ControlPlane, workers: Fleet, size: Size) -> None:
    """Let a tenth of the workers vanish at once."""
    await workers.do("leave", count=max(1, size.workers // 10))


HERDS = (
    ScaleRow("restart_herd", "clients call while the control plane restarts", _measure(_restart)),
    ScaleRow("reload_herd", "clients call while all servers change", _measure(_reload)),
    ScaleRow("loss_herd", "clients call while a tenth of the workers vanish", _measure(_lose)),
)
