"""A run of a worker whose audit is shipped to a sink in memory."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from tests.conftest import BOUND
from tests.data_plane.audit.memory_sink import MemorySink

from leaseway.data_plane.audit.backlog import Backlog, Policy
from leaseway.data_plane.audit.log import AuditLog
from leaseway.data_plane.audit.shipping import Shipper
from leaseway.wire.bounds import MIB

NOW = 1_800_000_000.0
RUN = "w1.abc"


class Shipped:
    """A run of a worker whose files are shipped to a sink in memory."""

    def __init__(
        self, folder: Path, policy: Policy = Policy.SPILL, *, run: str = "abc", **options: Any
    ) -> None:
        self.sink = options.pop("sink", None) or MemorySink()
        self.backlog = Backlog(options.pop("space", MIB), policy)
        of_log = {
            name: options.pop(name) for name in ("file_size", "check_interval") if name in options
        }
        self.log = AuditLog(folder, "w1", run, lambda: NOW, backlog=self.backlog, **of_log)
        self.shipper = Shipper(self.log, self.sink, self.backlog, delay=0, **options)

    def write(self, number: int) -> None:
        self.log.write([b'"event":"begin","n":%d' % number])

    def numbers(self) -> list[int]:
        """Return the numbers of the records in the sink, in order of the objects' names."""
        return numbers_in(self.sink.stored)


def numbers_in(stored: dict[str, bytes]) -> list[int]:
    """Return the numbers of the records in objects, in order of their names."""
    lines = b"".join(content for _, content in sorted(stored.items())).splitlines()
    records = [json.loads(line) for line in lines]
    return [record["n"] for record in records if "n" in record]


async def eventually(condition: Any) -> None:
    async with asyncio.timeout(BOUND):
        while not condition():
            await asyncio.sleep(0.01)
