"""The schedule of probes: which servers to probe, on which worker, and when (design.md#reload.4).

Each new launch hash is probed by one worker. A failed probe is retried with backoff and full
jitter, on another worker if possible; a probe of an outdated spec is cancelled.

A changed listing from a worker that did not probe the server is a claim: another worker is asked,
and its listing counts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from leaseway.control_plane.core.catalog.listing import ServerListing
from leaseway.control_plane.core.catalog.worker_scope import WorkerScope
from leaseway.spec.model import ServerSpec, VariantKey
from leaseway.wire import bounds
from leaseway.wire.timing.backoff import RETRY

_CLAIM_INTERVAL = 10.0
"""Minimum seconds between two verifications of claims about one server."""
_ANSWER_GRACE = 10.0
"""Seconds beyond the startup timeout that a worker may take to answer."""


@dataclass(frozen=True)
class StartedProbe:
    """A probe that runs on a worker until `deadline`."""

    id: int
    worker_id: str
    deadline: float
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


@dataclass
class ProbeSchedule:
    """All probe jobs; owned by the coordinator."""

    delay: Callable[[int], float] = RETRY.delay
    jobs: dict[VariantKey, ProbeJob] = field(default_factory=dict)
    _next_id: int = 1
    _claimed: dict[VariantKey, float] = field(default_factory=dict)  # last verification times

    def add(self, spec: ServerSpec, trace: str) -> StartedProbe | None:
        """Queue a probe of a spec; return the probe of an older launch hash to cancel."""
        job = self.jobs.get(spec.key)
        if job is not None and job.spec.launch_hash == spec.launch_hash:
            job.spec = spec  # only the exposure or the timeout has changed
            return None
        self.jobs[spec.key] = ProbeJob(spec, trace)
        return job.running if job else None

    def verify_claim(self, spec: ServerSpec, claim: Claim, now: float) -> None:
        """Ask another worker, or the only one, to list a server."""
        job = self.jobs.get(spec.key)
        if job is None:
            last = self._claimed.get(spec.key)
            at = now if last is None else max(now, last + _CLAIM_INTERVAL)
            self._claimed[spec.key] = at
            self.jobs[spec.key] = ProbeJob(spec, "", not_before=at, claim=claim)
        elif job.claim is not None and job.running is not None:
            job.later = claim
        elif job.claim is not None:
            job.claim = claim

    def renew_exposure(self, spec: ServerSpec) -> StartedProbe | None:
        """Drop the job of a variant whose launch hash works; return its probe to cancel."""
        job = self.jobs.get(spec.key)
        if job is None or job.claim is None or job.spec.launch_hash != spec.launch_hash:
            return self.drop(spec.key)
        job.spec = spec
        return None

    def forget_claims(self, wanted: Collection[VariantKey]) -> None:
        """Forget the verification times of all other variants."""
        for key in [key for key in self._claimed if key not in wanted]:
            del self._claimed[key]

    def drop(self, key: VariantKey) -> StartedProbe | None:
        """Drop a variant's job; return its running probe to cancel."""
        job = self.jobs.pop(key, None)
        return job.running if job else None

    def start(
        self,
        workers: Mapping[str, WorkerScope],
        now: float,
        silent: Collection[str] = (),
        holders: Callable[[ServerSpec], Collection[str]] | None = None,
    ) -> list[tuple[ProbeJob, StartedProbe]]:
        """Start due probes on workers with capacity, spread evenly; return them.

        Args:
            workers: Available workers and which servers they accept.
            now: The time.
            silent: Workers without an acknowledgement since they joined; used last.
            holders: Returns the workers that have a server and may list it without a start.
        """
        running = dict.fromkeys(workers, 0)
        for job in self.jobs.values():
            if job.running is not None and job.running.worker_id in running:
                running[job.running.worker_id] += 1
        started = []
        for job in self.jobs.values():
            if job.running is not None or job.not_before > now:
                continue
            free = [worker for worker, count in running.items() if count < bounds.MAX_PROBES]
            if not free:
                break
            able = [worker for worker in free if workers[worker].accepts(job.spec)]
            if job.claim is not None:
                able = _others(job.claim.worker_id, able, workers, job.spec)
            if not able:
                continue
            relisting = job.claim is not None and not job.needs_start
            listing = set(holders(job.spec)) if relisting and holders is not None else set()
            last = job.last_worker
            *_, worker_id = min(
                (w in silent, w == last, w not in listing, running[w], w) for w in able
            )
            running[worker_id] += 1
            job.last_worker = worker_id
            deadline = now + job.spec.startup_timeout + _ANSWER_GRACE
            relist = worker_id in listing
            job.running = StartedProbe(self._next_id, worker_id, deadline, relist)
            self._next_id += 1
            started.append((job, job.running))
        return started

    def runs_elsewhere(self, probe_id: int, worker_id: str) -> bool:
        """Return whether a probe runs on another worker."""
        running = (job.running for job in self.jobs.values())
        return any(job and job.id == probe_id and job.worker_id != worker_id for job in running)

    def finish(self, probe_id: int) -> ProbeJob | None:
        """Return the job whose running probe has ended, or None if it was cancelled."""
        for job in self.jobs.values():
            if job.running is not None and job.running.id == probe_id:
                job.running = None
                return job
        return None

    def retry(self, job: ProbeJob, now: float) -> None:
        """Retry a failed job after its backoff."""
        job.not_before = now + self.delay(job.attempt)
        job.attempt += 1

    def retry_now(self, key: VariantKey, now: float) -> None:
        """Probe a variant without further backoff, as the cause of its failure may be gone."""
        job = self.jobs.get(key)
        if job is not None:
            job.not_before = min(job.not_before, now)

    def retry_outlook(self, key: VariantKey, now: float) -> RetryOutlook | None:
        """Return a variant's failures and next probe, or None if its spec has not failed."""
        job = self.jobs.get(key)
        if job is None or not job.attempt or job.claim is not None:
            return None
        return RetryOutlook(job.attempt, None if job.running else max(0.0, job.not_before - now))

    def handle_worker_disconnected(self, worker_id: str) -> None:
        """Retry the probes of a disconnected worker at once, elsewhere."""
        for job in self.jobs.values():
            if job.running is not None and job.running.worker_id == worker_id:
                job.running = None

    def overdue(self, now: float) -> list[ProbeJob]:
        """Return the jobs whose worker has not answered in time."""
        return [j for j in self.jobs.values() if j.running and j.running.deadline <= now]

    def next_deadline(self, now: float) -> float | None:
        """Return when the next job becomes due or overdue.

        Due jobs that are not running wait for a worker, not for a time.
        """
        times = [j.running.deadline if j.running else j.not_before for j in self.jobs.values()]
        return min((time for time in times if time > now), default=None)

    @property
    def busy(self) -> bool:
        return any(job.running for job in self.jobs.values())


def _others(
    claimer: str, able: list[str], workers: Mapping[str, WorkerScope], spec: ServerSpec
) -> list[str]:
    """Return the workers that may verify a claim: the claimer only if no other accepts it."""
    if any(scope.accepts(spec) for worker, scope in workers.items() if worker != claimer):
        return [worker for worker in able if worker != claimer]
    return able
