"""A thousand changes of the configuration, one after another, in one control plane."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from benchmarks.scale.content import configuration, server_id
from benchmarks.scale.row import ScaleRow, Size
from benchmarks.scale.system import control_plane, fleet

__all__ = ["COMMITS"]

_SIZES: Final = (Size(10, 10), Size(10, 100), Size(10, 1_000))
_FEW: Final = 100
_MANY: Final = 1_000


async def _commits(size: Size) -> Mapping[str, float]:
    """Change one server after another; each change is probed and reaches all workers."""
    async with (
        control_plane(size.servers) as plane,
        fleet(plane.address, size.workers, size.servers, 200) as workers,
    ):
        seen = await workers.do("join")
        first = configuration(size.servers)
        cpu, start, version = plane.cpu, time.perf_counter(), seen["acked"]
        few = 0.0
        for number in range(1, _MANY + 1):
            plane.write(_changed(first, number, size))
            seen = await workers.do("acked", version=version + 1)
            version = seen["acked"]
            if number == _FEW:
                few = plane.rss_mib
        return {
            "cpu_ms_a_commit": (plane.cpu - cpu) / _MANY * 1e3,
            "s_a_commit": (time.perf_counter() - start) / _MANY,
            f"mib_after_{_FEW}": few,
            f"mib_after_{_MANY}": plane.rss_mib,
            "peak_mib": plane.peak_mib,
        }


def _changed(first: str, number: int, size: Size) -> str:
    """Return a configuration in which one server has another argument than before."""
    entry = f"  {server_id(number % size.servers)}:\n"
    assert entry in first
    return first.replace(entry, f"{entry}    args: [edition-{number}]\n")


COMMITS = ScaleRow("commits", "a thousand commits, one after another", _commits, _SIZES)
