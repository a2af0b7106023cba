"""Events of instances, as workers report them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from benchmarks.scale.row import SIZES, ScaleRow, Size
from benchmarks.scale.system import ControlPlane, control_plane, fleet

__all__ = ["REPORTS"]

_INSTANCES: Final = 500
_EVENTS: Final = 50
_QUIET: Final = 1.0


async def _reports(size: Size) -> Mapping[str, float]:
    """Let each worker report events of its 500 instances; return what one costs."""
    async with (
        control_plane(10) as plane,
        fleet(plane.address, size.workers, 10, 100) as workers,
    ):
        await workers.do("join")
        await workers.do("report", instances=_INSTANCES, events=0)
        await _until_idle(plane)
        before = plane.cpu
        seen = await workers.do("report", instances=_INSTANCES, events=_EVENTS)
        first = await _until_idle(plane) - before
        before = plane.cpu
        await workers.do("report", instances=_INSTANCES, events=0)
        whole = await _until_idle(plane) - before
        events = size.workers * _EVENTS
        return {
            "cpu_us_an_event": max(0.0, first - whole) / events * 1e6,
            "bytes_an_event": seen["report_bytes"] / events,
            "cpu_ms_all_instances": whole / size.workers * 1e3,
            "peak_mib": plane.peak_mib,
        }


async def _until_idle(plane: ControlPlane) -> float:
    """Wait until the control plane has handled everything; return its CPU seconds."""
    used = -1.0
    while plane.cpu - used > _QUIET / 20:
        used = plane.cpu
        await asyncio.sleep(_QUIET)
    return used


REPORTS = ScaleRow("reports", "events of 500 instances a worker", _reports, SIZES[:2])
