"""The configured servers: what is desired, what was last good, what has to be tried (DESIGN §3).

One half of the control plane's state; the other half, the workers, is in `roster`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from leaseway.control_plane.core.catalog.listing import ServerListing
from leaseway.control_plane.core.catalog.tenant_hiding import TenantSpecs, common_key
from leaseway.control_plane.core.catalog.variants import (
    LastKnownGood,
    Served,
    adopt,
    build_good,
    relist,
    renew,
)
from leaseway.control_plane.core.catalog.worker_scope import WorkerScope, unplaced
from leaseway.control_plane.core.moment import Moment
from leaseway.control_plane.core.problems import Problem, ProblemTable
from leaseway.control_plane.core.servers.probing import Claim, ProbeJob, ProbeSchedule, StartedProbe
from leaseway.spec.model import ServerSpec, VariantKey, hidden_from

_TRIES_OF_CLAIM: Final = 3
_LISTS_DIFFER: Final = "LISTS_DIFFER"


@dataclass
class Servers:
    """What is known of each server. Its owner is the coordinator.

    Attributes:
        desired: What the newest usable configuration wants; None before there was one.
        rejected: Ids whose entry has an error: they keep what they last had.
        refused: Variants of tenants whose overrides have an error: they keep what they last had,
            or are hidden; the tenant does not get the common variant in their place. Those that
            had the common one are not among them: they keep that.
        last_known_good: What each variant last was when it worked.
        failures: Why the newest try of a variant failed.
        changed: Whether that has changed since the owner last looked.
        withdrawn: Probes to take back, for the owner to send.
        unplaced: Variants that no worker may be given, and why.
        troubled: Variants that have an open problem of a try or a listing that failed.
        tried_by: Which worker, that has not left since, was the last to be asked what one lists.
    """

    problems: ProblemTable
    desired: dict[VariantKey, ServerSpec] | None = None
    rejected: frozenset[str] = frozenset()
    refused: frozenset[VariantKey] = frozenset()
    last_known_good: dict[VariantKey, LastKnownGood] = field(default_factory=dict)
    failures: dict[VariantKey, Problem] = field(default_factory=dict)
    probes: ProbeSchedule = field(default_factory=ProbeSchedule)
    changed: bool = False
    withdrawn: list[StartedProbe] = field(default_factory=list)
    unplaced: dict[VariantKey, Problem] = field(default_factory=dict)
    troubled: set[VariantKey] = field(default_factory=set)
    tried_by: dict[VariantKey, str] = field(default_factory=dict)
    _of_tenants: TenantSpecs = field(default_factory=TenantSpecs)
    _kept_out: frozenset[VariantKey] = frozenset()
    _on_common: frozenset[VariantKey] = frozenset()

    @property
    def withheld(self) -> frozenset[VariantKey]:
        """Variants of tenants that were never up; the common one does not take their place."""
        return frozenset(self._of_tenants.withheld(self.last_known_good))

    def configure(
        self,
        servers: Mapping[VariantKey, ServerSpec],
        rejected: frozenset[str],
        refused: frozenset[VariantKey] = frozenset(),
    ) -> None:
        """Record what a configuration wants; `plan` brings it about."""
        before = self.desired or {}
        kept = {
            key: spec
            for key, spec in before.items()
            if (key.server_id in rejected or key in refused) and key not in servers
        }
        # A spec that has not changed stays the same object, which knows its hashes already.
        wanted = {
            key: old if (old := before.get(key)) == spec else spec for key, spec in servers.items()
        }
        # A tenant that had the common variant keeps it where its first override has an error.
        on_common = {
            key
            for key in refused
            if key in self._on_common
            or (
                key not in {*before, *servers, *self.last_known_good, *self.refused}
                and common_key(key) in before
            )
        }
        self._on_common = frozenset(on_common)
        refused -= self._on_common
        self.desired = dict(sorted({**kept, **wanted}.items()))
        self._of_tenants = TenantSpecs(self.desired.values())
        self.rejected = rejected
        self.refused = refused

    def plan(self, owed: Collection[VariantKey], trace: str, now: Moment) -> None:
        """Bring what works and probes in line with what is desired (DESIGN §3.3).

        Args:
            owed: Variants whose content a worker is about to send: not tried yet.
            trace: The trace of the change behind new probes.
            now: When.
        """
        if self.desired is None:
            return
        self._forget_undesired(now)
        unknown = (self.refused - self.desired.keys()) - self.last_known_good.keys() - set(owed)
        hidden = [hidden_from(key) for key in sorted(unknown)]
        for spec in (*self.desired.values(), *hidden):
            key = spec.key
            if not spec.hidden:
                self._show(key)
                self._take_common_listing(spec, now)
            good = self.last_known_good.get(key)
            if good is not None and good.launch_hash == spec.launch_hash:
                self._expose_anew(good, spec, now)
            elif spec.hidden:
                self._hide(spec, now)
            elif key in owed:
                self._withdraw(self.probes.drop(key))
            else:  # what was last good stays as it is until all of this works (DESIGN §3.5)
                self._have_tried(spec, trace)
        withheld = self.withheld
        self.changed = self.changed or withheld != self._kept_out
        self._kept_out = withheld

    def adopt(self, served: Served) -> None:
        """Record what a worker holds, if it is nearer to what is desired than what is known."""
        good = self.last_known_good.get(served.key)
        wanted = (self.desired or {}).get(served.key)
        stood_in = good is not None and good.spec.hidden and served.key in self.refused
        nearer = (good is None or stood_in) or (
            wanted is not None
            and good.launch_hash != wanted.launch_hash
            and served.hashes.launch == wanted.launch_hash
        )
        if nearer:
            self.last_known_good[served.key] = adopt(served)
            self.changed = True

    def handle_probe_result(
        self, probe_id: int, outcome: ServerListing | Problem, now: Moment
    ) -> None:
        """Record the end of a probe; one that was taken back changes nothing."""
        job = self.probes.ended(probe_id)
        if job is None:
            return
        if isinstance(outcome, ServerListing):
            self.tried_by[job.spec.key] = job.last_worker
        if job.claim is not None:
            self._asked_about(job, job.claim, outcome, now)
        elif isinstance(outcome, ServerListing):
            self.probes.drop(job.spec.key)
            self.failures.pop(job.spec.key, None)
            self._listed(job.spec.key, build_good(job.spec, outcome), now)
            if not job.spec.key.tenant:
                for spec in self._of_tenants.of(job.spec.key.server_id):
                    self._take_common_listing(spec, now)
        else:
            self._failed(job, _on_worker(outcome, job.last_worker), now)

    def handle_relisting(
        self,
        worker_id: str,
        key: VariantKey,
        launch_hash: str,
        outcome: ServerListing | Problem,
        now: Moment,
    ) -> None:
        """Record what a worker says, unasked, of a live shared instance that it listed again.

        What the worker says that was asked last is taken; of another one it is a claim. A listing
        that failed changes no tool.
        """
        good = self.last_known_good.get(key)
        if good is None or good.launch_hash != launch_hash:
            return
        if not isinstance(outcome, ServerListing):
            self._show_trouble(key, outcome, now)
        elif self.tried_by.get(key) == worker_id:
            self._listed(key, relist(good, outcome), now)
        elif outcome.digest == good.listing.digest:
            self._end_trouble(key, now)
            self._end_doubt(key, worker_id)
        else:
            wanted = (self.desired or {}).get(key)
            spec = good.spec if wanted is None else wanted
            if spec.launch_hash == launch_hash:
                self.probes.verify_claim(spec, Claim(worker_id, outcome), now.mono)

    def handle_worker_gone(self, worker_id: str) -> None:
        """Retry elsewhere the probes of a worker that left; what it says later is a claim."""
        self.probes.handle_worker_gone(worker_id)
        for key in [key for key, tried_by in self.tried_by.items() if tried_by == worker_id]:
            del self.tried_by[key]

    def expire_probes(self, now: Moment) -> None:
        """Retry probes that no worker answered."""
        for job in self.probes.overdue(now.mono):
            probe, key = job.running, job.spec.key
            assert probe is not None
            self.withdrawn.append(probe)
            job.running = None
            message = (
                f"Worker '{probe.worker_id}' did not say how trying server '{key}' ended. The try"
                " is repeated; look at that worker's log if this stays."
            )
            problem = Problem("server", "PROBE_OVERDUE", message, key.server_id, key.tenant)
            if job.claim is not None:
                self._asked_about(job, job.claim, problem, now)
            else:
                self._failed(job, problem, now)

    def without_result(self) -> set[VariantKey]:
        """Return the variants whose first try has not ended."""
        return {
            key
            for key in self.desired or {}
            if key not in self.failures
            and key not in self.last_known_good
            and key not in self.unplaced
        }

    def update_unplaced(self, scopes: Mapping[str, WorkerScope], now: Moment) -> None:
        """See which servers no worker may be given, and make those problems.

        Args:
            scopes: Of the workers that there are, by id; none says nothing.
            now: When.
        """
        self.unplaced = unplaced((self.desired or {}).values(), scopes)
        by_server = {key.server_id: problem for key, problem in self.unplaced.items()}
        self.problems.replace("unplaced", by_server.values(), now.unix)

    def _forget_undesired(self, now: Moment) -> None:
        desired = self.desired or {}
        for key in [
            key for key in self.last_known_good if key not in desired and not self._keeps(key)
        ]:
            del self.last_known_good[key]
            self.problems.replace(f"exposure:{key}", (), now.unix)
            self.changed = True
        for key in [key for key in self.probes.jobs if key not in desired]:
            self._withdraw(self.probes.drop(key))
        self.probes.forget_claims(self.last_known_good)
        for key in [key for key in self.tried_by if key not in self.last_known_good]:
            del self.tried_by[key]
        known = self.failures.keys() | (self.troubled - self.last_known_good.keys())
        for key in known - desired.keys():
            self._forgive(key, now)

    def _keeps(self, key: VariantKey) -> bool:
        return key.server_id in self.rejected or key in self.refused

    def _hide(self, spec: ServerSpec, now: Moment) -> None:
        # Nothing is there to be tried: its listing is known to be empty.
        self._withdraw(self.probes.drop(spec.key))
        self._forgive(spec.key, now)
        self._listed(spec.key, build_good(spec, ServerListing()), now)

    def _show(self, key: VariantKey) -> None:
        """Forget that a server was hidden from a tenant that is to have it now."""
        good = self.last_known_good.get(key)
        if good is not None and good.spec.hidden:
            del self.last_known_good[key]
            self.changed = True

    def _take_common_listing(self, spec: ServerSpec, now: Moment) -> None:
        """Give a tenant's variant that was never up what the common one of equal launch listed."""
        common = self.last_known_good.get(common_key(spec.key))
        if not spec.key.tenant or spec.key in self.last_known_good or common is None:
            return
        if common.launch_hash == spec.launch_hash:
            self._withdraw(self.probes.drop(spec.key))
            self._forgive(spec.key, now)
            self._listed(spec.key, build_good(spec, common.listing), now)

    def _expose_anew(self, good: LastKnownGood, spec: ServerSpec, now: Moment) -> None:
        self._withdraw(self.probes.renew_exposure(spec))
        self._forgive(spec.key, now)  # the change that failed was undone
        if good.rules_known and good.spec == spec:
            return
        self._listed(spec.key, renew(good, spec), now)

    def _have_tried(self, spec: ServerSpec, trace: str) -> None:
        job = self.probes.jobs.get(spec.key)
        if job is None or job.spec.launch_hash != spec.launch_hash:
            self.failures.pop(spec.key, None)  # what failed was another spec
        self._withdraw(self.probes.want(spec, trace))

    def _listed(
        self, key: VariantKey, made: tuple[LastKnownGood, tuple[Problem, ...]], now: Moment
    ) -> None:
        self._take(key, made, now)
        self._end_trouble(key, now)

    def _take(
        self, key: VariantKey, made: tuple[LastKnownGood, tuple[Problem, ...]], now: Moment
    ) -> None:
        good, problems = made
        self.changed = self.changed or good != self.last_known_good.get(key)
        self.last_known_good[key] = good
        self.problems.replace(f"exposure:{key}", problems, now.unix)

    def _asked_about(
        self, job: ProbeJob, claim: Claim, outcome: ServerListing | Problem, now: Moment
    ) -> None:
        """Take what a worker that was asked about a claim lists; a failed try is made again."""
        key = job.spec.key
        good = self.last_known_good.get(key)
        if isinstance(outcome, Problem):
            job.is_fresh = True
            self.probes.retry(job, now.mono)
            if job.attempt < _TRIES_OF_CLAIM and job.last_worker != claim.worker_id:
                return
        self.probes.drop(key)
        if good is None or good.launch_hash != job.spec.launch_hash:
            return
        if isinstance(outcome, ServerListing):
            self._listed(key, relist(good, outcome), now)
        newest = job.later or claim
        if isinstance(outcome, ServerListing) and outcome.digest == newest.listing.digest:
            self._end_doubt(key, newest.worker_id)
        elif job.later is not None:
            self.probes.verify_claim(job.spec, job.later, now.mono)
        else:
            self._doubt(key, claim.worker_id, job.last_worker, now)

    def _doubt(self, key: VariantKey, claimer: str, asked: str, now: Moment) -> None:
        if asked == claimer:
            return  # a server whose list changed once more, or that is gone: it is said again
        message = (
            f"Worker '{claimer}' says that server '{key}' lists something else than what is known"
            f" of it; worker '{asked}', which was asked, does not say so. What is known stays. See"
            " whether the server lists the same on both, and whether that worker is yours."
        )
        problem = Problem(
            "server", _LISTS_DIFFER, message, key.server_id, key.tenant, claimer, "warning"
        )
        self.problems.report(problem, now.unix)

    def _end_doubt(self, key: VariantKey, claimer: str) -> None:
        self.problems.clear(
            scope="server",
            server_id=key.server_id,
            tenant=key.tenant,
            worker_id=claimer,
            reason=_LISTS_DIFFER,
        )

    def _failed(self, job: ProbeJob, problem: Problem, now: Moment) -> None:
        key = job.spec.key
        if key in self._of_tenants.withheld(self.last_known_good):
            problem = replace(problem, message=f"{problem.message} {_lacking(key.tenant)}")
        self.failures[key] = replace(problem, server_id=key.server_id, tenant=key.tenant)
        self._show_trouble(key, self.failures[key], now)
        self.probes.retry(job, now.mono)

    def _forgive(self, key: VariantKey, now: Moment) -> None:
        self.failures.pop(key, None)
        self._end_trouble(key, now)

    def _show_trouble(self, key: VariantKey, problem: Problem, now: Moment) -> None:
        self.troubled.add(key)
        self.problems.replace(f"probe:{key}", [problem], now.unix, seen_again=True)

    def _end_trouble(self, key: VariantKey, now: Moment) -> None:
        if key in self.troubled:
            self.troubled.remove(key)
            self.problems.replace(f"probe:{key}", (), now.unix)

    def _withdraw(self, probe: StartedProbe | None) -> None:
        if probe is not None:
            self.withdrawn.append(probe)


def _lacking(tenant: str) -> str:
    return (
        f"Until it comes up, tenant '{tenant}' does not have the server: what is launched for"
        " other tenants is not what its own configuration wants."
    )


def _on_worker(problem: Problem, worker_id: str) -> Problem:
    """Return why a try failed with its worker in words only.

    The tries go from worker to worker: were the worker part of the problem's identity, each of
    them would close the last one's problem and open another.
    """
    message = f"The last try, on worker '{worker_id}', failed. {problem.message}"
    return replace(problem, worker_id="", message=message)
