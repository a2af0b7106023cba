"""Records the history of events (`leaseway events`).

The recorder compares the coordinator's state after each event, and adds the events that workers
report.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, assert_never

from leaseway.control_plane.core.approvals import ApprovalRecord
from leaseway.control_plane.core.catalog.exposure import pluralize
from leaseway.control_plane.core.catalog.snapshot import Snapshot
from leaseway.control_plane.core.coordinator import Coordinator
from leaseway.control_plane.core.moment import Moment
from leaseway.control_plane.core.placement.lease_ends import lost_with_worker
from leaseway.control_plane.core.placement.table import HeldLease
from leaseway.control_plane.core.problems import Problem, ProblemKey
from leaseway.control_plane.core.workers.roster import Roster
from leaseway.spec.canonical import plain_fields
from leaseway.spec.model import ServerSpec, VariantKey
from leaseway.wire.messages.events import EventRecord, EventSeverity, History
from leaseway.wire.messages.states import WorkerState
from leaseway.wire.sharing.newest import Newest

_MAX_LOST: Final = 500
"""Leases lost at once that are recorded, so that they displace few other events."""

_MAX_RUNS: Final = 1_000
"""Limit of worker runs whose last recorded event number is remembered."""


class EventRecorder:
    """Records the events of one control plane.

    Args:
        first: The number before its first event; higher for a later control plane.

    Attributes:
        reload: The newest reload, or None.
    """

    def __init__(self, first: int = 0) -> None:
        self.history = History(first)
        self.reload: EventRecord | None = None
        self._changed = asyncio.Event()
        self._committed: Snapshot | None = None
        self._workers: dict[str, tuple[str, WorkerState]] = {}
        self._roster: Roster | None = None
        self._problems: dict[ProblemKey, Problem] = {}
        self._problems_revision = -1
        self._specs: Mapping[VariantKey, ServerSpec] = {}
        self._last_recorded: Newest[str, int] = Newest(_MAX_RUNS)  # event numbers by worker run

    def record(self, event: EventRecord) -> EventRecord:
        """Add an event and wake waiting followers."""
        recorded = self.history.add(event)
        self._changed.set()
        return recorded

    async def changed(self, seen: int) -> None:
        """Wait for an event with a number above `seen`."""
        while self.history.last <= seen:
            self._changed.clear()
            await self._changed.wait()

    def record_reload(
        self,
        specs: Mapping[VariantKey, ServerSpec],
        files: str,
        problems: Sequence[Problem],
        at: float,
        *,
        rejected: frozenset[str] = frozenset(),
        refused: frozenset[VariantKey] = frozenset(),
    ) -> None:
        """Record a configuration that was applied, and its changes.

        Args:
            at: The time in Unix seconds.
            rejected: Ids of servers whose entry has an error; their variants stay unchanged.
            refused: Further variants that stay unchanged.
        """
        stay = {
            key: spec
            for key, spec in self._specs.items()
            if key not in specs and (key.server_id in rejected or key in refused)
        }
        specs = {**specs, **stay}
        changes = tuple(spec_changes(self._specs, specs))
        self._specs = specs
        errors = [problem.text for problem in problems if problem.severity == "error"]
        message = f"{files}: {_counted(changes)}"
        if errors:
            message += f"; {pluralize(len(errors), 'error')}, whose entries do not change"
        self.reload = self.record(
            EventRecord(
                kind="reload",
                action="partly applied" if errors else "applied",
                message=f"{message}.",
                at=at,
                severity="error" if errors else "info",
                details=(*changes, *errors),
            )
        )

    def record_rejected_reload(self, files: str, problems: Sequence[Problem], at: float) -> None:
        """Record a configuration that cannot be parsed and changes nothing."""
        self.reload = self.record(
            EventRecord(
                kind="reload",
                action="refused",
                message=f"{files} cannot be used; the previous configuration stays in effect.",
                at=at,
                severity="error",
                reason=problems[0].reason if problems else "",
                details=tuple(problem.text for problem in problems),
            )
        )

    def record_approval(self, approval: ApprovalRecord, action: str, now: Moment) -> None:
        """Record a change of an approval."""
        asked = approval.question
        call = f"the call of {asked.server_id}:{asked.tool} of tenant {asked.tenant}"
        decided = f"{approval.decided_by} has {action} {call}"
        texts = {
            "asked": f"{call} by {asked.asked_by} waits for approval",
            "used": f"{call} runs, approved by {approval.decided_by}",
            "expired": f"{call} was not decided, or not made after its approval, in time",
        }
        message = texts.get(action, decided)
        if approval.note:
            message += f": {approval.note}"
        self.record(
            EventRecord(
                kind="approval",
                action=action,
                message=f"{message[0].upper()}{message[1:]} (approval {approval.id}).",
                at=now.unix,
                severity="info",
                server_id=asked.server_id,
                tenant=asked.tenant,
                session=asked.session,
            )
        )

    def record_worker_events(
        self, worker_id: str, incarnation: str, events: Iterable[EventRecord]
    ) -> None:
        """Record the events that a worker run reports, each once."""
        last = self._last_recorded.get(incarnation, 0)
        for event in events:
            if event.number > last:
                last = event.number
                self.record(replace(event, worker_id=worker_id))
        self._last_recorded[incarnation] = last

    def record_lost_leases(self, lost: Sequence[HeldLease], now: Moment) -> None:
        """Record that leases were lost with their workers, which report nothing more.

        Of more than 500 at once, such as after the loss of many workers, the last ones are.
        """
        for lease in lost[-_MAX_LOST:]:
            end = lost_with_worker(lease)
            self.record(
                EventRecord(
                    kind="lease",
                    action=end.how,
                    message=end.message,
                    at=now.unix,
                    severity="warning",
                    server_id=end.server_id,
                    tenant=end.tenant,
                    worker_id=lease.worker_id,
                    lease_id=end.lease_id,
                    session=end.session,
                )
            )

    def observe(self, state: Coordinator, now: Moment) -> None:
        """Record what has changed since the last call."""
        if state.committed is not self._committed:
            self._observe_commit(state.committed, now)
        self._observe_workers(state, now)
        if state.problems.revision != self._problems_revision:
            self._problems_revision = state.problems.revision
            self._observe_problems(state, now)

    def _observe_commit(self, committed: Snapshot, now: Moment) -> None:
        before = self._committed.hashes if self._committed is not None else {}
        self._committed = committed
        after = committed.hashes
        lines: list[str] = []
        everything = before.keys() | after.keys()
        for key in sorted(key for key in everything if before.get(key) != after.get(key)):
            action = "up" if key not in before else "removed" if key not in after else "changed"
            lines.append(f"{action} {key}")
            tools = len(committed.served[key].callable_tools) if key in after else 0
            words = "was removed" if action == "removed" else f"serves {pluralize(tools, 'tool')}"
            self.record(
                EventRecord(
                    "server",
                    action,
                    f"Server {key} {words} as of registry {committed.version}.",
                    now.unix,
                    server_id=key.server_id,
                    tenant=key.tenant,
                )
            )
        if lines:
            message = f"Registry {committed.version}: {_counted(lines)}."
            self.record(EventRecord("commit", "made", message, now.unix, details=tuple(lines)))

    def _observe_workers(self, state: Coordinator, now: Moment) -> None:
        changed = state.roster.pop_unobserved()
        if state.roster is not self._roster:  # of a new term, which knows other workers
            self._roster = state.roster
            changed = dict.fromkeys((*self._workers, *state.workers))
        for worker_id in sorted(changed):
            record, was = state.workers.get(worker_id), self._workers.pop(worker_id, None)
            now_is = None
            if record is not None:
                now_is = self._workers[worker_id] = record.hello.address.incarnation, record.state
            if was != now_is:
                self._record_worker(worker_id, was, now_is, now)

    def _record_worker(
        self,
        worker_id: str,
        was: tuple[str, WorkerState] | None,
        now_is: tuple[str, WorkerState] | None,
        now: Moment,
    ) -> None:
        severity: EventSeverity = "info"
        incarnation, state = now_is or ("", None)
        match state:
            case None:
                action, words = "gone", "is lost; its leases may be placed on other workers"
                if was is not None and was[1] == "draining":
                    action, words = "left", "has exited after draining"
            case "lost":
                action, words, severity = "disconnected", "has disconnected", "warning"
            case "draining":
                action, words = "draining", "rejects new work and will exit"
            case "connected":
                action, words = "joined", "has joined"
                if was is not None and was[0] == incarnation:
                    action, words = "back", "has reconnected"
            case _:
                assert_never(state)
        message = f"Worker {worker_id} {words}."
        self.record(
            EventRecord(
                kind="worker",
                action=action,
                message=message,
                at=now.unix,
                severity=severity,
                worker_id=worker_id,
            )
        )

    def _observe_problems(self, state: Coordinator, now: Moment) -> None:
        present = {entry.problem.key: entry.problem for entry in state.problems.open()}
        before, self._problems = self._problems, present
        for key in present.keys() - before.keys():
            self._record_problem(present[key], "opened", now)
        for key in before.keys() - present.keys():
            self._record_problem(before[key], "closed", now)

    def _record_problem(self, problem: Problem, action: str, now: Moment) -> None:
        self.record(
            EventRecord(
                kind="problem",
                action=action,
                message=problem.text,
                at=now.unix,
                severity=problem.severity if action == "opened" else "info",
                reason=problem.reason,
                server_id=problem.server_id,
                tenant=problem.tenant,
                worker_id=problem.worker_id,
            )
        )


def _counted(lines: Sequence[str]) -> str:
    counts: dict[str, int] = {}
    for line in lines:
        action = line.partition(" ")[0]
        counts[action] = counts.get(action, 0) + 1
    return ", ".join(f"{count} {action}" for action, count in counts.items()) or "nothing changed"


def spec_changes(
    before: Mapping[VariantKey, ServerSpec], after: Mapping[VariantKey, ServerSpec]
) -> Iterator[str]:
    """Yield a line for each changed variant; without values, as they may be secret."""
    for key in sorted({*before, *after}):
        if key not in before:
            yield f"added {key}"
        elif key not in after:
            yield f"removed {key}"
        elif (old := before[key]) is not (new := after[key]) and old != new:
            effect = "restarts" if old.launch_hash != new.launch_hash else "keeps running"
            yield f"changed {key} ({effect}): {', '.join(_changed_keys(old, new))}"


def _changed_keys(old: ServerSpec, new: ServerSpec) -> Iterator[str]:
    before, after = _settings(old), _settings(new)
    for name in dict.fromkeys((*before, *after)):
        if before.get(name) != after.get(name):
            yield name.replace("_", "-") if name == "truely_stateless" else name


def _settings(spec: ServerSpec) -> dict[str, object]:
    """Return a spec's settings that differ from their defaults, with those of its kind."""
    return plain_fields(spec, ServerSpec, without="part") | plain_fields(spec.part, type(spec.part))
