"""The control plane's state machine: events in, actions out, no I/O and no clock.

Each method handles one event, reconciles desired state (configuration) with actual state (workers)
and queues actions that the Sync service sends. The owner calls `tick` when `next_deadline` passes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from leaseway.control_plane.core.catalog.listing import ServerListing
from leaseway.control_plane.core.catalog.snapshot import Snapshot, View
from leaseway.control_plane.core.catalog.subjects import Reader, Subject, SubjectListings
from leaseway.control_plane.core.catalog.variants import Hashes, Served
from leaseway.control_plane.core.client_problems import ClientProblems
from leaseway.control_plane.core.moment import Moment
from leaseway.control_plane.core.placement.table import PlacementTable
from leaseway.control_plane.core.placement.wait_queue import PlacementQueue
from leaseway.control_plane.core.problems import Problem, ProblemTable
from leaseway.control_plane.core.registry import Registry
from leaseway.control_plane.core.servers.pending import PendingVariants
from leaseway.control_plane.core.servers.servers import Servers
from leaseway.control_plane.core.workers.actions import (
    CancelProbe,
    PushDelta,
    StartProbe,
    WantContent,
    WorkerAction,
)
from leaseway.control_plane.core.workers.content_requests import ContentRequests
from leaseway.control_plane.core.workers.records import (
    Visibility,
    VisibleState,
    WorkerHello,
    WorkerIdentity,
    WorkerRecord,
    WorkerRefused,
    WorkerReport,
)
from leaseway.control_plane.core.workers.roster import Roster
from leaseway.control_plane.core.workers.subscription import VariantRefusal
from leaseway.spec.model import ServerSpec, VariantKey
from leaseway.wire import bounds
from leaseway.wire.errors import Reason

_CONTENT_OVERDUE: Final = "CONTENT_OVERDUE"
_LATE_CONTENT_WINDOW: Final = 1.0
"""Seconds for which content is collected that nothing waits for any more: each plan and commit
costs all servers, and thousands of contents may come late."""
_RETRIED_WHEN_CLEARED: Final = frozenset(
    {"MISSING_REFERENCE", "CHANGED_VALUE_FAILED", Reason.LOGIN_REQUIRED.value}
)
"""Reasons of a worker's problems whose end lets a server start that could not before."""


