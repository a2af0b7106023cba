"""What a worker has to tell the control plane, coalesced until the Sync client sends it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from leaseway.data_plane.core.lease_table import Lease
from leaseway.data_plane.core.problems import Problem, ProblemBook

__all__ = ["Reports"]

_logger = logging.getLogger(__name__)


class Reports:
    """Changes since the last report. Facts only; the Sync client turns them into messages.

    Nothing grows without bound: leases and problems are bounded where they live, and a new
    stream begins with all of them.
    """

    def __init__(self) -> None:
        self.problems = ProblemBook()
        self._gained: dict[str, Lease] = {}
        self._lost: dict[str, None] = {}
        self._instances_changed = False
        self._changed = asyncio.Event()

    def see(self, problem: Problem) -> None:
        """Note a problem, and say it in the log where it is new."""
        if self.problems.see(problem):
            level = logging.ERROR if problem.severity == "error" else logging.WARNING
            _logger.log(level, "%s", problem.message, extra={"reason": problem.reason})
        self._changed.set()

    def clear(self, problem: Problem) -> None:
        """Note that a problem is mended."""
        if self.problems.clear(problem.key, problem.reason):
            self._changed.set()

    def lease_gained(self, lease: Lease) -> None:
        """Note a lease that was granted or changed."""
        self._gained[lease.id] = lease
        self._changed.set()

    def lease_lost(self, lease: Lease) -> None:
        """Note a lease that ended, however.

        One that was not reported yet is reported as gained all the same: room is reserved for it.
        """
        self._lost[lease.id] = None
        self._changed.set()

    def instances_changed(self) -> None:
        """Note that an instance came, went or changed its state."""
        self._instances_changed = True
        self._changed.set()

    async def wait(self) -> None:
        """Wait until there is something to report."""
        await self._changed.wait()

    def take(self) -> tuple[Iterable[Lease], Iterable[str], bool]:
        """Return (leases gained, ids lost, whether instances changed) and forget them.

        A lease that came and went is in both.
        """
        taken = (tuple(self._gained.values()), tuple(self._lost), self._instances_changed)
        self._gained.clear()
        self._lost.clear()
        self._instances_changed = False
        self._changed.clear()
        return taken

    def start_over(self) -> None:
        """Prepare for a stream whose first message says what is held: report problems again."""
        self.take()
        self.problems.reopen()
        self._instances_changed = True
        self._changed.set()
