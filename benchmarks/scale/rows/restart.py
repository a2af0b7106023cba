"""A restarted control plane recovers what its workers hold."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.scale.row import LEASES, ScaleRow, Size
from benchmarks.scale.system import control_plane, fleet

__all__ = ["RESTART"]

_SCHEMA = 2_000


async def _restart(size: Size) -> Mapping[str, float]:
    """Let all workers join at once; measure until each has acknowledged the new registry."""
    async with (
        control_plane(size.servers) as plane,
        fleet(plane.address, size.workers, size.servers, _SCHEMA, leases=LEASES) as workers,
    ):
        before = plane.cpu
        seen = await workers.do("join")
        return {
            "settled_s": seen["seconds"],
            "cpu_s": plane.cpu - before,
            "peak_mib": plane.peak_mib,
            "lists_asked": seen["lists"],
            "contents_asked": seen["wanted"],
            "rejoins": seen["rejoins"],
            "upserts": seen["upserts"],
            "probes": seen["probes"],
        }


RESTART = ScaleRow("restart", "a restarted control plane, all workers at once", _restart)
