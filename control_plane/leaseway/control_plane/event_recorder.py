"""Watches a coordinator and keeps the history of what has happened (`leaseway events`).

The coordinator knows nothing of it: its state is compared after each event, where a comparison of
identities or counters says that something may have changed. What workers remember is taken over
from their reports.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from leaseway.control_plane.core.approvals import ApprovalRecord
from leaseway.control_plane.core.catalog.exposure import count_of
from leaseway.control_plane.core.catalog.snapshot import Snapshot
from leaseway.control_plane.core.coordinator import Coordinator
from leaseway.control_plane.core.moment import Moment
from leaseway.control_plane.core.problems import Problem, ProblemKey
from leaseway.control_plane.core.spec_changes import spec_changes
from leaseway.spec.model import ServerSpec, VariantKey
from leaseway.wire.messages.events import EventRecord, History

_MOST_RUNS: Final = 1_000
"""Runs of workers of which it is known how far their events were taken."""


class EventRecorder:
    """The history of one control plane.

    Args:
        first: The number before its first event; a successor's is greater.

    Attributes:
        history: What is kept.
        reload: The newest reload, or None.
    """

    def __init__(self, first: int = 0) -> None:
        self.history = History(first)
        self.reload: EventRecord | None = None
        self._changed = asyncio.Event()
        self._committed: Snapshot | None = None
        self._workers: dict[str, tuple[str, str]] = {}
        self._problems: dict[ProblemKey, Problem] = {}
        self._problems_revision = -1
        self._specs: Mapping[VariantKey, ServerSpec] = {}
        self._taken: dict[str, int] = {}

    def record(self, event: EventRecord) -> EventRecord:
        """Keep an event and wake those who follow."""
        kept = self.history.add(event)
        self._changed.set()
        return kept

    async def changed(self, seen: int) -> None:
        """Wait until there is an event with a greater number."""
        while self.history.last <= seen:
            self._changed.clear()
            await self._changed.wait()

    def record_reload(
        self,
        specs: Mapping[VariantKey, ServerSpec],
        files: str,
        problems: Sequence[Problem],
        at: float,
        kept: Callable[[VariantKey], bool] = lambda _key: False,
    ) -> None:
        """Note a configuration that is in force from now on, and what it changes.

        Args:
            specs: What it says.
            files: Its files.
            problems: What is wrong with it.
            at: When, in Unix seconds.
            kept: Says which variants stay as they were because their entries are refused.
        """
        stay = {key: spec for key, spec in self._specs.items() if key not in specs and kept(key)}
        specs = {**specs, **stay}
        changes = spec_changes(self._specs, specs)
        self._specs = specs
        errors = [each.message for each in problems if each.severity == "error"]
        message = f"{files}: {_counted(changes)}"
        if errors:
            message += f"; {count_of(len(errors), 'mistake')}, whose entries stay as they were"
        self.reload = self.record(
            EventRecord(
                "reload",
                "partly applied" if errors else "applied",
                f"{message}.",
                at,
                "error" if errors else "info",
                details=(*changes, *errors),
            )
        )

    def record_rejected_reload(self, files: str, problems: Sequence[Problem], at: float) -> None:
        """Note a configuration that changes nothing because it is broken."""
        self.reload = self.record(
            EventRecord(
                "reload",
                "refused",
                f"{files} cannot be used; what was in force stays.",
                at,
                "error",
                reason=problems[0].reason if problems else "",
                details=tuple(each.message for each in problems),
            )
        )

    def record_approval(self, approval: ApprovalRecord, action: str, now: Moment) -> None:
        """Note what has become of a call that needs a person."""
        asked = approval.question
        what = f"the call of {asked.server_id}:{asked.tool} of tenant {asked.tenant}"
        decided = f"{approval.decided_by} has {action} {what}"
        words = {
            "asked": f"{what} waits for a person; {asked.asked_by} asks",
            "used": f"{what} runs, as {approval.decided_by} has approved",
            "expired": f"{what} did not get an answer, or did not come after one, in time",
        }
        message = words.get(action, decided)
        if approval.note:
            message += f": {approval.note}"
        self.record(
            EventRecord(
                "approval",
                action,
                f"{message[0].upper()}{message[1:]} (approval {approval.id}).",
                now.unix,
                "info",
                server_id=asked.server_id,
                tenant=asked.tenant,
                session=asked.session,
            )
        )

    def record_worker_events(
        self, worker_id: str, incarnation: str, events: Iterable[EventRecord]
    ) -> None:
        """Take over what a run of a worker has reported, each event once."""
        taken = self._taken.pop(incarnation, 0)
        for event in events:
            if event.number > taken:
                taken = event.number
                self.record(replace(event, worker_id=worker_id))
        while len(self._taken) >= _MOST_RUNS:
            del self._taken[next(iter(self._taken))]
        self._taken[incarnation] = taken

    def observe(self, state: Coordinator, now: Moment) -> None:
        """Note what has changed since the last time."""
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
        for key in sorted({*before, *after}):
            if before.get(key) == after.get(key):
                continue
            action = "up" if key not in before else "removed" if key not in after else "changed"
            lines.append(f"{action} {key}")
            tools = len(committed.served[key].callable_tools) if key in after else 0
            words = "is gone" if action == "removed" else f"serves {count_of(tools, 'tool')}"
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
        present = {
            record.id: (record.hello.address.incarnation, record.state)
            for record in state.workers.values()
        }
        if present == self._workers:
            return
        before, self._workers = self._workers, present
        for worker_id in sorted({*before, *present}):
            was, now_is = before.get(worker_id), present.get(worker_id)
            if was == now_is:
                continue
            self._record_worker(worker_id, was, now_is, now)

    def _record_worker(
        self,
        worker_id: str,
        was: tuple[str, str] | None,
        now_is: tuple[str, str] | None,
        now: Moment,
    ) -> None:
        severity = "info"
        if now_is is None:
            action, words = "gone", "is gone for good; what it held may be placed anew"
            if was is not None and was[1] == "draining":
                action, words = "left", "has ended as it was told to"
        elif now_is[1] == "lost":
            action, words, severity = "disconnected", "is not connected any more", "warning"
        elif now_is[1] == "draining":
            action, words = "draining", "takes no more work and ends"
        elif was is not None and was[0] == now_is[0]:
            action, words = "back", "is connected again"
        else:
            action, words = "joined", "has joined"
        message = f"Worker {worker_id} {words}."
        self.record(EventRecord("worker", action, message, now.unix, severity, worker_id=worker_id))

    def _observe_problems(self, state: Coordinator, now: Moment) -> None:
        present = {each.problem.key: each.problem for each in state.problems.open()}
        before, self._problems = self._problems, present
        for key in present.keys() - before.keys():
            self._record_problem(present[key], "opened", now)
        for key in before.keys() - present.keys():
            self._record_problem(before[key], "closed", now)

    def _record_problem(self, problem: Problem, action: str, now: Moment) -> None:
        self.record(
            EventRecord(
                "problem",
                action,
                problem.message,
                now.unix,
                problem.severity if action == "opened" else "info",
                reason=problem.reason,
                server_id=problem.server_id,
                tenant=problem.tenant,
                worker_id=problem.worker_id,
            )
        )


def _counted(lines: Sequence[str]) -> str:
    counts: dict[str, int] = {}
    for line in lines:
        word = line.partition(" ")[0]
        counts[word] = counts.get(word, 0) + 1
    return ", ".join(f"{count} {word}" for word, count in counts.items()) or "nothing changed"
