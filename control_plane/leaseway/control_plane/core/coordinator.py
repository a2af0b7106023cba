"""The control plane's one writer: events in, actions out, no I/O and no clock.

What is desired comes from configuration, what is actual from workers (the second property in
DESIGN). Each method takes one event, brings the two closer, and leaves actions for the Sync edge to
carry out. Nothing here waits: an owner calls `tick` when `next_deadline` has passed.

The state itself is in three places: `servers` (what is desired and what was last good), `roster`
(the workers and their leases) and `registry` (what is served at which version). Who waits for room
stands in `line`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from typing import Final

from leaseway.control_plane.core.catalog.listing import ServerListing
from leaseway.control_plane.core.catalog.snapshot import Snapshot
from leaseway.control_plane.core.catalog.tenant_hiding import hides_temporarily
from leaseway.control_plane.core.catalog.variants import Served
from leaseway.control_plane.core.client_problems import ClientProblems
from leaseway.control_plane.core.moment import Moment
from leaseway.control_plane.core.placement.table import PlacementTable
from leaseway.control_plane.core.placement.wait_queue import PlacementQueue
from leaseway.control_plane.core.problems import Problem, ProblemTable
from leaseway.control_plane.core.registry import Registry
from leaseway.control_plane.core.servers.servers import Servers
from leaseway.control_plane.core.workers.actions import (
    Action,
    CancelProbe,
    PushDelta,
    StartProbe,
    WantContent,
)
from leaseway.control_plane.core.workers.records import (
    VisibleState,
    WorkerHello,
    WorkerRecord,
    WorkerRefused,
    WorkerReport,
)
from leaseway.control_plane.core.workers.roster import Roster
from leaseway.control_plane.core.workers.subscription import VariantRefusal
from leaseway.control_plane.core.workers.visibility import Visibility
from leaseway.spec.model import ServerSpec, VariantKey
from leaseway.wire import bounds

_CONTENT_WITHIN: Final = 15.0
_NO_WAIT_AFTER: Final = 600.0
"""Seconds for which no worker's content is waited for, once one did not send it: however many join
and stay silent, they hold up what is configured once."""
"""Seconds that a worker may take to send the content that it was asked for."""

_CONTENT_OVERDUE: Final = "CONTENT_OVERDUE"
_MISSING_REFERENCE: Final = "MISSING_REFERENCE"
"""What workers say of a variant whose secrets, files or variables are not all there."""


class Coordinator:
    """All state of a control plane.

    Args:
        now: When it started.
        epoch: Fences control planes of the past.
        expected_workers: How many workers will join. When all have said what they hold,
            nothing more is waited for; 0 means unknown.
        elected: Whether the epoch was given by an election: a worker that has seen a higher one
            then belongs to a later leader.
    """

    def __init__(
        self, now: Moment, *, epoch: int, expected_workers: int = 0, elected: bool = False
    ) -> None:
        self.epoch = epoch
        self._waits_again_at = -inf
        self._elected = elected
        self.problems = ProblemTable()
        self.client_problems = ClientProblems(self.problems)
        self.servers = Servers(self.problems)
        self.roster = Roster(self.problems)
        self.registry = Registry(self.problems, int(now.unix * 1e6))
        self.wait_queue = PlacementQueue()
        self.visibility = Visibility()
        self.has_config = False
        self.config_loaded_at: float | None = None
        self.settled = False
        self._expected_workers = expected_workers
        self._settled_at = now.mono + bounds.SETTLING
        self._trace = ""
        self._replan = False
        self._pushed: Snapshot | None = None  # the newest that all workers were looked at for
        self._revealed = 0
        self._looked: tuple[object, int] = (None, 0)

    # Configuration.

    def apply_config(
        self,
        servers: Mapping[VariantKey, ServerSpec],
        rejected: frozenset[str],
        problems: Iterable[Problem],
        now: Moment,
        trace: str = "",
        *,
        refused: frozenset[VariantKey] = frozenset(),
    ) -> None:
        """Apply a configuration that parsed; what is rejected or refused keeps what it last had."""
        self.servers.configure(servers, rejected, refused)
        self.config_loaded_at = now.unix
        self._trace = trace
        self._replan = True
        self._config_seen(problems, now)

    def record_config_failure(self, problems: Iterable[Problem], now: Moment) -> None:
        """Record that the configuration cannot be used: nothing changes (DESIGN §3.2)."""
        self._config_seen(problems, now)

    def _config_seen(self, problems: Iterable[Problem], now: Moment) -> None:
        self.has_config = True
        self.problems.replace("config", problems, now.unix)
        self.registry.commit_soon(now)
        self.tick(now)

    # Workers.

    def handle_worker_joined(self, hello: WorkerHello, now: Moment) -> None:
        """Register a worker.

        Raises:
            WorkerRefused: Another run of the same id may still be alive, or this control plane
                leads no more.
        """
        if self._elected and hello.highest_epoch > self.epoch:
            raise WorkerRefused(
                f"This worker follows a leader of epoch {hello.highest_epoch}; this control plane"
                f" is of epoch {self.epoch} and leads no more."
            )
        record = self.roster.add_worker(hello, now)
        foreign = hello.highest_epoch != self.epoch
        if (
            not self.settled and not self._elected
        ):  # starting up: nothing can have been fenced by this one yet
            self.epoch = max(self.epoch, hello.highest_epoch)
        self.servers.handle_worker_gone(record.id)  # they ended with its older stream
        self._ask_for_content(record, now)
        self._replan = True
        if self.registry.outrun(hello.highest_version, foreign=foreign):
            self.registry.commit_at = now.mono
        self.tick(now)

    def handle_worker_disconnected(self, worker_id: str, now: Moment) -> None:
        """Record that a worker's stream has ended."""
        record = self.workers.get(worker_id)
        if record is None:
            return
        self.servers.handle_worker_gone(worker_id)
        if record.requested_content:
            self._owes_nothing(record, now)
        self.roster.mark_disconnected(record, now)
        self.tick(now)

    def record_contact(self, worker_id: str) -> None:
        """Record a sign of life of a worker."""
        self.placements.record_contact(worker_id)

    def handle_content(self, worker_id: str, variants: Iterable[Served], now: Moment) -> None:
        """Record all the content behind hashes that a worker was asked for."""
        record = self.workers.get(worker_id)
        if record is None:
            return
        self.problems.clear(worker_id=worker_id, reason=_CONTENT_OVERDUE)
        for served in variants:
            self.servers.adopt(served)
        self._owes_nothing(record, now)
        self.tick(now)

    def handle_ack(self, worker_id: str, nonce: int, now: Moment) -> None:
        """Record a worker's acknowledgement."""
        record = self.workers.get(worker_id)
        if record is not None and self.roster.ack(record, nonce, now):
            self._reveal(now)
            self.tick(now)

    def handle_nack(
        self, worker_id: str, nonce: int, refusals: Iterable[VariantRefusal], now: Moment
    ) -> None:
        """Record a worker's refusals; its acknowledgement of the rest follows."""
        record = self.workers.get(worker_id)
        if record is not None:
            self.roster.nack(record, nonce, refusals, now)

    def handle_report(self, worker_id: str, report: WorkerReport, now: Moment) -> None:
        """Record what a worker says has changed."""
        record = self.workers.get(worker_id)
        if record is None:
            return
        for problem in report.cleared:
            if problem.reason == _MISSING_REFERENCE:
                key = VariantKey(problem.server_id, problem.tenant)
                self.servers.probes.hurry(key, now.mono)
        self.roster.apply_report(record, report, now)
        self.tick(now)

    def handle_probe_result(
        self, probe_id: int, outcome: ServerListing | Problem, now: Moment
    ) -> None:
        self.servers.handle_probe_result(probe_id, outcome, now)
        self.tick(now)

    def handle_relisting(
        self,
        worker_id: str,
        key: VariantKey,
        launch_hash: str,
        outcome: ServerListing | Problem,
        now: Moment,
    ) -> None:
        """Record what a worker says, unasked, of a live shared instance that it listed again."""
        self.servers.handle_relisting(worker_id, key, launch_hash, outcome, now)
        self.tick(now)

    # Callers and operators.

    def report_client_problem(self, problem: Problem, now: Moment) -> None:
        self.client_problems.report(problem, self.visible, now)

    def drain_worker(self, worker_id: str, now: Moment) -> bool:
        """Drain a worker: it takes no more work and ends; False where there is none of that id."""
        found = self.roster.drain(worker_id)
        if found:
            self.tick(now)
        return found

    def revoke_lease(self, lease_id: str, reason: str) -> bool:
        """End a lease; False where no worker has reported it."""
        return self.roster.revoke(lease_id, reason)

    # Time.

    def tick(self, now: Moment) -> None:
        self.roster.forget_lost_workers(now)
        self.roster.revoke_duplicates(now)
        self._give_up_content(now)
        self._settle(now)
        self.servers.expire_probes(now)
        self.client_problems.expire(now)
        self.registry.expire(now)
        if self._replan:
            self._replan = False
            self.servers.plan(self.roster.requested_content, self._trace, now)
        self._look_for_workers(now)
        self._steer_probes(now)
        if self.servers.changed:
            self.servers.changed = False
            self.registry.commit_soon(now)
        if self.registry.commit_at is not None and (
            self.registry.commit_at <= now.mono or not self.servers.probes.busy
        ):
            self._commit(now)
        moved, self.roster.changed_workers = self.roster.changed_workers, {}
        self._push(moved, now)
        self.visibility.update(self.visible.version, self.workers, moved)

    def next_deadline(self, now: Moment) -> float | None:
        """Return when `tick` is next due on the monotonic clock; None: not before an event."""
        times = [self.registry.commit_at, self.servers.probes.next_deadline(now.mono)]
        times += [*self.roster.deadlines(), self.client_problems.next_expiry()]
        times.append(self.registry.next_expiry())
        times += [
            each.content_requested_at + _CONTENT_WITHIN
            for each in self.workers.values()
            if each.requested_content
        ]
        if not self.settled:
            times.append(self._settled_at)
        if len(self.wait_queue):
            times += [self.wait_queue.next_retry(), self.placements.next_expiry()]
        return min((time for time in times if time is not None), default=None)

    def pop_actions(self) -> list[tuple[str, Action]]:
        """Return the actions since the last call, each with its worker's id."""
        return self.roster.pop_actions()

    # What others read.

    @property
    def workers(self) -> Mapping[str, WorkerRecord]:
        """The workers by id; one whose stream has ended stays for 10 s."""
        return self.roster.workers

    @property
    def placements(self) -> PlacementTable:
        """The leases that workers hold, and the room reserved for others."""
        return self.roster.placements

    @property
    def committed(self) -> Snapshot:
        return self.registry.committed

    @property
    def visible(self) -> Snapshot:
        """What callers see: what of the newest commit some worker has acknowledged."""
        return self.registry.visible

    @property
    def visible_state(self) -> VisibleState:
        """What watchers are told of when it changes; another object only then."""
        return self.visibility.state

    @property
    def pending_variants(self) -> set[VariantKey]:
        """The variants that have no first result yet."""
        waiting = self.servers.without_result()
        if self.registry.commit_at is not None or not self.registry.established:
            # Listed, but not served yet.
            served, desired = self.visible.served, self.servers.desired or {}
            waiting |= {
                key
                for key in self.servers.last_known_good
                if key not in served or hides_temporarily(served[key], desired)
            }
        return waiting

    @property
    def pending_servers(self) -> list[str]:
        """Ids of servers that have no first result yet, for some tenant or for all, ordered."""
        return sorted({key.server_id for key in self.pending_variants})

    @property
    def ready(self) -> bool:
        """Whether every first probe has ended and its result is served."""
        enough = len(self.roster.connected) >= max(1, self._expected_workers)
        return self.has_config and enough and self.registry.established and not self.pending_servers

    def settling_remaining(self, now: Moment) -> float:
        """Return for how many seconds more workers are waited for."""
        return 0.0 if self.settled else max(0.0, self._settled_at - now.mono)

    def workers_serving(self, served: Served) -> list[WorkerRecord]:
        """Return the workers that callers of a variant may go to, ordered by id.

        Where there are none, those that were lost: callers may reach what this process does not.
        """
        lost = self.roster.lost_workers_with
        return self.roster.workers_serving(served) or lost(served, self.visible.version)

    # Inside.

    def _ask_for_content(self, record: WorkerRecord, now: Moment) -> None:
        known = self.committed.hashes
        last_known_good = self.servers.last_known_good
        wanted = {
            key
            for key, hashes in record.hello.held.items()
            if known.get(key) != hashes
            and (key not in last_known_good or last_known_good[key].launch_hash != hashes.launch)
        }
        record.requested_content = wanted if now.mono >= self._waits_again_at else set()
        record.content_requested_at = min(
            (
                each.content_requested_at
                for each in self.workers.values()
                if each.requested_content and each is not record
            ),
            default=now.mono,
        )
        if wanted:
            self.roster.queue_action(record.id, WantContent(tuple(sorted(wanted))))

    def _give_up_content(self, now: Moment) -> None:
        """Go on without a worker that does not send what it was asked for: all others wait."""
        for record in self.workers.values():
            if (
                record.requested_content
                and now.mono >= record.content_requested_at + _CONTENT_WITHIN
            ):
                missing = ", ".join(sorted(map(str, record.requested_content))[:5])
                message = (
                    f"Worker '{record.id}' did not send its content of {missing} within"
                    f" {_CONTENT_WITHIN:g} s. The control plane continues without it. If this"
                    " persists, look at that worker's log, or restart it."
                )
                problem = Problem("worker", _CONTENT_OVERDUE, message, worker_id=record.id)
                self.problems.report(problem, now.unix)
                self._waits_again_at = now.mono + _NO_WAIT_AFTER
                self._owes_nothing(record, now)

    def _owes_nothing(self, record: WorkerRecord, now: Moment) -> None:
        record.requested_content = set()
        self.roster.changed_workers[record.id] = None
        self._replan = True
        self.registry.commit_at = now.mono  # at once: the next push must know what it holds

    def _settle(self, now: Moment) -> None:
        if self.settled:
            return
        joined = self.roster.connected
        all_here = 0 < self._expected_workers <= len(joined) and not any(
            r.requested_content for r in joined
        )
        if all_here or now.mono >= self._settled_at:
            self.settled = True
            for record in joined:
                self._owes_nothing(record, now)

    def _steer_probes(self, now: Moment) -> None:
        for probe in self.servers.withdrawn:
            self.roster.queue_action(probe.worker_id, CancelProbe(probe.id))
        self.servers.withdrawn = []
        if not self.servers.probes.jobs:
            return
        able = {
            record.id: record.hello.scope for record in self.workers.values() if record.accepts_work
        }
        silent = {one for one in able if not self.workers[one].subscription.acked_version}
        for job, probe in self.servers.probes.start(able, now.mono, silent, self._holders):
            start = StartProbe(probe.id, job.spec, job.trace, probe.relist)
            self.roster.queue_action(probe.worker_id, start)

    def _holders(self, spec: ServerSpec) -> list[str]:
        return [
            record.id
            for record in self.workers.values()
            if record.subscription.was_sent(spec.key, spec.launch_hash)
        ]

    def _look_for_workers(self, now: Moment) -> None:
        """See anew, where workers or servers are others, which servers no worker may be given."""
        if not self.settled:
            return  # those that are still to join may be the ones
        desired, generation = self.servers.desired, self.roster.generation
        if self._looked[0] is not desired or self._looked[1] != generation:
            self._looked = (desired, generation)
            scopes = {record.id: record.hello.scope for record in self.workers.values()}
            self.servers.update_unplaced(scopes, now)

    def _commit(self, now: Moment) -> None:
        self.registry.commit_at = None
        if self.has_config and not self.roster.requested_content:
            # Else what is not known yet would look as if it were gone.
            self.registry.commit(self.servers.last_known_good, now, self.servers.withheld)

    def _reveal(self, now: Moment) -> None:
        if self.registry.complete and self._revealed == self.roster.generation:
            return  # while the same workers hold all of it, another acknowledgement adds nothing
        self._revealed = self.roster.generation
        before = self.visible
        self.registry.reveal(self.workers.values())
        if self.visible is not before:
            self.client_problems.close_changed(self.visible, now)

    def _push(self, moved: Iterable[str], now: Moment) -> None:
        """Push to workers what they lack: all after a commit, else those who may be ready now."""
        if self.committed.version == 0:
            return
        everybody = self._pushed is not self.committed
        self._pushed = self.committed
        for worker_id in [*self.workers] if everybody else moved:
            record = self.workers.get(worker_id)
            if record is None or not record.connected or record.requested_content:
                continue
            push = self.roster.push(record, self.committed, now, removals=self.settled)
            if push is not None:
                self.roster.queue_action(record.id, PushDelta(push, self._trace))
