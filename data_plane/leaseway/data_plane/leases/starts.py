"""The start of a lease's instance, for which callers wait."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from leaseway.data_plane.core.leases.table import WorkerLease
from leaseway.wire.errors import Fault, Reason


@dataclass
class LeaseStart:
    """The start of a lease's instance.

    Attributes:
        done: Fails with the fault that callers get.
        task: Starts it.
        waiting: How many callers wait for it.
    """

    done: asyncio.Future[None]
    task: asyncio.Task[None]
    waiting: int = 0

    async def wait(self) -> None:
        """Wait until it has ended; giving up does not end it.

        Raises:
            Fault: The instance did not start.
        """
        self.waiting += 1
        try:
            await asyncio.shield(self.done)
        finally:
            self.waiting -= 1


def start_interrupted(lease: WorkerLease) -> Fault:
    """Return the fault of a start that ended with its worker."""
    return Fault(
        Reason.DRAINING,
        f"The worker shut down while the instance of lease {lease.id} was starting.",
    )


def mark_retrieved(future: asyncio.Future[None]) -> None:
    """Keep asyncio from logging the exception of a future whose callers were cancelled."""
    if not future.cancelled():
        future.exception()
