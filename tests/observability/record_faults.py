"""`make record-faults`: record the metrics of all or some faults again."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

RECORDED = Path(__file__).with_name("recorded")


async def _main(names: list[str]) -> None:
    # Not above: the server that forks the processes of a system imports this module again.
    from tests.observability.faults import FAULTS, record

    RECORDED.mkdir(exist_ok=True)
    for name in names or FAULTS:
        with tempfile.TemporaryDirectory(prefix="leaseway-faults-") as folder:
            recording = await record(FAULTS[name], Path(folder))
        recording.write(RECORDED / f"{name}.txt")
        print(f"{name}: {recording.minutes} scrapes of {len(recording.series)} series", flush=True)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1:]))
