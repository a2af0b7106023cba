"""The workers that have joined, their leases, and the actions queued for them.

All of this state comes from the workers' messages and ends with them (design.md#leases, #sync).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from leaseway.control_plane.core.catalog.snapshot import Snapshot
from leaseway.control_plane.core.catalog.variants import Served
from leaseway.control_plane.core.catalog.worker_scope import WorkerScope
from leaseway.control_plane.core.moment import Moment
from leaseway.control_plane.core.placement.table import HeldLease, PlacementTable
from leaseway.control_plane.core.problems import Problem, ProblemTable
from leaseway.control_plane.core.workers.actions import (
    AskInstances,
    DrainWorker,
    RevokeLease,
    WorkerAction,
)
from leaseway.control_plane.core.workers.instances import NO_LAUNCHES, InstanceTable, Launched
from leaseway.control_plane.core.workers.records import (
    WorkerHello,
    WorkerIdentity,
    WorkerRecord,
    WorkerRefused,
    WorkerReport,
)
from leaseway.control_plane.core.workers.serving import ServingIndex
from leaseway.control_plane.core.workers.subscription import Push, Subscription, VariantRefusal
from leaseway.spec.model import VariantKey
from leaseway.wire import bounds
from leaseway.wire.errors import Reason
from leaseway.wire.names import LeaseKey
from leaseway.wire.sharing.newest import Newest

_DUPLICATE_GRACE = 2.0
"""Seconds for which two leases may share a key: reports arrive 0.1 s late, or more under load."""

_MARGIN = 1.0
"""Seconds within which a worker that counts as lost is removed."""

_LOST_RETENTION = 600.0
"""Seconds for which a lost worker and its open problem are kept."""

_MAX_DISCONNECTED_RUNS = 10_000
"""Worker runs whose time of disconnection is remembered."""


@dataclass
class Roster:
    """All workers; owned by the coordinator.

    Attributes:
        workers: By id; a disconnected worker stays for 10 s.
        lost: Lost workers by id, for 10 minutes or until they reconnect. They may still run, and
            callers may reach them.
        placements: Reported leases and reservations.
        changed_workers: Ids of workers that joined, disconnected, drained or acknowledged, in
            that order; the owner empties it.
        generation: Counts streams that started and workers that were removed.
        revision: Counts changes of workers: joins, acks, disconnections, drains and removals.
        unobserved: Ids of the workers that have changed since `pop_unobserved`.
        standing: Another object after each change of which workers accept work.
        scopes: The different scopes of the workers; a new object only when they change.
    """

    problems: ProblemTable
    workers: dict[str, WorkerRecord] = field(default_factory=dict)
    placements: PlacementTable = field(default_factory=PlacementTable)
    lost: dict[str, WorkerRecord] = field(default_factory=dict)
    changed_workers: dict[str, None] = field(default_factory=dict)
    generation: int = 0
    revision: int = 0
    unobserved: dict[str, None] = field(default_factory=dict)
    standing: object = field(default_factory=object)
    scopes: frozenset[WorkerScope] = frozenset()
    _scope_counts: dict[WorkerScope, int] = field(default_factory=dict)
    _ordered: list[WorkerRecord] = field(default_factory=list)
    _ordered_at: int = 0  # the generation of `_ordered`
    _disconnected: dict[str, WorkerRecord] = field(default_factory=dict)
    _unacked: dict[str, WorkerRecord] = field(default_factory=dict)  # with a pending delta
    _unsent: list[tuple[str, WorkerAction]] = field(default_factory=list)
    _drained: dict[tuple[str, str], float] = field(default_factory=dict)
    _disconnected_at: Newest[tuple[str, str], float] = field(  # by run
        default_factory=partial(Newest, _MAX_DISCONNECTED_RUNS)
    )
    _serving: ServingIndex = field(default_factory=ServingIndex)
    _duplicates: dict[LeaseKey, float] = field(default_factory=dict)  # when to revoke one

    def queue_action(self, worker_id: str, action: WorkerAction) -> None:
        self._unsent.append((worker_id, action))

    def workers_with_spare(self, launched: Launched, accepted: Iterable[str]) -> Collection[str]:
        """Return the workers with a ready spare instance of a launch that may serve a client."""
        return self._serving.workers_with_spare(launched, accepted)

    def pop_actions(self) -> list[tuple[str, WorkerAction]]:
        """Return the actions queued since the last call, each with its worker's id."""
        unsent, self._unsent = self._unsent, []
        return unsent

    def pop_unobserved(self) -> dict[str, None]:
        """Return the ids of the workers that have changed since the last call."""
        changed, self.unobserved = self.unobserved, {}
        return changed

    # Messages from workers.

    def add_worker(self, hello: WorkerHello, now: Moment) -> WorkerRecord:
        """Register a worker with all its leases.

        Raises:
            WorkerRefused: Another run of the same id may still be alive.
        """
        self.forget_lost_workers(now)
        address = hello.address
        known = self.workers.get(address.id)
        if known is not None and known.hello.address.incarnation != address.incarnation:
            self._refuse_second_run(known, now)
        self._clear_lost(address.id)  # its other problems are reported again
        before = known.subscription if known is not None else None
        record = WorkerRecord(
            hello,
            Subscription.resume(hello.held, before),
            instances=InstanceTable(hello.instances),
        )
        launches = known.instances.launches if known is not None else NO_LAUNCHES
        self._serving.update_launches(record.id, launches, record.instances.launches)
        self.workers[address.id] = record
        self._count_scope(hello.scope, 1)
        if known is not None:
            self._count_scope(known.hello.scope, -1)
        self._disconnected.pop(address.id, None)
        self._unacked.pop(address.id, None)
        self._mark_changed(address.id)
        self.standing = object()
        self.generation += 1
        was_draining = known is not None and known.draining
        if was_draining or (address.id, address.incarnation) in self._drained:
            self._drain(record)  # the older stream may have ended before the message was sent
        self._show_refusals(record, now)
        self.placements.add_worker(address.id, hello.capacity)
        all_duplicates = self.placements.replace_leases(address.id, hello.leases)
        since = self._disconnected_at.pop((address.id, address.incarnation), None)
        for lease in hello.leases:
            superseded = since is not None and self.placements.is_superseded(lease, since)
            if superseded or self.placements.is_fenced(lease):
                self.fence(lease.id, lease.key)
        for duplicates in all_duplicates:
            self._schedule_revocation(duplicates, now)
        return record

    def doubtful_run(self, address: WorkerIdentity) -> WorkerIdentity | None:
        """Return the disconnected run whose id another run uses: it may still be alive."""
        known = self._disconnected.get(address.id)
        if known is None or known.hello.address.incarnation == address.incarnation:
            return None
        return known.hello.address

    def end_run(self, run: WorkerIdentity) -> None:
        """Remove a disconnected run that is known to have ended; its leases are lost."""
        record = self._disconnected.get(run.id)
        if record is not None and record.hello.address == run:
            self._remove(run.id)

    def mark_disconnected(self, record: WorkerRecord, now: Moment) -> None:
        """Record that a worker's stream has ended; remove a drained worker at once."""
        run = (record.id, record.hello.address.incarnation)
        record.disconnected_at = now.mono
        self._disconnected_at[run] = now.mono
        self._disconnected[record.id] = record
        self._mark_changed(record.id)
        self.standing = object()
        if record.lost_at is not None:
            # A moment longer: until then its reservations tell that sessions may have leases there.
            self.placements.keep_reservations(record.id, record.lost_at + _MARGIN)
        if record.draining and not self.placements.held_count(record.id):
            # If only its stream broke, the same run must be drained when it reconnects.
            self._drained[run] = now.mono + bounds.WORKER_LOST_AFTER
            self._remove(record.id)

    def apply_report(self, record: WorkerRecord, report: WorkerReport, now: Moment) -> None:
        """Apply a worker's report of what has changed there."""
        record.calls_in_flight = report.calls_in_flight
        if report.draining and not record.draining:
            record.draining = True
            self.standing = object()
            self._mark_changed(record.id)
        self._apply_instances(record, report)
        self._apply_lease_changes(record, report, now)
        for problem in report.cleared:
            self._clear_reported(record, problem)
        for problem in report.problems:
            self.problems.report(replace(problem, worker_id=record.id), now.unix)

    def _apply_instances(self, record: WorkerRecord, report: WorkerReport) -> None:
        before, table = record.instances.launches, record.instances
        if report.instances is not None:
            table.replace_all(report.instances)
        if report.instance_changes is not None and not table.apply(report.instance_changes):
            self.queue_action(record.id, AskInstances())
        if table.launches == before:
            return
        self._serving.update_launches(record.id, before, table.launches)
        if table.launches.shares != before.shares:
            self._mark_changed(record.id)  # changes where stateless servers can be called

    def _apply_lease_changes(self, record: WorkerRecord, report: WorkerReport, now: Moment) -> None:
        ended = set(report.lost)
        for lease in report.gained:
            if lease.id in ended:  # granted and ended: this frees its reservation
                self.placements.add_lease(lease)
        for lease_id in report.lost:
            self.placements.remove_lease(lease_id, record.id)
            record.revoked_duplicates.discard(lease_id)
        for lease in report.gained:
            if lease.id not in ended:
                self._schedule_revocation(self.placements.add_lease(lease), now)
                if self.placements.is_fenced(lease):
                    self.fence(lease.id, lease.key)
        for key in report.unused:
            self.placements.drop_reservation(key, record.id)

    def push(
        self, record: WorkerRecord, snapshot: Snapshot, now: Moment, *, removals: bool
    ) -> Push | None:
        part = snapshot.within(record.hello.scope)
        push = record.subscription.push(part, removals=removals)
        if push is not None:
            record.pushed_at = now.mono
            self._unacked[record.id] = record
        self._show_refusals(record, now)
        return push

    def ack(self, record: WorkerRecord, nonce: int, now: Moment) -> bool:
        """Record an acknowledgement; return False if it is stale."""
        pending = record.subscription.pending
        known = record.subscription.ack(nonce)
        if record.subscription.pending is None:
            self._unacked.pop(record.id, None)
        if known and pending is not None:
            self.placements.room.servers.append(pending.delta.servers)
        self._mark_changed(record.id)
        self._show_refusals(record, now)
        return known

    def nack(
        self, record: WorkerRecord, nonce: int, refusals: Iterable[VariantRefusal], now: Moment
    ) -> None:
        """Record refused variants; the acknowledgement of the rest follows."""
        record.subscription.nack(nonce, refusals)
        self._show_refusals(record, now)

    # Operators and callers.

    def drain(self, worker_id: str) -> bool:
        """Drain a worker so that it exits; return False if it is unknown or not connected."""
        record = self.workers.get(worker_id)
        if record is None or not record.connected:
            return False
        self._drain(record)
        return True

    def revoke(self, lease_id: str, reason: str) -> bool:
        """Revoke a lease; return False if no worker has reported it."""
        lease = self.placements.leases.get(lease_id)
        if lease is None:
            return False
        self.queue_action(lease.worker_id, RevokeLease(lease_id, reason))
        return True

    def fence(self, lease_id: str, key: LeaseKey) -> None:
        """End a lease that its holder was told is lost, now or when its worker reconnects."""
        self.placements.fence(lease_id, key)
        lease = self.placements.leases.get(lease_id)
        if lease is None or lease.key != key:
            return
        record = self.workers[lease.worker_id]
        if record.connected and lease_id not in record.revoked_duplicates:
            record.revoked_duplicates.add(lease_id)
            reason = (
                "Its session was told that the lease was lost while this worker was disconnected,"
                " and may have another lease."
            )
            self.queue_action(record.id, RevokeLease(lease_id, reason))

    # Time.

    def forget_lost_workers(self, now: Moment) -> None:
        """Remove workers whose stream ended 10 s ago, and their leases.

        A worker that was not draining is an open problem until it reconnects, for 10 minutes at
        most, as its successor may have another id.
        """
        expired = [record for record in self.lost.values() if now.mono >= _forgotten_at(record)]
        for record in expired:
            self._clear_lost(record.id)
        for record in list(self._disconnected.values()):
            if record.lost_at is not None and now.mono >= record.lost_at:
                leases = self.placements.held_count(record.id)
                self._remove(record.id)
                if not record.draining:
                    self.lost[record.id] = record
                    self.problems.report(_lost_problem(record, leases), now.unix)
        for run in [run for run, until in self._drained.items() if until <= now.mono]:
            del self._drained[run]

    def revoke_duplicates(self, now: Moment) -> None:
        """Revoke the younger of two leases that have shared a key for a while (design.md#leases).

        Leases on disconnected or draining workers do not count: a successor replaced them. If the
        worker reconnects with its lease, the older lease is valid again. Leases that were already
        revoked do not count either: ages depend on the delay of reports, and if a later report
        reversed them, both leases would be revoked.
        """
        for key in [key for key, at in self._duplicates.items() if at <= now.mono]:
            del self._duplicates[key]
            valid = [lease for lease in self.placements.leases_of(key) if self._is_valid(lease)]
            for lease in valid[1:]:
                reason = "Another worker holds an older lease of the same session and server."
                self.workers[lease.worker_id].revoked_duplicates.add(lease.id)
                self.queue_action(lease.worker_id, RevokeLease(lease.id, reason))

    def deadlines(self) -> Iterator[float]:
        """Yield when workers become lost or are forgotten, and when duplicates are revoked."""
        yield from self._duplicates.values()
        yield from map(_forgotten_at, self.lost.values())
        for record in self._disconnected.values():
            if record.lost_at is not None:
                yield record.lost_at

    # Queries.

    @property
    def connected(self) -> int:
        """How many workers have an open stream."""
        return len(self.workers) - len(self._disconnected)

    @property
    def all_workers(self) -> list[WorkerRecord]:
        """All workers including lost ones, ordered by id."""
        return [record for _, record in sorted({**self.lost, **self.workers}.items())]

    def find_workers(self, worker_ids: Iterable[str]) -> list[WorkerRecord]:
        """Return these workers, as far as they are known or lost, ordered by id."""
        found = (
            self.workers.get(worker_id) or self.lost.get(worker_id)
            for worker_id in sorted(set(worker_ids))
        )
        return [record for record in found if record is not None]

    @property
    def sorted_workers(self) -> list[WorkerRecord]:
        """The workers that are not lost, ordered by id; do not modify."""
        if self._ordered_at != self.generation:
            self._ordered = [record for _, record in sorted(self.workers.items())]
            self._ordered_at = self.generation
        return self._ordered

    def workers_serving(self, served: Served) -> Sequence[WorkerRecord]:
        """Return the workers that serve a variant, ordered by id; see `ServingIndex`."""
        return self._serving.workers_serving(served, self.sorted_workers, self.revision)

    def count_serving(self, served: Served) -> int | None:
        """Return how many connected workers have a variant, or None if it may be down on some."""
        return self._serving.count_serving(served, self.sorted_workers, self.revision)

    def is_on_its_way(self, key: VariantKey) -> bool:
        """Return whether a worker that accepts work has yet to acknowledge a variant."""
        return any(
            record.accepts_work and record.subscription.is_on_its_way(key)
            for record in self._unacked.values()
        )

    def lost_workers_with(self, served: Served, version: int) -> list[WorkerRecord]:
        """Return the lost workers that had a variant at this registry version, ordered by id."""
        return [
            record
            for _, record in sorted(self.lost.items())
            if record.subscription.has(served) and record.subscription.acked_version >= version
        ]

    def _mark_changed(self, worker_id: str) -> None:
        self.changed_workers[worker_id] = None
        self.unobserved[worker_id] = None
        self.revision += 1

    def _count_scope(self, scope: WorkerScope, step: int) -> None:
        count = self._scope_counts.get(scope, 0) + step
        if count:
            self._scope_counts[scope] = count
        else:
            del self._scope_counts[scope]
        if self._scope_counts.keys() != self.scopes:
            self.scopes = frozenset(self._scope_counts)

    def _drain(self, record: WorkerRecord) -> None:
        record.draining = True
        self._mark_changed(record.id)
        self.standing = object()
        self.queue_action(record.id, DrainWorker("An operator asked for it."))

    def _refuse_second_run(self, known: WorkerRecord, now: Moment) -> None:
        first = known.hello.address.address
        message = f"A second worker uses the id '{known.id}' while the first, at {first}, " + (
            "is connected. Give each worker its own --id."
            if known.connected
            else f"may still run: its stream ended less than {bounds.WORKER_LOST_AFTER:.0f} s ago,"
            " and its address does not refuse connections. Give each worker its own --id, or wait."
        )
        problem = Problem("worker", "WORKER_TWIN", message, worker_id=known.id)
        self.problems.report(problem, now.unix)
        raise WorkerRefused(message)

    def _schedule_revocation(self, duplicates: tuple[HeldLease, ...], now: Moment) -> None:
        """Schedule the check for duplicates after a grace period.

        The older lease may have ended already, unreported: if its worker could not start the
        server, the caller knows first, and another worker grants the younger lease.
        """
        if duplicates:
            self._duplicates.setdefault(duplicates[0].key, now.mono + _DUPLICATE_GRACE)

    def _is_valid(self, lease: HeldLease) -> bool:
        record = self.workers[lease.worker_id]
        return record.accepts_work and lease.id not in record.revoked_duplicates

    def _show_refusals(self, record: WorkerRecord, now: Moment) -> None:
        """Report each variant that a worker refuses as a problem."""
        refused = [refusal for refusal, _ in record.subscription.refused.values()]
        if refused != record.refusals_shown:
            record.refusals_shown = refused
            problems = [_refusal_problem(record.id, refusal) for refusal in refused]
            self.problems.replace(f"refused:{record.id}", problems, now.unix)

    def _clear_reported(self, record: WorkerRecord, problem: Problem) -> None:
        self.problems.clear(
            scope=problem.scope,
            server_id=problem.server_id,
            tenant=problem.tenant,
            worker_id=record.id,
            reason=problem.reason,
            subject=problem.subject,
        )

    def _remove(self, worker_id: str) -> None:
        record = self.workers.pop(worker_id)
        self._serving.update_launches(worker_id, record.instances.launches, NO_LAUNCHES)
        self._count_scope(record.hello.scope, -1)
        self._disconnected.pop(worker_id, None)
        self._unacked.pop(worker_id, None)
        self._mark_changed(worker_id)
        self.standing = object()
        self.generation += 1
        # A worker that drains has reported all leases before it says so, and grants no more.
        run = "" if record.draining else record.hello.address.incarnation
        self.placements.remove_worker(worker_id, run)
        self._clear_lost(worker_id)

    def _clear_lost(self, worker_id: str) -> None:
        self.lost.pop(worker_id, None)
        self.problems.clear(worker_id=worker_id)


def _forgotten_at(record: WorkerRecord) -> float:
    assert record.lost_at is not None
    return record.lost_at + _LOST_RETENTION


def _lost_problem(record: WorkerRecord, leases: int) -> Problem:
    message = (
        f"Worker '{record.id}' at {record.hello.address.address} is lost: its stream ended more"
        f" than {bounds.WORKER_LOST_AFTER:.0f} s ago without a drain, and it has not reconnected."
        f" Its {leases} leases may be placed on other workers. Check whether its process runs and"
        " can reach the control plane, or start it again."
    )
    return Problem("worker", Reason.WORKER_LOST, message, worker_id=record.id)


def _refusal_problem(worker_id: str, refusal: VariantRefusal) -> Problem:
    key = refusal.key
    message = f"Worker '{worker_id}' refused server '{key}': {refusal.message}"
    return Problem(
        scope="worker",
        reason=refusal.reason,
        message=message,
        server_id=key.server_id,
        tenant=key.tenant,
        worker_id=worker_id,
    )