class Coordinator:
    """All state of a control plane.

    Args:
        now: Start time.
        epoch: Fences earlier control planes.
        expected_workers: Number of workers that will join; settling ends when all have reported
            their content. 0 means unknown.
        elected: Whether the epoch comes from a leader election. A worker that has seen a higher
            epoch then belongs to a later leader.

    Attributes:
        content: What the control plane lacks, and who was asked for it.
        servers: Desired servers, their last known good variants and their probes.
        roster: Workers and their leases.
        registry: Committed and visible snapshots.
        wait_queue: Lease requests that wait for capacity.
        subjects: What servers list for each tenant or user that they act for.
        pending: The variants without a first result.
    """

    def __init__(
        self, now: Moment, *, epoch: int, expected_workers: int = 0, elected: bool = False
    ) -> None:
        self.epoch = epoch
        self.content = ContentRequests()
        self._elected = elected
        self.problems = ProblemTable()
        self.client_problems = ClientProblems(self.problems)
        self.servers = Servers(self.problems)
        self.roster = Roster(self.problems)
        self.registry = Registry(self.problems, int(now.unix * 1e6))
        self.pending = PendingVariants(self.servers, self.registry)
        self.wait_queue = PlacementQueue()
        self.subjects = SubjectListings()
        self.visibility = Visibility()
        self.has_config = False
        self.config_loaded_at: float | None = None
        self.settled = False
        self._expected_workers = expected_workers
        self._settled_at = now.mono + bounds.SETTLING
        self._gathered_at = 0.0
        self._trace = ""
        self._replan = False
        self._late_content_at: float | None = None  # when content that came late is committed
        self._pushed: Snapshot | None = None  # the newest one that was compared with all workers
        self._revealed_generation = 0
        self._subjects_generation = 0
        # The desired servers and the scopes of the workers that were compared last.
        self._unplaced_checked_for: tuple[object, object] = (None, None)

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
        """Apply a parsed configuration; rejected servers and refused variants keep their state."""
        self.servers.configure(servers, rejected, refused)
        self.config_loaded_at = now.unix
        self._trace = trace
        self._replan = True
        self.record_config_problems(problems, now)

    def record_config_problems(self, problems: Iterable[Problem], now: Moment) -> None:
        """Record the problems of a configuration; of one that cannot be parsed they are all.

        See design.md#reload.2.
        """
        self.has_config = True
        self.problems.replace("config", problems, now.unix)
        self.registry.commit_soon(now, len(self.workers))
        self.tick(now)

    # Workers.

    def handle_worker_joined(self, hello: WorkerHello, now: Moment) -> None:
        """Register a worker.

        Raises:
            WorkerRefused: Another run with the same id may still be alive, or this control plane
                is no longer the leader.
        """
        if self._elected and hello.highest_epoch > self.epoch:
            raise WorkerRefused(
                f"This worker follows a leader of epoch {hello.highest_epoch}; this control plane"
                f" has epoch {self.epoch} and is no longer the leader."
            )
        if not self.roster.connected:
            self._gathered_at = now.mono + bounds.SETTLING
        record = self.roster.add_worker(hello, now)
        foreign = hello.highest_epoch != self.epoch
        if not self.settled and not self._elected:  # this epoch has fenced nothing yet
            self.epoch = max(self.epoch, hello.highest_epoch)
        self.servers.handle_worker_disconnected(record.id)  # its probes ended with its older stream
        if self.content.join(record.id, hello.held, self._has_content, now.mono):
            self._replan = True
        if self.registry.outrun(hello.highest_version, foreign=foreign):
            self.registry.commit_at = now.mono
        self.tick(now)

    def handle_run_ended(self, run: WorkerIdentity, now: Moment) -> None:
        """Record that a disconnected run of a worker has ended, without waiting for its loss."""
        self.roster.end_run(run)
        self.tick(now)

    def handle_worker_disconnected(self, worker_id: str, now: Moment) -> None:
        """Record that a worker's stream has ended."""
        record = self.workers.get(worker_id)
        if record is None:
            return
        self.servers.handle_worker_disconnected(worker_id)
        was_waiting = self.content.is_waiting
        self.content.leave(worker_id)
        self._check_content(now, was_waiting=was_waiting)
        self.roster.mark_disconnected(record, now)
        self.tick(now)

    def record_contact(self, worker_id: str) -> None:
        """Record that a worker sent something."""
        self.placements.record_contact(worker_id)

    def handle_content(self, worker_id: str, variants: Iterable[Served], now: Moment) -> None:
        """Record a worker's answer to a request for content."""
        if worker_id not in self.workers:
            return
        self.problems.clear(worker_id=worker_id, reason=_CONTENT_OVERDUE)
        received = tuple(variants)
        adopted = [served for served in received if self.servers.adopt(served)]
        was_waiting = self.content.is_waiting
        contents = ((served.key, served.hashes.launch) for served in received)
        self.content.receive(worker_id, contents, now.mono)
        if was_waiting:
            self._check_content(now, was_waiting=True)
        elif adopted and self._late_content_at is None:
            self._late_content_at = now.mono + _LATE_CONTENT_WINDOW
        self.tick(now)

    def handle_ack(self, worker_id: str, nonce: int, now: Moment) -> None:
        """Record a worker's acknowledgement."""
        record = self.workers.get(worker_id)
        if record is not None and self.roster.ack(record, nonce, now):
            self._reveal(record, now)
            self.tick(now)

    def handle_nack(
        self, worker_id: str, nonce: int, refusals: Iterable[VariantRefusal], now: Moment
    ) -> None:
        """Record a worker's refusals; its acknowledgement of the rest follows."""
        record = self.workers.get(worker_id)
        if record is not None:
            self.roster.nack(record, nonce, refusals, now)

    def handle_report(self, worker_id: str, report: WorkerReport, now: Moment) -> None:
        """Apply a worker's report of what has changed there."""
        record = self.workers.get(worker_id)
        if record is None:
            return
        for problem in report.cleared:
            if problem.reason in _RETRIED_WHEN_CLEARED:
                key = VariantKey(problem.server_id, problem.tenant)
                self.servers.probes.retry_now(key, now.mono)
        for probe_id, begun in report.probes.items():
            self.servers.probes.handle_progress(probe_id, worker_id, now.mono, begun=begun)
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
        """Record a new listing of a live shared instance that no probe asked for."""
        self.servers.handle_relisting(worker_id, key, launch_hash, outcome, now)
        self.tick(now)

    def handle_subject_listing(
        self,
        worker_id: str,
        subject: Subject,
        launch_hash: str,
        outcome: ServerListing | Problem | None,
        now: Moment,
    ) -> None:
        """Record what a server lists for one tenant or user, or why not; None after a logout."""
        record = self.workers.get(worker_id)
        if record is None:
            return
        if isinstance(outcome, ServerListing):
            self.subjects.record(subject, record.hello.address, launch_hash, outcome)
        elif outcome is None:
            self.subjects.end(subject)
        self.subjects.requests.finish(subject, now, failed=isinstance(outcome, Problem))
        self.tick(now)

    # Callers and operators.

    def report_client_problem(self, problem: Problem, now: Moment) -> None:
        self.client_problems.report(problem, self.visible, now)

    def drain_worker(self, worker_id: str, now: Moment) -> bool:
        """Drain a worker so that it exits; return False if it is unknown or not connected."""
        found = self.roster.drain(worker_id)
        if found:
            self.tick(now)
        return found

    def revoke_lease(self, lease_id: str, reason: str) -> bool:
        """Revoke a lease; return False if no worker has reported it."""
        return self.roster.revoke(lease_id, reason)

    # Time.

    def tick(self, now: Moment) -> None:
        # The order is that of cause and effect, so that one tick carries an event to its end:
        # 1. What time has ended goes first, so that the plan does not count on it.
        # 2. The plan (`reconcile`) decides what is probed, so probes are scheduled after it.
        # 3. A commit collects the results of probes: it waits for `commit_at` while some still run.
        # 4. Workers are told of the commit, and only what some worker has is shown to callers.
        self.roster.forget_lost_workers(now)
        if self._subjects_generation != self.roster.generation:
            self._subjects_generation = self.roster.generation
            hellos = (record.hello for record in self.workers.values())
            self.subjects.keep_runs(hello.address for hello in hellos if hello.lists_subjects)
        self.roster.revoke_duplicates(now)
        self._expire_content_requests(now)
        self._check_settled(now)
        for worker_id, keys in self.content.assign(now.mono):
            self.roster.queue_action(worker_id, WantContent(keys))
        self._take_late_content(now)
        self.servers.expire_probes(now)
        self.client_problems.expire(now)
        self.registry.expire(now)
        if self._replan:
            self._replan = False
            self.servers.reconcile(self.content.awaited_variants(), self._trace, now)
        self._update_unplaced(now)
        self._schedule_probes(now)
        if self.servers.changed:
            self.servers.changed = False
            self.registry.commit_soon(now, len(self.workers))
        if self.registry.commit_at is not None and (
            self.registry.commit_at <= now.mono or not self.servers.probes.busy
        ):
            self._commit(now)
        changed, self.roster.changed_workers = self.roster.changed_workers, {}
        self._push(changed, now)
        self.visibility.update(self.visible.version, self.workers, changed, self.subjects.sequence)

    def next_deadline(self) -> float | None:
        """Return when `tick` is next due on the monotonic clock, or None if only after an event."""
        times = [self.registry.commit_at, self.servers.probes.next_deadline()]
        times += [*self.roster.deadlines(), self.client_problems.next_expiry()]
        times += [self.registry.next_expiry(), self.content.next_deadline(), self._late_content_at]
        if not self.settled:
            times.append(self._settled_at)
        if len(self.wait_queue):
            times += [self.wait_queue.next_retry(), self.placements.next_expiry()]
        return min((time for time in times if time is not None), default=None)

    def pop_actions(self) -> list[tuple[str, WorkerAction]]:
        """Return the actions queued since the last call, each with its worker's id."""
        return self.roster.pop_actions()

    # Queries.

    @property
    def workers(self) -> Mapping[str, WorkerRecord]:
        """The workers by id; a disconnected one stays for 10 s."""
        return self.roster.workers

    @property
    def placements(self) -> PlacementTable:
        """Reported leases and reservations."""
        return self.roster.placements

    @property
    def committed(self) -> Snapshot:
        return self.registry.committed

    @property
    def visible(self) -> Snapshot:
        """What callers see: the part of the newest commit that some worker has acknowledged."""
        return self.registry.visible

    def view(self, reader: Reader) -> View:
        """Return what one reader sees of the registry."""
        return self.subjects.view(self.visible, self.servers.last_known_good, reader)

    @property
    def visible_state(self) -> VisibleState:
        """The state that watchers follow; a new object only when it changes."""
        return self.visibility.state

    @property
    def ready(self) -> bool:
        """Whether every first probe has ended and its result is served."""
        enough = self.roster.connected >= max(1, self._expected_workers)
        return (
            self.has_config and enough and self.registry.established and not self.pending.variants
        )

    def settling_remaining(self, now: Moment) -> float:
        """Return for how many more seconds this control plane waits for workers to join."""
        return 0.0 if self.settled else max(0.0, self._settled_at - now.mono)

    def may_regain_workers(self, now: Moment) -> bool:
        """Return whether workers that count as lost may come back with their leases.

        If no worker is connected, this control plane may be the one that was cut off. When one
        joins again, the others get 3 s to follow.
        """
        alone = not self.roster.connected or now.mono < self._gathered_at
        return alone and bool(self.roster.lost)

    def workers_serving(self, served: Served) -> Sequence[WorkerRecord]:
        """Return the workers that serve a variant, ordered by id.

        If there are none, return lost workers: callers may still reach them.
        """
        return self.roster.workers_serving(served) or self.roster.lost_workers_with(
            served, self.visible.version
        )

    def _has_content(self, key: VariantKey, hashes: Hashes) -> bool:
        """Return whether this control plane knows a content that a worker holds."""
        good = self.servers.last_known_good.get(key)
        return self.committed.hashes.get(key) == hashes or (
            good is not None and good.launch_hash == hashes.launch
        )

    def _check_content(self, now: Moment, *, was_waiting: bool) -> None:
        """Plan and commit at once after a wait for content: the next pushes depend on both."""
        if was_waiting and not self.content.is_waiting:
            self._replan = True
            self.registry.commit_at = now.mono
            self.roster.changed_workers.update(dict.fromkeys(self.workers))

    def _expire_content_requests(self, now: Moment) -> None:
        """Continue without the content of workers that do not send it: all other workers wait."""
        was_waiting = self.content.is_waiting
        for worker_id, keys in self.content.expire(now.mono).items():
            missing = ", ".join(map(str, keys[:5]))
            message = (
                f"Worker '{worker_id}' did not send its content of {missing} in time. The control"
                " plane continues without it. If this persists, look at that worker's log, or"
                " restart it."
            )
            problem = Problem("worker", _CONTENT_OVERDUE, message, worker_id=worker_id)
            self.problems.report(problem, now.unix)
        self._check_content(now, was_waiting=was_waiting)

    def _take_late_content(self, now: Moment) -> None:
        """Plan and commit with content that came after the wait for it."""
        if self._late_content_at is not None and self._late_content_at <= now.mono:
            self._late_content_at = None
            self._replan = True
            self.registry.commit_at = now.mono

    def _check_settled(self, now: Moment) -> None:
        if self.settled:
            return
        all_here = (
            0 < self._expected_workers <= self.roster.connected and not self.content.is_waiting
        )
        if all_here or now.mono >= self._settled_at:
            self.settled = True
            if not self.content.is_arriving(now.mono):
                self.content.stop_waiting()
            self._replan = True
            self.registry.commit_at = now.mono
            # From now on removals are pushed.
            self.roster.changed_workers.update(dict.fromkeys(self.workers))

    def _schedule_probes(self, now: Moment) -> None:
        for probe in self.servers.withdrawn:
            self.roster.queue_action(probe.worker_id, CancelProbe(probe.id))
        self.servers.withdrawn = []
        for worker_id in self.roster.changed_workers:
            record = self.workers.get(worker_id)
            if record is None or not record.accepts_work:
                self.servers.probes.remove_worker(worker_id)
            else:
                silent = not record.subscription.acked_version
                self.servers.probes.set_worker(worker_id, record.hello.scope, silent=silent)
        for job, probe in self.servers.probes.start(now.mono, self._workers_with):
            start = StartProbe(probe.id, job.spec, job.trace, probe.relist)
            self.roster.queue_action(probe.worker_id, start)

    def _workers_with(self, spec: ServerSpec) -> list[str]:
        return [
            record.id
            for record in self.workers.values()
            if record.subscription.was_sent(spec.key, spec.launch_hash)
        ]

    def _update_unplaced(self, now: Moment) -> None:
        """Find servers that no worker accepts, if the servers or workers have changed."""
        if not self.settled:
            return  # workers that have not joined yet may accept them
        desired, scopes = self.servers.desired, self.roster.scopes
        checked_desired, checked_scopes = self._unplaced_checked_for
        if checked_desired is not desired or checked_scopes is not scopes:
            self._unplaced_checked_for = (desired, scopes)
            self.servers.update_unplaced(scopes, now)

    def _commit(self, now: Moment) -> None:
        self.registry.commit_at = None
        if self.has_config and not self.content.is_waiting:
            # With requested content outstanding, its variants would look removed.
            self.registry.commit(self.servers.last_known_good, now, self.servers.withheld)
            self.content.reexamine()

    def _reveal(self, record: WorkerRecord, now: Moment) -> None:
        is_of_same_workers = self._revealed_generation == self.roster.generation
        if is_of_same_workers and not self.registry.may_reveal(record.subscription.acked):
            return
        self._revealed_generation = self.roster.generation
        before = self.visible
        self.registry.reveal(self.workers)
        if self.visible is not before:
            self.client_problems.close_changed(self.visible, now)

    def _push(self, changed: Iterable[str], now: Moment) -> None:
        """Push deltas: to all workers after a commit, else to the changed ones."""
        if self.committed.version == 0:
            return
        to_all = self._pushed is not self.committed
        self._pushed = self.committed
        for worker_id in [*self.workers] if to_all else changed:
            record = self.workers.get(worker_id)
            if record is None or not record.connected or self.content.awaits_of(worker_id):
                continue
            push = self.roster.push(record, self.committed, now, removals=self.settled)
            if push is not None:
                self.roster.queue_action(record.id, PushDelta(push, self._trace))
