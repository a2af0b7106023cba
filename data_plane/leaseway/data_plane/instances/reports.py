"""What a worker has to tell the control plane, coalesced until the Sync client sends it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final, NamedTuple

from leaseway.data_plane.core.lease_table import How, Lease
from leaseway.data_plane.core.problems import Problem, ProblemBook

_logger = logging.getLogger(__name__)
_MOST_ENDS: Final = 4096
"""Ends of leases that are reported of a time without a control plane, the newest."""


class LeaseEnd(NamedTuple):
    """How a lease ended."""

    lease_id: str
    tenant: str
    how: How


class Reports:
    """Changes since the last report. Facts only; the Sync client turns them into messages.

    Nothing grows without bound: leases and problems are bounded where they live, and a new
    stream begins with all of them.
    """

    def __init__(self) -> None:
        self.problems = ProblemBook()
        self._gained: dict[str, Lease] = {}
        self._lost: dict[str, LeaseEnd] = {}
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

    def mended(self, problem: Problem) -> None:
        """Note that what a probe failed for is mended."""
        self.problems.mended(problem)
        self._changed.set()

    def lease_gained(self, lease: Lease) -> None:
        """Note a lease that was granted or changed."""
        self._gained[lease.id] = lease
        self._changed.set()

    def lease_lost(self, lease: Lease, how: How) -> None:
        """Note a lease that ended, and how.

        One that was not reported yet is reported as gained all the same: room is reserved for it.
        """
        self._lost[lease.id] = LeaseEnd(lease.id, lease.key.tenant, how)
        self._changed.set()

    def instances_changed(self) -> None:
        """Note that an instance came, went or changed its state."""
        self._instances_changed = True
        self._changed.set()

    async def wait(self) -> None:
        """Wait until there is something to report."""
        await self._changed.wait()

    def take(self) -> tuple[Iterable[Lease], Iterable[LeaseEnd], bool]:
        """Return (leases gained, those lost, whether instances changed) and forget them.

        A lease that came and went is in both.
        """
        lost = tuple(self._lost.values())
        taken = (tuple(self._gained.values()), lost, self._instances_changed)
        self._gained.clear()
        self._lost.clear()
        self._instances_changed = False
        self._changed.clear()
        return taken

    def start_over(self) -> None:
        """Prepare for a stream whose first message says what is held: report problems again.

        How leases ended meanwhile is reported all the same, for those who watched them.
        """
        _gained, lost, _ = self.take()
        self._lost = {end.lease_id: end for end in tuple(lost)[-_MOST_ENDS:]}
        self.problems.reopen()
        self._instances_changed = True
        self._changed.set()
