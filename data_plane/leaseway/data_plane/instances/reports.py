"""What a worker has to tell the control plane, coalesced until the Sync client sends it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Final, NamedTuple

from leaseway.data_plane.core.leases.table import LeaseOutcome, WorkerLease
from leaseway.data_plane.core.problems import ProblemBook, WorkerProblem
from leaseway.spec.model import VariantKey
from leaseway.wire.messages.events import EventRecord, History
from leaseway.wire.secrets.redaction import redact

_logger = logging.getLogger(__name__)
_MOST_ENDS: Final = 4096
"""Ends of leases that are reported of a time without a control plane, the newest."""
_RARE_EVENTS: Final = 200
_FREQUENT_EVENTS: Final = 1000


class LeaseEnd(NamedTuple):
    """How a lease ended."""

    lease_id: str
    tenant: str
    how: LeaseOutcome


class Reports:
    """Changes since the last report. Facts only; the Sync client turns them into messages.

    Nothing grows without bound: leases and problems are bounded where they live, and a new
    stream begins with all of them.
    """

    def __init__(self) -> None:
        self.problems = ProblemBook()
        self._history = History(rare=_RARE_EVENTS, frequent=_FREQUENT_EVENTS)
        self._events_told = 0
        self._gained: dict[str, WorkerLease] = {}
        self._lost: dict[str, LeaseEnd] = {}
        self._instances_changed = False
        self._changed = asyncio.Event()

    def report_problem(self, problem: WorkerProblem) -> None:
        """Note a problem, and say it in the log where it is new."""
        problem = replace(problem, message=redact(problem.message))
        if self.problems.add(problem):
            level = logging.ERROR if problem.severity == "error" else logging.WARNING
            _logger.log(level, "%s", problem.message, extra={"reason": problem.reason})
        self._changed.set()

    def clear_problem(self, problem: WorkerProblem) -> None:
        if self.problems.clear(problem.key, problem.reason):
            self._changed.set()

    def report_cleared(self, problem: WorkerProblem) -> None:
        """Note that what a probe failed for is mended."""
        self.problems.add_cleared(problem)
        self._changed.set()

    def add_lease(self, lease: WorkerLease) -> None:
        self._gained[lease.id] = lease
        self._changed.set()

    def add_lease_end(self, lease: WorkerLease, how: LeaseOutcome) -> None:
        """Note a lease that ended, and how.

        One that was not reported yet is reported as gained all the same: room is reserved for it.
        """
        self._lost[lease.id] = LeaseEnd(lease.id, lease.key.tenant, how)
        self._changed.set()

    def mark_instances_changed(self) -> None:
        """Note that an instance came, went or changed its state."""
        self._instances_changed = True
        self._changed.set()

    def record_lease_event(
        self, lease: WorkerLease, action: str, message: str, severity: str = "info"
    ) -> None:
        """Remember what happened to a lease, for those who watch."""
        key = lease.key
        self._happened(
            EventRecord(
                "lease",
                action,
                message,
                time.time(),
                severity,
                server_id=key.server_id,
                tenant=key.tenant,
                lease_id=lease.id,
                session=key.session,
            )
        )

    def record_instance_event(
        self, variant: VariantKey, instance_id: str, action: str, message: str, reason: str = ""
    ) -> None:
        """Remember what happened to an instance; with a reason it ended by itself."""
        self._happened(
            EventRecord(
                "instance",
                action,
                message,
                time.time(),
                "warning" if reason else "info",
                reason,
                server_id=variant.server_id,
                tenant=variant.tenant,
                instance_id=instance_id,
            )
        )

    def _happened(self, event: EventRecord) -> None:
        self._history.add(replace(event, message=redact(event.message)))
        self._changed.set()

    def pop_events(self) -> list[EventRecord]:
        """Return what has happened since the last time."""
        events = self._history.after(self._events_told)
        self._events_told = self._history.last
        return events

    async def wait(self) -> None:
        await self._changed.wait()

    def pop_changes(self) -> tuple[Iterable[WorkerLease], Iterable[LeaseEnd], bool]:
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

    def reset_for_new_stream(self) -> None:
        """Prepare for a stream whose first message says what is held: report problems again.

        How leases ended meanwhile is reported all the same, for those who watched them.
        """
        _gained, lost, _ = self.pop_changes()
        self._events_told = 0
        self._lost = {end.lease_id: end for end in tuple(lost)[-_MOST_ENDS:]}
        self.problems.report_all_again()
        self._instances_changed = True
        self._changed.set()
