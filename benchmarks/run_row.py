"""Measures one row in this process: `python -m benchmarks.run_row NAME SECONDS [COMMAND]`."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys

from benchmarks.catalogue import find_row
from benchmarks.figures import Figures
from benchmarks.rows.row import Row
from benchmarks.specials.special import Special
from benchmarks.usage import rss_of

__all__ = ["main"]


async def _measure(row: Row | Special, seconds: float) -> Figures:
    if isinstance(row, Special):
        return Figures(row.name, more=await row.measure())
    async with row.open() as driver:
        loads = {count: await driver.load(count, seconds) for count in row.in_flight}
        return Figures(row.name, loads, rss_of(driver.pids))


def main() -> None:
    """Measure and print the figures as one JSON object."""
    name, seconds, *command = sys.argv[1:]
    row = find_row(name, *command)
    try:
        figures = asyncio.run(_measure(row, float(seconds)))
    except (OSError, RuntimeError, TimeoutError) as error:
        if not command:
            raise
        # The user's own command: what it did is of use, not where we noticed it.
        sys.exit(f"{name}: {error or 'it did not listen on its port, or did not answer, in time.'}")
    print(json.dumps(dataclasses.asdict(figures)))


if __name__ == "__main__":
    main()
