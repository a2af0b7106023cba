"""The schedule of probes: which servers to probe, on which worker, and when (design.md#reload.4).

Each new launch hash is probed by one worker. A failed probe is retried with backoff and full
jitter, on another worker if possible; a probe of an outdated spec is cancelled.

A changed listing from a worker that did not probe the server is a claim: another worker is asked,
and its listing counts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from leaseway.control_plane.core.catalog.listing import ServerListing
from leaseway.control_plane.core.catalog.worker_scope import WorkerScope
from leaseway.control_plane.core.servers.probe_workers import (
    Labels,
    Patterns,
    ProbeWorkers,
    accepts_id,
    required_labels,
)
from leaseway.control_plane.core.servers.timers import Timers
from leaseway.spec.model import ServerSpec, VariantKey
from leaseway.wire import bounds
from leaseway.wire.timing.backoff import RETRY

_CLAIM_INTERVAL = 10.0
"""Minimum seconds between two verifications of claims about one server."""
_Queue = tuple[bool, Labels, frozenset[Patterns]]
_ANSWER_GRACE = 30.0
"""Seconds beyond the startup timeout that a worker may take to answer a probe that has begun.

Its first starts also import what they need, for many seconds on a busy machine, and a failed one
answers once its process has ended.
"""
_LONGEST_WAIT = 600.0
"""Seconds that a probe may wait for its turn on a worker that reports when it has begun."""
_UNREPORTED_WAIT = bounds.MAX_PROBES * bounds.START_PLACE / bounds.STARTS_PER_CORE
"""The same on an older worker: its other probes may come first, on one processor."""


@dataclass(frozen=True)
class StartedProbe:
    """A probe that was sent to a worker."""

    id: int
    worker_id: str
    sent_at: float
    relist: bool = False  # lists a live instance instead of starting one


@dataclass(frozen=True)
class Claim:
    """A server's new listing, according to a worker that did not probe it."""

    worker_id: str
    listing: ServerListing


@dataclass(frozen=True)
class RetryOutlook:
    """How often a variant has failed to start, and when it is probed again.

    Attributes:
        failures: Consecutive failures, at least 1.
        wait: Seconds until the next probe, 0 if it waits for a worker, None if it is running.
    """

    failures: int
    wait: float | None


@dataclass
class ProbeJob:
    """A variant to probe until it lists or its spec changes.

    Attributes:
        claim: The claim to verify, or None for a first probe.
        later: A claim that arrived while the probe was running.
        is_awaited: Whether somebody waits for its result; then it comes before others.
        accepting: The patterns of workers that accept the server, while the job is due.
        needs_start: Whether to verify the claim with a new instance, as none could be listed.
    """

    spec: ServerSpec
    trace: str
    attempt: int = 0
    not_before: float = 0.0
    running: StartedProbe | None = None
    last_worker: str = ""
    claim: Claim | None = None
    later: Claim | None = None
    needs_start: bool = False
    is_awaited: bool = False
    accepting: frozenset[Patterns] = frozenset()

    @property
    def queue(self) -> _Queue:
        """The due jobs that the same workers can run, and that come as early."""
        return not self.is_awaited, required_labels(self.spec), self.accepting


