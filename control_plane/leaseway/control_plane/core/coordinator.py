"""The control plane's one writer: events in, actions out, no I/O and no clock.

What is desired comes from configuration, what is actual from workers (DESIGN, rule 2). Each
method takes one event, brings the two closer, and leaves actions for the Sync edge to carry
out. Nothing here waits: an owner calls `tick` when `next_deadline` has passed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from leaseway.control_plane.core.actions import (
    Action,
    CancelProbe,
    DrainWorker,
    PushDelta,
    RevokeLease,
    StartProbe,
    WantContent,
)
from leaseway.control_plane.core.fleet import (
    WorkerHello,
    WorkerRecord,
    WorkerRefused,
    WorkerReport,
)
from leaseway.control_plane.core.placement import HeldLease, PlacementTable
from leaseway.control_plane.core.problems import Problem, ProblemTable
from leaseway.control_plane.core.servers import Moment, Servers
from leaseway.control_plane.core.snapshot import (
    Snapshot,
    acknowledged,
    build_snapshot,
    owner_changes,
)
from leaseway.control_plane.core.subscription import Refusal, Subscription
from leaseway.control_plane.core.variants import Listing, Served
from leaseway.wire import bounds
from leaseway.wire.spec import ServerSpec, VariantKey

__all__ = ["Coordinator"]


class Coordinator:
    """All state of a control plane.

    Args:
        now: When it started.
        epoch: Fences control planes of the past.
        expected_workers: How many workers will join. When all have said what they hold,
            nothing more is waited for; 0 means unknown.
    """

    def __init__(self, now: Moment, *, epoch: int, expected_workers: int = 0) -> None:
        self.epoch = epoch
        self.problems = ProblemTable()
        self.placements = PlacementTable()
        self.servers = Servers(self.problems)
        self.workers: dict[str, WorkerRecord] = {}
        self.config_known = False
        self.config_loaded_at: float | None = None
        self.committed = Snapshot(0)
        self.visible = Snapshot(0)
        self.settled = False
        self._expected_workers = expected_workers
        self._settled_at = now.mono + bounds.SETTLING
        self._version = int(now.unix * 1e6)
        self._commit_at: float | None = None
        self._trace = ""
        self._replan = False
        self._actions: list[tuple[str, Action]] = []

    # Configuration.

    def config_loaded(
        self,
        servers: Mapping[VariantKey, ServerSpec],
        rejected: frozenset[str],
        problems: Iterable[Problem],
        now: Moment,
        trace: str = "",
        *,
        refused: frozenset[VariantKey] = frozenset(),
    ) -> None:
        """Take a configuration that parsed; what is rejected or refused keeps what it last had."""
        self.servers.configure(servers, rejected, refused)
        self.config_loaded_at = now.unix
        self._trace = trace
        self._replan = True
        self._config_seen(problems, now)

    def config_failed(self, problems: Iterable[Problem], now: Moment) -> None:
        """Take word that the configuration cannot be used: nothing changes (DESIGN §3.2)."""
        self._config_seen(problems, now)

    def _config_seen(self, problems: Iterable[Problem], now: Moment) -> None:
        self.config_known = True
        self.problems.replace("config", problems, now.unix)
        self._commit_soon(now)
        self.tick(now)

    # Workers.

    def worker_joined(self, hello: WorkerHello, now: Moment) -> None:
        """Take a worker in.

        Raises:
            WorkerRefused: Another run of the same id may still be alive.
        """
        self._forget_lost_workers(now)
        address = hello.address
        known = self.workers.get(address.id)
        if known is not None and known.hello.address.incarnation != address.incarnation:
            self._refuse_twin(known, now)
        self.problems.clear(worker_id=address.id)  # it says anew what is wrong
        self._version = max(self._version, hello.highest_version + 1)
        if not self.settled:  # starting up: nothing can have been fenced by this one yet
            self.epoch = max(self.epoch, hello.highest_epoch)
        record = WorkerRecord(hello, Subscription(acked=dict(hello.held)))
        record.instances = hello.instances
        record.draining = known is not None and known.draining
        self.workers[address.id] = record
        self.servers.probes.worker_gone(address.id)  # they ended with its older stream
        for twins in self.placements.replace_worker(address.id, hello.leases):
            self._revoke_twin(twins)
        self._ask_for_content(record)
        self._replan = True
        if hello.highest_version >= self.committed.version:
            self._commit_at = now.mono
        self.tick(now)

    def worker_left(self, worker_id: str, now: Moment) -> None:
        """Take word that a worker's stream has ended."""
        record = self.workers.get(worker_id)
        if record is None:
            return
        record.gone_at = now.mono
        self.servers.probes.worker_gone(worker_id)
        self._owes_nothing(record, now)
        if record.draining and not self.placements.held_by(worker_id):
            self._forget_worker(worker_id)
        self.tick(now)

    def content_received(self, worker_id: str, variants: Iterable[Served], now: Moment) -> None:
        """Take all the content behind hashes that a worker was asked for."""
        record = self.workers.get(worker_id)
        if record is None:
            return
        for served in variants:
            self.servers.adopt(served)
        self._owes_nothing(record, now)
        self.tick(now)

    def acked(self, worker_id: str, nonce: int, now: Moment) -> None:
        """Take a worker's acknowledgement."""
        record = self.workers.get(worker_id)
        if record is None:
            return
        refused = set(record.subscription.refused)
        if record.subscription.ack(nonce):
            for key in refused.difference(record.subscription.refused):
                self.problems.clear(worker_id=worker_id, server_id=key.server_id, tenant=key.tenant)
            self._reveal()
            self.tick(now)

    def nacked(self, worker_id: str, nonce: int, refusals: Iterable[Refusal], now: Moment) -> None:
        """Take a worker's refusals; each is a problem that names worker and server."""
        record = self.workers.get(worker_id)
        refusals = tuple(refusals)
        if record is None or not record.subscription.nack(nonce, refusals):
            return
        for refusal in refusals:
            key = refusal.key
            message = f"Worker '{worker_id}' refused server '{key}': {refusal.message}"
            reason = refusal.reason or "REFUSED"
            problem = Problem("worker", reason, message, key.server_id, key.tenant, worker_id)
            self.problems.report(problem, now.unix)

    def reported(self, worker_id: str, report: WorkerReport, now: Moment) -> None:
        """Take what a worker says has changed."""
        record = self.workers.get(worker_id)
        if record is None:
            return
        record.calls_in_flight = report.calls_in_flight
        record.draining = record.draining or report.draining
        if report.instances is not None:
            record.instances = report.instances
        for lease_id in report.lost:
            self.placements.lost(lease_id)
        for lease in report.gained:
            self._revoke_twin(self.placements.gained(lease))
        for problem in report.cleared:
            self._clear_reported(record, problem)
        for problem in report.problems:
            self.problems.report(replace(problem, worker_id=worker_id), now.unix)
        self.tick(now)

    def probe_ended(self, probe_id: int, outcome: Listing | Problem, now: Moment) -> None:
        """Take the end of a probe."""
        self.servers.probe_ended(probe_id, outcome, now)
        self.tick(now)

    def relisted(
        self, key: VariantKey, launch_hash: str, outcome: Listing | Problem, now: Moment
    ) -> None:
        """Take a new listing of a live shared instance."""
        self.servers.relisted(key, launch_hash, outcome, now)
        self.tick(now)

    # Operators.

    def drain_worker(self, worker_id: str, now: Moment) -> bool:
        """Have a worker take no more work and end; False where there is none of that id."""
        record = self.workers.get(worker_id)
        if record is None or not record.connected:
            return False
        record.draining = True
        self._actions.append((worker_id, DrainWorker("An operator asked for it.")))
        self.tick(now)
        return True

    def revoke_lease(self, lease_id: str, reason: str) -> bool:
        """Have a lease ended; False where no worker has reported it."""
        lease = self.placements.leases.get(lease_id)
        if lease is None:
            return False
        self._actions.append((lease.worker_id, RevokeLease(lease_id, reason)))
        return True

    # Time.

    def tick(self, now: Moment) -> None:
        """Do what is due."""
        self._forget_lost_workers(now)
        self._settle(now)
        self.servers.give_up_overdue(now)
        if self._replan:
            self._replan = False
            owed = {key for record in self.workers.values() for key in record.owed}
            self.servers.plan(owed, self._trace, now)
        self._steer_probes(now)
        if self.servers.changed:
            self.servers.changed = False
            self._commit_soon(now)
        if self._commit_at is not None and (
            self._commit_at <= now.mono or not self.servers.probes.busy
        ):
            self._commit(now)
        self._push()

    def next_deadline(self, now: Moment) -> float | None:
        """Return when `tick` is next due on the monotonic clock; None: not before an event."""
        times = [self._commit_at, self.servers.probes.next_deadline(now.mono)]
        times += [
            record.gone_at + bounds.WORKER_LOST_AFTER
            for record in self.workers.values()
            if record.gone_at is not None
        ]
        if not self.settled:
            times.append(self._settled_at)
        return min((time for time in times if time is not None), default=None)

    def take_actions(self) -> list[tuple[str, Action]]:
        """Return the actions since the last call, each with its worker's id."""
        actions, self._actions = self._actions, []
        return actions

    # What others read.

    @property
    def waiting(self) -> set[VariantKey]:
        """The variants that have no first result yet."""
        waiting = self.servers.without_result()
        if self._commit_at is not None or not self.established:  # listed, but not served yet
            waiting |= {key for key in self.servers.goods if key not in self.visible.served}
        return waiting

    @property
    def pending(self) -> list[str]:
        """Ids of servers that have no first result yet, for some tenant or for all, ordered."""
        return sorted({key.server_id for key in self.waiting})

    @property
    def established(self) -> bool:
        """Whether some worker serves the registry as it was last committed."""
        return self.visible.version > 0 and self.visible.version == self.committed.version

    @property
    def ready(self) -> bool:
        """Whether every first probe has ended and its result is served."""
        connected = sum(record.connected for record in self.workers.values())
        enough = connected >= max(1, self._expected_workers)
        return self.config_known and enough and self.established and not self.pending

    def settling_left(self, now: Moment) -> float:
        """Return for how many seconds more workers are waited for."""
        return 0.0 if self.settled else max(0.0, self._settled_at - now.mono)

    def serving(self, served: Served) -> list[WorkerRecord]:
        """Return the workers that callers of a variant may go to, ordered by id.

        One whose stream has ended may serve on, but only where there is no other is it named.
        """
        records = [
            record
            for _, record in sorted(self.workers.items())
            if not record.draining and record.subscription.has(served)
        ]
        return [record for record in records if record.connected] or records

    # Inside.

    def _refuse_twin(self, known: WorkerRecord, now: Moment) -> None:
        message = (
            f"A second worker calls itself '{known.id}' while the first, at"
            f" {known.hello.address.address}, is connected or left less than"
            f" {bounds.WORKER_LOST_AFTER:.0f} s ago. Give each worker an --id of its own, or wait."
        )
        problem = Problem("worker", "WORKER_TWIN", message, worker_id=known.id)
        self.problems.report(problem, now.unix)
        raise WorkerRefused(message)

    def _revoke_twin(self, twins: tuple[HeldLease, ...]) -> None:
        """Have the younger of two leases with one key revoked (DESIGN §5).

        The lease of a worker that is gone or drains is no twin: its successor took its place. If
        that worker comes back with it, the older one stands again.
        """
        standing = [lease for lease in twins if self.workers[lease.worker_id].takes_work]
        for lease in standing[1:]:
            reason = "Another worker holds an older lease of the same session and server."
            self._actions.append((lease.worker_id, RevokeLease(lease.id, reason)))

    def _ask_for_content(self, record: WorkerRecord) -> None:
        known = self.committed.hashes
        goods = self.servers.goods
        wanted = {
            key
            for key, hashes in record.hello.held.items()
            if known.get(key) != hashes
            and (key not in goods or goods[key].launch_hash != hashes.launch)
        }
        record.owed = wanted
        if wanted:
            self._actions.append((record.id, WantContent(tuple(sorted(wanted)))))

    def _owes_nothing(self, record: WorkerRecord, now: Moment) -> None:
        record.owed = set()
        self._replan = True
        self._commit_at = now.mono  # at once: what is pushed next must know what it holds

    def _clear_reported(self, record: WorkerRecord, problem: Problem) -> None:
        self.problems.clear(
            scope=problem.scope,
            server_id=problem.server_id,
            tenant=problem.tenant,
            worker_id=record.id,
            reason=problem.reason,
        )
        if record.subscription.heal(VariantKey(problem.server_id, problem.tenant)):
            self._reveal()

    def _forget_lost_workers(self, now: Moment) -> None:
        for record in list(self.workers.values()):
            if record.gone_at is not None and (
                now.mono >= record.gone_at + bounds.WORKER_LOST_AFTER
            ):
                self._forget_worker(record.id)

    def _forget_worker(self, worker_id: str) -> None:
        del self.workers[worker_id]
        self.placements.worker_gone(worker_id)
        self.problems.clear(worker_id=worker_id)

    def _settle(self, now: Moment) -> None:
        if self.settled:
            return
        joined = [record for record in self.workers.values() if record.connected]
        all_here = 0 < self._expected_workers <= len(joined) and not any(r.owed for r in joined)
        if all_here or now.mono >= self._settled_at:
            self.settled = True
            for record in joined:
                self._owes_nothing(record, now)

    def _steer_probes(self, now: Moment) -> None:
        for probe in self.servers.withdrawn:
            self._actions.append((probe.worker_id, CancelProbe(probe.id)))
        self.servers.withdrawn = []
        able = [record.id for record in self.workers.values() if record.takes_work]
        for job, probe in self.servers.probes.start(able, now.mono):
            self._actions.append((probe.worker_id, StartProbe(probe.id, job.spec, job.trace)))

    def _commit_soon(self, now: Moment) -> None:
        """Have a commit happen: with the results of the next 50 ms, or when no more can come."""
        due = now.mono + bounds.COMMIT_WINDOW
        self._commit_at = due if self._commit_at is None else min(self._commit_at, due)

    def _commit(self, now: Moment) -> None:
        self._commit_at = None
        if not self.config_known or any(record.owed for record in self.workers.values()):
            return  # what is not known yet must not look as if it were gone
        version = max(self._version, self.committed.version + 1)
        snapshot, problems = build_snapshot(version, self.servers.goods)
        self.problems.replace("clashes", problems, now.unix)
        seen = max((r.hello.highest_version for r in self.workers.values()), default=0)
        if seen < self.committed.version and snapshot.hashes == self.committed.hashes:
            return
        for problem in owner_changes(self.committed, snapshot):
            self.problems.report(problem, now.unix)
        self._version = version
        self.committed = snapshot

    def _push(self) -> None:
        if self.committed.version == 0:
            return
        for record in self.workers.values():
            if not record.connected or record.owed:
                continue
            push = record.subscription.push(self.committed, removals=self.settled)
            if push is not None:
                self._actions.append((record.id, PushDelta(push, self._trace)))

    def _reveal(self) -> None:
        """List what some worker has acknowledged of the newest commit (DESIGN §3.5)."""
        records = list(self.workers.values())
        if not any(r.subscription.acked_version == self.committed.version for r in records):
            return
        self.visible = acknowledged(
            self.committed,
            self.visible,
            lambda served: any(record.subscription.has(served) for record in records),
        )
