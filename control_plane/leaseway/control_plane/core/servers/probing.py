"""Which servers have to be tried, where, and when again (DESIGN §3.4).

Only a new launch hash is probed, by one worker. A probe that fails is tried again with backoff
and full jitter, elsewhere if there is an elsewhere; one whose spec has moved on is taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from leaseway.control_plane.core.catalog.worker_scope import WorkerScope
from leaseway.spec.model import ServerSpec, VariantKey
from leaseway.wire import bounds
from leaseway.wire.timing.backoff import Backoff

_RETRY = Backoff(initial=0.5, maximum=30.0)
_ANSWER_GRACE = 10.0
"""How much longer than its startup timeout a worker may take to answer."""


@dataclass(frozen=True)
class StartedProbe:
    """A probe that runs on a worker until `deadline`."""

    id: int
    worker_id: str
    deadline: float


@dataclass(frozen=True)
class Outlook:
    """How often a variant has failed to start, and when it is tried again.

    Attributes:
        failures: How many in a row have failed, at least 1.
        wait: Seconds until the next one, 0 where it waits for a worker; None: it is under way.
    """

    failures: int
    wait: float | None


@dataclass
class ProbeJob:
    """A variant that has to be tried until it lists or its spec moves on."""

    spec: ServerSpec
    trace: str
    attempt: int = 0
    not_before: float = 0.0
    running: StartedProbe | None = None
    last_worker: str = ""


@dataclass
class ProbeSchedule:
    """The jobs. Its owner is the coordinator."""

    delay: Callable[[int], float] = _RETRY.delay
    jobs: dict[VariantKey, ProbeJob] = field(default_factory=dict)
    _next_id: int = 1

    def want(self, spec: ServerSpec, trace: str) -> StartedProbe | None:
        """Queue a probe of a spec; return the probe of an older launch hash to take back."""
        job = self.jobs.get(spec.key)
        if job is not None and job.spec.launch_hash == spec.launch_hash:
            job.spec = spec  # a newer exposure or timeout; the try stands
            return None
        self.jobs[spec.key] = ProbeJob(spec, trace)
        return job.running if job else None

    def drop(self, key: VariantKey) -> StartedProbe | None:
        """Forget a variant; return its probe to take back."""
        job = self.jobs.pop(key, None)
        return job.running if job else None

    def start(
        self,
        workers: Mapping[str, WorkerScope],
        now: float,
        silent: Collection[str] = (),
    ) -> list[tuple[ProbeJob, StartedProbe]]:
        """Start what is due on workers with room, spread evenly; return what was started.

        Args:
            workers: Which there are, and what they may have.
            now: The time.
            silent: Those that have not acknowledged anything since they joined: they come last.
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
            able = [worker for worker in free if workers[worker].takes(job.spec)]
            if not able:
                continue
            worker_id = min(able, key=lambda w: (w in silent, w == job.last_worker, running[w], w))
            running[worker_id] += 1
            job.last_worker = worker_id
            deadline = now + job.spec.startup_timeout + _ANSWER_GRACE
            job.running = StartedProbe(self._next_id, worker_id, deadline)
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

    def outlook(self, key: VariantKey, now: float) -> Outlook | None:
        """Return how the tries of a variant stand; None where none of its spec has failed."""
        job = self.jobs.get(key)
        if job is None or not job.attempt:
            return None
        return Outlook(job.attempt, None if job.running else max(0.0, job.not_before - now))

    def worker_gone(self, worker_id: str) -> None:
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