@dataclass
class ProbeSchedule:
    """All probe jobs; owned by the coordinator.

    A job runs, is due (it waits for a worker) or is set back (it waits for a time). An event costs
    the jobs that it concerns, as there may be thousands of them and of workers.
    """

    delay: Callable[[int], float] = RETRY.delay
    jobs: dict[VariantKey, ProbeJob] = field(default_factory=dict)
    _workers: ProbeWorkers = field(default_factory=ProbeWorkers)
    _running: dict[int, ProbeJob] = field(default_factory=dict)  # by id of the probe
    _deadlines: Timers[int] = field(default_factory=Timers)  # of these
    _due: dict[_Queue, dict[VariantKey, ProbeJob]] = field(default_factory=dict)
    _set_back: Timers[VariantKey] = field(default_factory=Timers)
    _next_id: int = 1
    _claimed: dict[VariantKey, float] = field(default_factory=dict)  # last verification times

    # Workers.

    def set_worker(self, worker_id: str, scope: WorkerScope, *, silent: bool) -> None:
        """Record a worker that may probe; see `ProbeWorkers.set`."""
        if self._workers.set(worker_id, scope, silent=silent):
            for job in [job for jobs in self._due.values() for job in jobs.values()]:
                if accepts_id(scope.servers, job.spec.key.server_id):
                    self._leave_queue(job)
                    self._add_due(job)

    def remove_worker(self, worker_id: str) -> None:
        """Start no more probes on a worker."""
        self._workers.remove(worker_id)

    def handle_worker_disconnected(self, worker_id: str) -> None:
        """Retry the probes of a disconnected worker at once, elsewhere."""
        for probe_id in self._workers.probes(worker_id):
            self._wait(self._end(probe_id))

    # Jobs.

    def add(self, spec: ServerSpec, trace: str) -> StartedProbe | None:
        """Queue a probe of a spec; return the probe of an older launch hash to cancel."""
        job = self.jobs.get(spec.key)
        if job is not None and job.spec.launch_hash == spec.launch_hash:
            self._renew(job, spec)  # only the exposure, the timeout or the workers have changed
            return None
        outdated = self.drop(spec.key)
        self._wait(ProbeJob(spec, trace))
        return outdated

    def verify_claim(self, spec: ServerSpec, claim: Claim, now: float) -> None:
        """Ask another worker, or the only one, to list a server."""
        job = self.jobs.get(spec.key)
        if job is None:
            last = self._claimed.get(spec.key)
            at = now if last is None else max(now, last + _CLAIM_INTERVAL)
            self._claimed[spec.key] = at
            self._wait(ProbeJob(spec, "", not_before=at, claim=claim))
        elif job.claim is not None and job.running is not None:
            job.later = claim
        elif job.claim is not None:
            job.claim = claim

    def renew_exposure(self, spec: ServerSpec) -> StartedProbe | None:
        """Drop the job of a variant whose launch hash works; return its probe to cancel."""
        job = self.jobs.get(spec.key)
        if job is None or job.claim is None or job.spec.launch_hash != spec.launch_hash:
            return self.drop(spec.key)
        self._renew(job, spec)
        return None

    def can_hurry(self, key: VariantKey) -> bool:
        """Return whether a variant's probe waits among those that nobody waits for."""
        job = self.jobs.get(key)
        return job is not None and job.running is None and not job.is_awaited

    def hurry(self, key: VariantKey) -> None:
        """Start a variant's probe before those that nobody waits for."""
        if self.can_hurry(key):
            job = self.jobs[key]
            is_due = self._leave_queue(job)
            job.is_awaited = True
            if is_due:
                self._add_due(job)

    def forget_claims(self, wanted: Collection[VariantKey]) -> None:
        """Forget the verification times of all other variants."""
        for key in [key for key in self._claimed if key not in wanted]:
            del self._claimed[key]

    def drop(self, key: VariantKey) -> StartedProbe | None:
        """Drop a variant's job; return its running probe to cancel."""
        job = self.jobs.pop(key, None)
        if job is None:
            return None
        running = job.running
        if running is not None:
            self._end(running.id)
        else:
            self._stop_waiting(job)
        return running

    def start(
        self, now: float, holders: Callable[[ServerSpec], Collection[str]]
    ) -> list[tuple[ProbeJob, StartedProbe]]:
        """Start due probes on workers with room, spread evenly; return them.

        Args:
            now: The time.
            holders: Returns the workers that have a server and may list it without a start.
        """
        for key in self._set_back.pop_due(now):
            self._add_due(self.jobs[key])
        started: list[tuple[ProbeJob, StartedProbe]] = []
        for (_, labels, accepting), jobs in sorted(self._due.items(), key=_nobody_waits):
            chosen: list[ProbeJob] = []
            for job in jobs.values():
                if not self._workers.has_room(labels, accepting):
                    break
                worker_id, relist = self._choose(job, holders)
                if worker_id is not None:
                    started.append((job, self._run(job, worker_id, now, relist=relist)))
                    chosen.append(job)
            for job in chosen:
                self._stop_waiting(job)
        return started

    def _choose(
        self, job: ProbeJob, holders: Callable[[ServerSpec], Collection[str]]
    ) -> tuple[str | None, bool]:
        """Return the worker of a due probe, and whether it lists a live instance."""
        claim, never = job.claim, ""
        if claim is not None and self._workers.others_accept(claim.worker_id, job.spec):
            never = claim.worker_id
        listing = set(holders(job.spec)) if claim is not None and not job.needs_start else set()
        worker_id = self._workers.choose(
            job.spec, last=job.last_worker, never=never, listing=listing
        )
        return worker_id, worker_id in listing

    def _run(self, job: ProbeJob, worker_id: str, now: float, *, relist: bool) -> StartedProbe:
        probe = job.running = StartedProbe(self._next_id, worker_id, now, relist)
        self._next_id += 1
        job.last_worker = worker_id
        self._running[probe.id] = job
        self._expect_answer(job, now + _UNREPORTED_WAIT)
        self._workers.begin(worker_id, probe.id)
        return probe

    def handle_progress(self, probe_id: int, worker_id: str, now: float, *, begun: bool) -> None:
        """Let a probe wait for its turn on its worker, or for its answer once it has begun."""
        job = self._running.get(probe_id)
        if job is None or job.running is None or job.running.worker_id != worker_id:
            return  # it has ended, or was never this worker's
        latest = job.running.sent_at + _LONGEST_WAIT
        self._expect_answer(job, min(now, latest) if begun else latest)

    def _expect_answer(self, job: ProbeJob, begins: float) -> None:
        """Set until when the running probe of a job is to be answered, if it begins at a time."""
        assert job.running is not None
        self._deadlines.set(job.running.id, begins + job.spec.startup_timeout + _ANSWER_GRACE)

    def runs_elsewhere(self, probe_id: int, worker_id: str) -> bool:
        """Return whether a probe runs on another worker."""
        job = self._running.get(probe_id)
        return job is not None and job.last_worker != worker_id

    def finish(self, probe_id: int) -> ProbeJob | None:
        """Return the job whose running probe has ended, or None if it was cancelled.

        The caller drops or retries it.
        """
        return self._end(probe_id) if probe_id in self._running else None

    def retry(self, job: ProbeJob, now: float) -> None:
        """Retry a failed job after its backoff."""
        job.not_before = now + self.delay(job.attempt)
        job.attempt += 1
        job.is_awaited = False  # who waited has the failure as its answer
        self._wait(job)

    def retry_now(self, key: VariantKey, now: float) -> None:
        """Probe a variant without further backoff, as the cause of its failure may be gone."""
        job = self.jobs.get(key)
        if job is not None and job.not_before > now:
            job.not_before = now
            if job.running is None:
                self._wait(job)

    def retry_outlook(self, key: VariantKey, now: float) -> RetryOutlook | None:
        """Return a variant's failures and next probe, or None if its spec has not failed."""
        job = self.jobs.get(key)
        if job is None or not job.attempt or job.claim is not None:
            return None
        return RetryOutlook(job.attempt, None if job.running else max(0.0, job.not_before - now))

    def pop_overdue(self, now: float) -> list[tuple[ProbeJob, StartedProbe]]:
        """End the probes that were not answered in time; the caller drops or retries their jobs."""
        overdue = []
        for probe_id in self._deadlines.pop_due(now):
            probe = self._running[probe_id].running
            assert probe is not None
            overdue.append((self._end(probe_id), probe))
        return overdue

    def next_deadline(self) -> float | None:
        """Return when the next job becomes due or overdue.

        Due jobs that are not running wait for a worker, not for a time.
        """
        times = (self._deadlines.next(), self._set_back.next())
        return min((time for time in times if time is not None), default=None)

    @property
    def busy(self) -> bool:
        return bool(self._running)

    def _end(self, probe_id: int) -> ProbeJob:
        """Take a running job out of the tables; it is in none then."""
        job = self._running.pop(probe_id)
        self._deadlines.discard(probe_id)
        self._workers.end(job.last_worker, probe_id)
        job.running = None
        return job

    def _wait(self, job: ProbeJob) -> None:
        """Let a job that does not run wait for its time."""
        self.jobs[job.spec.key] = job
        self._set_back.set(job.spec.key, job.not_before)

    def _add_due(self, job: ProbeJob) -> None:
        job.accepting = self._workers.accepting(job.spec.key.server_id)
        self._due.setdefault(job.queue, {})[job.spec.key] = job

    def _stop_waiting(self, job: ProbeJob) -> None:
        self._set_back.discard(job.spec.key)
        self._leave_queue(job)

    def _leave_queue(self, job: ProbeJob) -> bool:
        """Take a job out of the due ones; return whether it was among them."""
        jobs = self._due.get(job.queue, {})
        was_due = jobs.pop(job.spec.key, None) is not None
        if not jobs:
            self._due.pop(job.queue, None)
        return was_due

    def _renew(self, job: ProbeJob, spec: ServerSpec) -> None:
        """Change the spec of a job; it keeps its time."""
        if job.running is None:
            self._stop_waiting(job)
            job.spec = spec
            self._wait(job)
        else:
            job.spec = spec


def _nobody_waits(due: tuple[_Queue, object]) -> bool:
    return due[0][0]
