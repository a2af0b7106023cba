"""Which servers have to be tried, where, and when again (DESIGN §3.4).

Only a new launch hash is probed, by one worker. A probe that fails is tried again with backoff
and full jitter, elsewhere if there is an elsewhere; one whose spec has moved on is taken back.

What a worker says unasked of a server's list, and was not the one to try it, is a claim: another
worker is asked, and what that one lists is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from leaseway.control_plane.core.catalog.listing import ServerListing
from leaseway.control_plane.core.catalog.worker_scope import WorkerScope
from leaseway.spec.model import ServerSpec, VariantKey
from leaseway.wire import bounds
from leaseway.wire.timing.backoff import Backoff

_RETRY = Backoff(initial=0.5, maximum=30.0)
_BETWEEN_CLAIMS = 10.0
"""Seconds between two times that others are asked what a server lists, as a worker claims much."""
_ANSWER_GRACE = 10.0
"""How much longer than its startup timeout a worker may take to answer."""


@dataclass(frozen=True)
class StartedProbe:
    """A probe that runs on a worker until `deadline`."""

    id: int
    worker_id: str
    deadline: float
    relist: bool = False  # of an instance that is up there, without another start


@dataclass(frozen=True)
class Claim:
    """What a server lists now, as a worker says that was not asked."""

    worker_id: str
    listing: ServerListing


@dataclass(frozen=True)
class RetryOutlook:
    """How often a variant has failed to start, and when it is tried again.

    Attributes:
        failures: How many in a row have failed, at least 1.
        wait: Seconds until the next one, 0 where it waits for a worker; None: it is under way.
    """

    failures: int
    wait: float | None


@dataclass
class ProbeJob:
    """A variant that has to be tried until it lists or its spec moves on.

    Attributes:
        claim: What others are asked about; None where the variant is to come up at first.
        later: A claim that came while another worker was answering.
        is_fresh: Whether a claim needs a start, as there was no instance to list again.
    """

    spec: ServerSpec
    trace: str
    attempt: int = 0
    not_before: float = 0.0
    running: StartedProbe | None = None
    last_worker: str = ""
    claim: Claim | None = None
    later: Claim | None = None
    is_fresh: bool = False


@dataclass
class ProbeSchedule:
    """The jobs. Its owner is the coordinator."""

    delay: Callable[[int], float] = _RETRY.delay
    jobs: dict[VariantKey, ProbeJob] = field(default_factory=dict)
    _next_id: int = 1
    _claimed: dict[VariantKey, float] = field(default_factory=dict)  # when others are to be asked

    def want(self, spec: ServerSpec, trace: str) -> StartedProbe | None:
        """Queue a probe of a spec; return the probe of an older launch hash to take back."""
        job = self.jobs.get(spec.key)
        if job is not None and job.spec.launch_hash == spec.launch_hash:
            job.spec = spec  # a newer exposure or timeout; the try stands
            return None
        self.jobs[spec.key] = ProbeJob(spec, trace)
        return job.running if job else None

    def verify_claim(self, spec: ServerSpec, claim: Claim, now: float) -> None:
        """Ask another worker what a server lists, or the only one that there is."""
        job = self.jobs.get(spec.key)
        if job is None:
            last = self._claimed.get(spec.key)
            at = now if last is None else max(now, last + _BETWEEN_CLAIMS)
            self._claimed[spec.key] = at
            self.jobs[spec.key] = ProbeJob(spec, "", not_before=at, claim=claim)
        elif job.claim is not None and job.running is not None:
            job.later = claim
        elif job.claim is not None:
            job.claim = claim

    def renew_exposure(self, spec: ServerSpec) -> StartedProbe | None:
        """Forget the tries of a variant that is up again; return the one to take back."""
        job = self.jobs.get(spec.key)
        if job is None or job.claim is None or job.spec.launch_hash != spec.launch_hash:
            return self.drop(spec.key)
        job.spec = spec
        return None

    def forget_claims(self, wanted: Collection[VariantKey]) -> None:
        """Forget when others were asked about variants that are not wanted any more."""
        for key in [key for key in self._claimed if key not in wanted]:
            del self._claimed[key]

    def drop(self, key: VariantKey) -> StartedProbe | None:
        """Forget a variant; return its probe to take back."""
        job = self.jobs.pop(key, None)
        return job.running if job else None

    def start(
        self,
        workers: Mapping[str, WorkerScope],
        now: float,
        silent: Collection[str] = (),
        holders: Callable[[ServerSpec], Collection[str]] = lambda _spec: (),
    ) -> list[tuple[ProbeJob, StartedProbe]]:
        """Start what is due on workers with room, spread evenly; return what was started.

        Args:
            workers: Which there are, and what they may have.
            now: The time.
            silent: Those that have not acknowledged anything since they joined: they come last.
            holders: Returns those that have a server, and may list it without a start.
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
            asked = job.claim is not None and not job.is_fresh
            listing = set(holders(job.spec)) if asked else set()
            last = job.last_worker

            def order(w: str, listing: set[str] = listing, last: str = last) -> tuple[object, ...]:
                return w in silent, w == last, w not in listing, running[w], w

            worker_id = min(able, key=order)
            running[worker_id] += 1
            job.last_worker = worker_id
            deadline = now + job.spec.startup_timeout + _ANSWER_GRACE
            relist = worker_id in listing
            job.running = StartedProbe(self._next_id, worker_id, deadline, relist)
            self._next_id += 1
            started.append((job, job.running))
        return started

    def runs_elsewhere(self, probe_id: int, worker_id: str) -> bool:
        """Return whether a probe is another worker's to answer."""
        running = (job.running for job in self.jobs.values())
        return any(one and one.id == probe_id and one.worker_id != worker_id for one in running)

    def ended(self, probe_id: int) -> ProbeJob | None:
        """Return the job whose running probe has ended, or None for one taken back."""
        for job in self.jobs.values():
            if job.running is not None and job.running.id == probe_id:
                job.running = None
                return job
        return None

    def retry(self, job: ProbeJob, now: float) -> None:
        """Retry a failed job after its backoff."""
        job.not_before = now + self.delay(job.attempt)
        job.attempt += 1

    def hurry(self, key: VariantKey, now: float) -> None:
        """Retry a variant at once that waits for its next try: what it lacked is there."""
        job = self.jobs.get(key)
        if job is not None:
            job.not_before = min(job.not_before, now)

    def retry_outlook(self, key: VariantKey, now: float) -> RetryOutlook | None:
        """Return how the tries of a variant stand; None where none of its spec has failed."""
        job = self.jobs.get(key)
        if job is None or not job.attempt or job.claim is not None:
            return None
        return RetryOutlook(job.attempt, None if job.running else max(0.0, job.not_before - now))

    def handle_worker_gone(self, worker_id: str) -> None:
        """Retry elsewhere, at once, the probes of a worker that left."""
        for job in self.jobs.values():
            if job.running is not None and job.running.worker_id == worker_id:
                job.running = None

    def overdue(self, now: float) -> list[ProbeJob]:
        """Return jobs whose worker never answered."""
        return [j for j in self.jobs.values() if j.running and j.running.deadline <= now]

    def next_deadline(self, now: float) -> float | None:
        """Return when a job is next due or overdue.

        One that is due already and was not started waits for a worker, not for the time.
        """
        times = [j.running.deadline if j.running else j.not_before for j in self.jobs.values()]
        return min((time for time in times if time > now), default=None)

    @property
    def busy(self) -> bool:
        return any(job.running for job in self.jobs.values())


def _others(
    claimer: str, able: list[str], workers: Mapping[str, WorkerScope], spec: ServerSpec
) -> list[str]:
    """Return who may be asked about a claim: the claimer where nobody else takes the server."""
    if any(scope.accepts(spec) for worker, scope in workers.items() if worker != claimer):
        return [worker for worker in able if worker != claimer]
    return able
