"""Changes for the control plane, collected until the Sync client reports them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from leaseway.data_plane.core.leases.table import WorkerLease
from leaseway.data_plane.core.problems import ProblemBook, WorkerProblem
from leaseway.spec.model import VariantKey
from leaseway.wire.bounds import LEASE_MEMORY
from leaseway.wire.messages.events import EventRecord, EventSeverity, History
from leaseway.wire.messages.states import LeaseOutcome
from leaseway.wire.names import LeaseKey
from leaseway.wire.secrets.redaction import redact
from leaseway.wire.sharing.newest import Newest

_logger = logging.getLogger(__name__)
_MAX_ENDS: Final = 4096
"""Ended leases, the newest, that are reported after a time without a control plane."""
_MAX_UNASKED: Final = 4096
"""Keys of leases that ended unasked, the newest, that are reported to a new control plane."""
_MAX_UNUSED: Final = 1024
"""Unused placements in one report; the room of others is free after 10 s."""
_RARE_EVENTS: Final = 200
_FREQUENT_EVENTS: Final = 1000


class LeaseEnd(NamedTuple):
    """An ended lease.

    Attributes:
        lease: The lease.
        outcome: How it ended.
        message: Why, in a sentence for its session.
        unasked: Whether its session did not ask for the end of a working lease. The control plane
            tells it to the next caller of the session.
    """

    lease: WorkerLease
    outcome: LeaseOutcome
    message: str = ""
    unasked: bool = False


class Reports:
    """The changes since the last report; the Sync client turns them into messages.

    It is bounded: leases and problems have their own bounds, and a new stream starts with the
    whole state.
    """

    def __init__(self) -> None:
        self.problems = ProblemBook()
        self._history = History(rare=_RARE_EVENTS, frequent=_FREQUENT_EVENTS)
        self._reported_events = 0
        self._leases: dict[str, WorkerLease] = {}
        self._lease_ends: dict[str, LeaseEnd] = {}
        self._unasked_ends: Newest[LeaseKey, tuple[LeaseEnd, float]] = Newest(_MAX_UNASKED)
        self._unused_placements: dict[LeaseKey, None] = {}
        self._probes: dict[int, bool] = {}
        self._instances_changed = False
        self._changed = asyncio.Event()

    def report_problem(self, problem: WorkerProblem) -> None:
        """Report a problem, and log it if it is new."""
        problem = replace(problem, message=redact(problem.message), advice=redact(problem.advice))
        if self.problems.add(problem):
            level = logging.ERROR if problem.severity == "error" else logging.WARNING
            _logger.log(level, "%s", problem.text, extra={"reason": problem.reason})
        self._changed.set()

    def clear_problem(self, problem: WorkerProblem) -> None:
        if self.problems.clear(problem):
            self._changed.set()

    def clear_outdated(self, launches: Mapping[VariantKey, str]) -> None:
        """Clear what has been found about earlier launches, as `ProblemBook` does."""
        if self.problems.clear_outdated(launches):
            self._changed.set()

    def clear_launch(self, key: VariantKey, launch_hash: str) -> None:
        """Clear what has been found about one launch of a variant."""
        for problem in self.problems.open:
            if (problem.key, problem.launch_hash) == (key, launch_hash):
                self.clear_problem(problem)

    def set_problem(self, problem: WorkerProblem, is_open: bool) -> None:
        """Report a problem if it is open, else clear it."""
        if is_open:
            self.report_problem(problem)
        else:
            self.clear_problem(problem)

    def report_cleared(self, problem: WorkerProblem) -> None:
        """Report that the cause of a failed probe is fixed."""
        self.problems.add_cleared(problem)
        self._changed.set()

    def add_lease(self, lease: WorkerLease) -> None:
        """Report a lease that was granted, renewed, or whose instance has started."""
        self._unasked_ends.pop(lease.key, None)
        self._leases[lease.id] = lease
        self._changed.set()

    def add_lease_end(self, end: LeaseEnd) -> None:
        """Report a lease that ended.

        A lease that was not reported before is reported as granted too: the control plane has
        reserved room for it.
        """
        self._lease_ends[end.lease.id] = end
        self._unasked_ends.pop(end.lease.key, None)
        if end.unasked:
            self._unasked_ends[end.lease.key] = (end, time.monotonic())
        self._changed.set()

    def add_unused_placement(self, key: LeaseKey) -> None:
        """Report that a request for a lease has failed before there was one.

        The control plane then keeps no room for it, which it does for 10 s otherwise.
        """
        if len(self._unused_placements) < _MAX_UNUSED:
            self._unused_placements[key] = None
            self._changed.set()

    def settle_end(self, key: LeaseKey, known: Collection[str]) -> LeaseEnd | None:
        """Return the unasked end of a key's last lease, and report that its session knows it now.

        Returns None if it is the end of a known lease.
        """
        entry = self._unasked_ends.pop(key, None)
        if entry is None:
            return None
        end, _ = entry
        self._lease_ends[end.lease.id] = end._replace(unasked=False)
        self._changed.set()
        return None if end.lease.id in known else end

    def mark_instances_changed(self) -> None:
        """Report the states of all instances."""
        self._instances_changed = True
        self._changed.set()

    def report_probe(self, probe_id: int, *, begun: bool) -> None:
        """Report that a probe waits for its turn to start, or that its start has begun."""
        self._probes[probe_id] = begun
        self._changed.set()

    def pop_probes(self) -> dict[int, bool]:
        """Return the probes that were reported since the last call: whether each has begun."""
        probes, self._probes = self._probes, {}
        return probes

    def pop_unused_placements(self) -> tuple[LeaseKey, ...]:
        """Return the unused placements that were reported since the last call."""
        unused = tuple(self._unused_placements)
        self._unused_placements.clear()
        return unused

    def record_lease_event(
        self, lease: WorkerLease, action: str, message: str, severity: EventSeverity = "info"
    ) -> None:
        key = lease.key
        self._record(
            EventRecord(
                kind="lease",
                action=action,
                message=message,
                at=time.time(),
                severity=severity,
                server_id=key.server_id,
                tenant=key.tenant,
                lease_id=lease.id,
                session=key.session,
            )
        )

    def record_instance_event(
        self, variant: VariantKey, instance_id: str, action: str, message: str, reason: str = ""
    ) -> None:
        """Record an event of an instance; a reason means that the instance ended by itself."""
        self._record(
            EventRecord(
                kind="instance",
                action=action,
                message=message,
                at=time.time(),
                severity="warning" if reason else "info",
                reason=reason,
                server_id=variant.server_id,
                tenant=variant.tenant,
                instance_id=instance_id,
            )
        )

    def _record(self, event: EventRecord) -> None:
        self._history.add(replace(event, message=redact(event.message)))
        self._changed.set()

    def pop_events(self) -> list[EventRecord]:
        """Return the events since the last call."""
        events = self._history.after(self._reported_events)
        self._reported_events = self._history.last
        return events

    async def wait(self) -> None:
        await self._changed.wait()

    def pop_changes(self) -> tuple[Iterable[WorkerLease], Iterable[LeaseEnd], bool]:
        """Return (granted leases, ended leases, whether instances changed) since the last call."""
        ends = tuple(self._lease_ends.values())
        changes = (tuple(self._leases.values()), ends, self._instances_changed)
        self._leases.clear()
        self._lease_ends.clear()
        self._instances_changed = False
        self._changed.clear()
        return changes

    def reset_for_new_stream(self) -> None:
        """Prepare for a stream whose first message contains the held leases.

        Open problems and ended leases are reported again, and those leases that ended unasked
        within the last 10 minutes: a control plane that has just started does not know them.
        """
        _, ends, _ = self.pop_changes()
        self.pop_probes()  # they ended with their stream
        self.pop_unused_placements()
        self._reported_events = 0
        oldest = time.monotonic() - LEASE_MEMORY
        unasked = [end for end, at in self._unasked_ends.values() if at > oldest]
        self._lease_ends = {end.lease.id: end for end in (*unasked, *tuple(ends)[-_MAX_ENDS:])}
        self.problems.report_all_again()
        self.mark_instances_changed()
