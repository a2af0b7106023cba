"""The workers that have joined, the leases on them, and what they are to be told of both.

One half of the control plane's state; the other half, the servers, is in `servers`. All of it
comes from the workers and is gone when they are (DESIGN §5, §8).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace

from leaseway.control_plane.core.catalog.snapshot import Snapshot
from leaseway.control_plane.core.catalog.variants import Served
from leaseway.control_plane.core.moment import Moment
from leaseway.control_plane.core.placement.table import HeldLease, PlacementKey, PlacementTable
from leaseway.control_plane.core.problems import Problem, ProblemTable
from leaseway.control_plane.core.workers.actions import Action, DrainWorker, RevokeLease
from leaseway.control_plane.core.workers.records import (
    Launched,
    WorkerHello,
    WorkerRecord,
    WorkerRefused,
    WorkerReport,
)
from leaseway.control_plane.core.workers.subscription import Push, Subscription, VariantRefusal
from leaseway.spec.model import VariantKey
from leaseway.wire import bounds
from leaseway.wire.errors import Reason

_TWINS_FOR = 2.0
"""Seconds for which two leases may have one key: workers report 0.1 s late, and more under load."""

_LOST_SHOWN = 600.0
"""Seconds for which a lost worker is remembered, as an open problem too."""

_MOST_LEFT = 10_000
"""Runs of workers of which is known when they left."""


@dataclass
class Roster:
    """What is known of each worker. Its owner is the coordinator.

    Attributes:
        workers: By id; one whose stream has ended stays for 10 s.
        lost: Workers that were lost, by id, until they are back, or for 10 minutes: nobody knows
            here whether they run, and callers may reach them.
        placements: The leases that they reported, and the room reserved for others.
        moved: Those who joined, went, drained or acknowledged, for the owner to take.
        generation: How often streams have resume and workers were forgotten.
    """

    problems: ProblemTable
    workers: dict[str, WorkerRecord] = field(default_factory=dict)
    placements: PlacementTable = field(default_factory=PlacementTable)
    lost: dict[str, WorkerRecord] = field(default_factory=dict)
    changed_workers: dict[str, None] = field(default_factory=dict)  # in that order
    generation: int = 0
    _ordered: tuple[int, list[WorkerRecord]] = field(default_factory=lambda: (0, []))
    _away: dict[str, WorkerRecord] = field(default_factory=dict)  # those whose stream has ended
    _unsent: list[tuple[str, Action]] = field(default_factory=list)
    _drained: dict[tuple[str, str], float] = field(default_factory=dict)
    _left_at: dict[tuple[str, str], float] = field(default_factory=dict)  # by run
    _spares: dict[Launched, set[str]] = field(default_factory=dict)  # the workers that have some
    _twins: dict[PlacementKey, float] = field(default_factory=dict)  # when one of them is to end

    def queue_action(self, worker_id: str, action: Action) -> None:
        self._unsent.append((worker_id, action))

    def workers_with_spare(self, launched: Launched) -> Collection[str]:
        """Return the workers that said last that a spare of a launch is up on them."""
        return self._spares.get(launched, ())

    def pop_actions(self) -> list[tuple[str, Action]]:
        """Return the actions queued since the last call, each with its worker's id."""
        unsent, self._unsent = self._unsent, []
        return unsent

    # What workers say.

    def add_worker(self, hello: WorkerHello, now: Moment) -> WorkerRecord:
        """Register a worker, with its word on all the leases that it holds.

        Raises:
            WorkerRefused: Another run of the same id may still be alive.
        """
        self.forget_lost_workers(now)
        address = hello.address
        known = self.workers.get(address.id)
        if known is not None and known.hello.address.incarnation != address.incarnation:
            self._refuse_twin(known, now)
        self._mend(address.id)  # it says anew what is wrong
        before = known.subscription if known is not None else None
        record = WorkerRecord(hello, Subscription.resume(hello.held, before))
        record.set_instances(hello.instances)
        self._note_spares(record.id, known.spares if known is not None else (), record.spares)
        self.workers[address.id] = record
        self._away.pop(address.id, None)
        self._mark_changed(address.id)
        self.generation += 1
        was_draining = known is not None and known.draining
        if was_draining or (address.id, address.incarnation) in self._drained:
            self._drain(record)  # what it was told may have gone down with its stream
        self._show_refusals(record, now)
        self.placements.add_worker(address.id, hello.capacity)
        all_twins = self.placements.replace_leases(address.id, hello.leases)
        left_at = self._left_at.pop((address.id, address.incarnation), None)
        for lease in hello.leases:
            superseded = left_at is not None and self.placements.is_superseded(lease, left_at)
            if superseded or self.placements.is_fenced(lease):
                self.fence(lease.id, lease.key)
        for twins in all_twins:
            self._note_twins(twins, now)
        return record

    def mark_disconnected(self, record: WorkerRecord, now: Moment) -> None:
        """Note that a worker's stream has ended; one that was to end is not waited for."""
        record.disconnected_at = now.mono
        self._left_at[record.id, record.hello.address.incarnation] = now.mono
        if len(self._left_at) > _MOST_LEFT:
            del self._left_at[next(iter(self._left_at))]
        self._away[record.id] = record
        self._mark_changed(record.id)
        if record.draining and not self.placements.held_count(record.id):
            # Its stream may just have broken: the same run must not come back as a healthy one.
            run = (record.id, record.hello.address.incarnation)
            self._drained[run] = now.mono + bounds.WORKER_LOST_AFTER
            self._forget(record.id)

    def apply_report(self, record: WorkerRecord, report: WorkerReport, now: Moment) -> None:
        """Record what a worker says has changed."""
        record.calls_in_flight = report.calls_in_flight
        if report.draining and not record.draining:
            record.draining = True
            self._mark_changed(record.id)
        if report.instances is not None:
            spares, shares = record.spares, record.shares
            record.set_instances(report.instances)
            self._note_spares(record.id, spares, record.spares)
            if shares != record.shares:
                self._mark_changed(
                    record.id
                )  # callers of a stateless server may go there, or no more
        self._take_leases(record, report, now)
        for problem in report.cleared:
            self._clear_reported(record, problem)
        for problem in report.problems:
            self.problems.report(replace(problem, worker_id=record.id), now.unix)

    def _take_leases(self, record: WorkerRecord, report: WorkerReport, now: Moment) -> None:
        ended = set(report.lost)
        for lease in report.gained:
            if lease.id in ended:  # it came and went: what was reserved for it is free
                self.placements.add_lease(lease)
        for lease_id in report.lost:
            self.placements.remove_lease(lease_id, record.id)
            record.revoked_duplicates.discard(lease_id)
        for lease in report.gained:
            if lease.id not in ended:
                self._note_twins(self.placements.add_lease(lease), now)
                if self.placements.is_fenced(lease):
                    self.fence(lease.id, lease.key)

    def push(
        self, record: WorkerRecord, snapshot: Snapshot, now: Moment, *, removals: bool
    ) -> Push | None:
        part = snapshot.within(record.hello.scope)
        push = record.subscription.push(part, removals=removals)
        if push is not None:
            record.pushed_at = now.mono
        self._show_refusals(record, now)
        return push

    def ack(self, record: WorkerRecord, nonce: int, now: Moment) -> bool:
        """Record an acknowledgement; False where it is stale."""
        known = record.subscription.ack(nonce)
        self._mark_changed(record.id)
        self._show_refusals(record, now)
        return known

    def nack(
        self, record: WorkerRecord, nonce: int, refusals: Iterable[VariantRefusal], now: Moment
    ) -> None:
        """Record refusals of what was sent; the acknowledgement of the rest follows."""
        record.subscription.nack(nonce, refusals)
        self._show_refusals(record, now)

    # What operators ask for.

    def drain(self, worker_id: str) -> bool:
        """Drain a worker: it takes no more work and ends; False where there is none of that id."""
        record = self.workers.get(worker_id)
        if record is None or not record.connected:
            return False
        self._drain(record)
        return True

    def revoke(self, lease_id: str, reason: str) -> bool:
        """End a lease; False where no worker has reported it."""
        lease = self.placements.leases.get(lease_id)
        if lease is None:
            return False
        self.queue_action(lease.worker_id, RevokeLease(lease_id, reason))
        return True

    def fence(self, lease_id: str, key: PlacementKey) -> None:
        """End a lease that its holder was told is lost, now or when its worker is back."""
        self.placements.fence(lease_id, key)
        lease = self.placements.leases.get(lease_id)
        if lease is None or lease.key != key:
            return
        record = self.workers[lease.worker_id]
        if record.connected and lease_id not in record.revoked_duplicates:
            record.revoked_duplicates.add(lease_id)
            reason = (
                "Its session was told that it was lost while this worker was out of touch, and may"
                " have another one."
            )
            self.queue_action(record.id, RevokeLease(lease_id, reason))

    # Time.

    def forget_lost_workers(self, now: Moment) -> None:
        """Forget workers whose stream ended 10 s ago, and their leases.

        One that did not say that it goes is a problem until it is back, or until nobody expects
        it any more: its successor may have another id.
        """
        for record in [each for each in self.lost.values() if now.mono >= _forgotten_at(each)]:
            self._mend(record.id)
        for record in list(self._away.values()):
            if record.lost_at is not None and now.mono >= record.lost_at:
                leases = self.placements.held_count(record.id)
                self._forget(record.id)
                if not record.draining:
                    self.lost[record.id] = record
                    self.problems.report(_lost_problem(record, leases), now.unix)
        for run in [run for run, until in self._drained.items() if until <= now.mono]:
            del self._drained[run]

    def revoke_duplicates(self, now: Moment) -> None:
        """Revoke the younger of two leases that have had one key for a while (DESIGN §5).

        The lease of a worker that is gone or drains is no twin: its successor took its place. If
        that worker comes back with it, the older one stands again. Nor is one that its worker was
        told to end: ages are only as good as the delay of the report that they came with, and
        where a later report has them the other way round, both would go.
        """
        for key in [key for key, at in self._twins.items() if at <= now.mono]:
            del self._twins[key]
            for lease in [one for one in self.placements.leases_of(key) if self._stands(one)][1:]:
                reason = "Another worker holds an older lease of the same session and server."
                self.workers[lease.worker_id].revoked_duplicates.add(lease.id)
                self.queue_action(lease.worker_id, RevokeLease(lease.id, reason))

    def deadlines(self) -> Iterator[float]:
        """Yield when workers will count as lost, when that is forgotten, and when twins end."""
        yield from self._twins.values()
        yield from map(_forgotten_at, self.lost.values())
        for record in self._away.values():
            if record.lost_at is not None:
                yield record.lost_at

    # What others read.

    @property
    def connected(self) -> list[WorkerRecord]:
        """The workers whose stream is open."""
        return [record for record in self.workers.values() if record.connected]

    @property
    def all_workers(self) -> list[WorkerRecord]:
        """All workers and those that were lost, ordered by id."""
        return [record for _, record in sorted({**self.lost, **self.workers}.items())]

    @property
    def requested_content(self) -> set[VariantKey]:
        """The variants whose content some worker was asked for and has not sent yet."""
        return {key for record in self.workers.values() for key in record.requested_content}

    @property
    def sorted_workers(self) -> list[WorkerRecord]:
        """All workers, ordered by id; not to be changed."""
        generation, records = self._ordered
        if generation != self.generation:
            records = [record for _, record in sorted(self.workers.items())]
            self._ordered = (self.generation, records)
        return records

    def workers_serving(self, served: Served) -> list[WorkerRecord]:
        """Return the workers that callers of a variant may go to, ordered by id.

        One whose stream has ended may serve on, but only where there is no other is it named. So
        is one that cannot start the server, and, of a server that is to be up before it is called,
        one where it is not up yet.
        """
        records = [
            record
            for record in self.sorted_workers
            if not record.draining and record.subscription.has(served)
        ]
        records = [record for record in records if record.connected] or records
        launched = served.key, served.hashes.launch
        able = [record for record in records if not record.is_failing(*launched)] or records
        if not (served.spec.truely_stateless and served.spec.starts_eagerly):
            return able
        return [record for record in able if record.is_up(*launched)] or able

    def lost_workers_with(self, served: Served, version: int) -> list[WorkerRecord]:
        """Return the lost workers that had a variant, and this registry version, ordered by id."""
        return [
            record
            for _, record in sorted(self.lost.items())
            if record.subscription.has(served) and record.subscription.acked_version >= version
        ]

    # Inside.

    def _mark_changed(self, worker_id: str) -> None:
        self.changed_workers[worker_id] = None

    def _drain(self, record: WorkerRecord) -> None:
        record.draining = True
        self._mark_changed(record.id)
        self.queue_action(record.id, DrainWorker("An operator asked for it."))

    def _refuse_twin(self, known: WorkerRecord, now: Moment) -> None:
        message = (
            f"A second worker calls itself '{known.id}' while the first, at"
            f" {known.hello.address.address}, is connected or left less than"
            f" {bounds.WORKER_LOST_AFTER:.0f} s ago. Give each worker an --id of its own, or wait."
        )
        problem = Problem("worker", "WORKER_TWIN", message, worker_id=known.id)
        self.problems.report(problem, now.unix)
        raise WorkerRefused(message)

    def _note_twins(self, twins: tuple[HeldLease, ...], now: Moment) -> None:
        """Give the older of two leases with one key the time to be reported as ended.

        Its worker may have told the caller already that it could not start the server, whereupon
        another worker granted the younger one.
        """
        if twins:
            self._twins.setdefault(twins[0].key, now.mono + _TWINS_FOR)

    def _stands(self, lease: HeldLease) -> bool:
        record = self.workers[lease.worker_id]
        return record.accepts_work and lease.id not in record.revoked_duplicates

    def _show_refusals(self, record: WorkerRecord, now: Moment) -> None:
        """Make what a worker refuses problems, each of which names worker and server."""
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
        )

    def _note_spares(
        self, worker_id: str, before: Collection[Launched], now: Collection[Launched]
    ) -> None:
        for launched in before:
            if launched not in now:
                self._spares[launched].discard(worker_id)
                if not self._spares[launched]:
                    del self._spares[launched]
        for launched in now:
            self._spares.setdefault(launched, set()).add(worker_id)

    def _forget(self, worker_id: str) -> None:
        self._note_spares(worker_id, self.workers.pop(worker_id).spares, ())
        self._away.pop(worker_id, None)
        self._mark_changed(worker_id)
        self.generation += 1
        self.placements.remove_worker(worker_id)
        self._mend(worker_id)

    def _mend(self, worker_id: str) -> None:
        self.lost.pop(worker_id, None)
        self.problems.clear(worker_id=worker_id)


def _forgotten_at(record: WorkerRecord) -> float:
    assert record.lost_at is not None
    return record.lost_at + _LOST_SHOWN


def _lost_problem(record: WorkerRecord, leases: int) -> Problem:
    message = (
        f"Worker '{record.id}' at {record.hello.address.address} is lost: its stream ended more"
        f" than {bounds.WORKER_LOST_AFTER:.0f} s ago without a word, and it has not come back."
        f" What it held ({leases} leases) may be placed anew. See whether its process runs and"
        " can reach the control plane, or start it again."
    )
    return Problem("worker", Reason.WORKER_LOST, message, worker_id=record.id)


def _refusal_problem(worker_id: str, refusal: VariantRefusal) -> Problem:
    key = refusal.key
    message = f"Worker '{worker_id}' refused server '{key}': {refusal.message}"
    return Problem("worker", refusal.reason, message, key.server_id, key.tenant, worker_id)
