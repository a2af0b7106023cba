"""The configured servers: desired specs, last known good variants and probes (design.md#reload)."""

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
    await_login,
    build_good,
    relist,
)
from leaseway.control_plane.core.catalog.worker_scope import WorkerScope, unplaced
from leaseway.control_plane.core.moment import Moment
from leaseway.control_plane.core.problems import Problem, ProblemTable
from leaseway.control_plane.core.servers.probing import Claim, ProbeJob, ProbeSchedule, StartedProbe
from leaseway.spec.kinds.table import hidden_spec
from leaseway.spec.model import ServerSpec, VariantKey
from leaseway.wire.errors import Reason
from leaseway.wire.messages.admin import LOGIN_TOOL
from leaseway.wire.names import ALL_TENANTS

_MAX_CLAIM_ATTEMPTS: Final = 3
_LISTS_DIFFER: Final = "LISTS_DIFFER"
_MAX_TENANTS: Final = 100
"""Tenants whose variants are kept; callers may choose any names without credentials."""


@dataclass
class Servers:
    """All servers; owned by the coordinator.

    Attributes:
        desired: Specs of the newest valid configuration; None before the first one.
        rejected: Ids of servers whose entry has an error; they keep their last state.
        refused: Tenant variants whose override has an error. They keep their last state or are
            hidden; the tenant does not get the common variant. A tenant that had the common
            variant keeps it, and its variant is not in this set.
        last_known_good: The last working state of each variant.
        failures: Why the newest probe of a variant failed.
        changed: Whether `last_known_good` or the withheld variants have changed; the owner resets
            it.
        withdrawn: Probes to cancel; the owner empties it.
        unplaced: Variants that no worker accepts, each with its problem.
        troubled: Variants with an open problem of a failed probe or listing.
        probed_by: The connected worker that last listed a variant for a probe.
        variants_revision: Another number after each change of `variants_of`.
        touched: The variants whose results may have changed since a reader has replaced it by an
            empty set; None if any may have.
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
    probed_by: dict[VariantKey, str] = field(default_factory=dict)
    variants_revision: int = 0
    touched: set[VariantKey] | None = None
    _variants: dict[str, Mapping[str, VariantKey]] = field(default_factory=dict)
    _of_tenants: TenantSpecs = field(default_factory=TenantSpecs)
    _kept_out: frozenset[VariantKey] = frozenset()
    _on_common: frozenset[VariantKey] = frozenset()

    @property
    def withheld(self) -> frozenset[VariantKey]:
        """Tenant variants that were never up; the common variant does not replace them."""
        return frozenset(self._of_tenants.withheld(self.last_known_good))

    @property
    def known(self) -> set[VariantKey]:
        """All desired, working or refused variants."""
        return {*(self.desired or ()), *self.last_known_good, *self.refused}

    def variants_of(self, tenant: str) -> Mapping[str, VariantKey]:
        """Return a tenant's variant of each known server, without hidden ones.

        The same object, until one of them changes.
        """
        kept = self._variants.get(tenant)
        if kept is None:
            if len(self._variants) >= _MAX_TENANTS:
                self._variants.clear()
            # The tenant's own variant sorts after the common one and replaces it.
            chosen = {
                key.server_id: key for key in sorted(self.known) if key.tenant in ("", tenant)
            }
            kept = self._variants[tenant] = {
                name: key for name, key in chosen.items() if self.may_see(key, tenant)
            }
        return kept

    def may_see(self, key: VariantKey, tenant: str, agent: str = "") -> bool:
        """Return whether a tenant, or one of its agents, may know of a variant."""
        spec = (self.desired or {}).get(key)
        if spec is None:
            good = self.last_known_good.get(key)
            if good is None:
                return True
            spec = good.spec
        return not spec.hidden and (tenant == ALL_TENANTS or spec.policy.is_visible(tenant, agent))

    def _touch(self, key: VariantKey) -> None:
        """Note that the result of a variant may have changed."""
        if self.touched is not None:
            self.touched.add(key)
        if key not in (self.desired or ()):
            self._forget_variants()  # it is known by its result alone

    def _forget_variants(self) -> None:
        self._variants.clear()
        self.variants_revision += 1

    def configure(
        self,
        servers: Mapping[VariantKey, ServerSpec],
        rejected: frozenset[str],
        refused: frozenset[VariantKey] = frozenset(),
    ) -> None:
        """Record the desired servers of a configuration; `reconcile` applies them."""
        before = self.desired or {}
        kept = {
            key: spec
            for key, spec in before.items()
            if (key.server_id in rejected or key in refused) and key not in servers
        }
        # An unchanged spec stays the same object, which has cached its hashes.
        wanted = {
            key: old if (old := before.get(key)) is spec or old == spec else spec
            for key, spec in servers.items()
        }
        # A tenant that had the common variant keeps it if its first override has an error.
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
        self.touched = None
        self._forget_variants()

    def reconcile(self, awaited: Collection[VariantKey], trace: str, now: Moment) -> None:
        """Reconcile last known good variants and probes with the desired specs.

        Args:
            awaited: Variants whose content was requested from a worker; not probed yet.
            trace: The traceparent of the reload behind new probes.
            now: The time.

        See design.md#reload.3.
        """
        if self.desired is None:
            return
        self._forget_undesired(now)
        unknown = (self.refused - self.desired.keys()) - self.last_known_good.keys() - set(awaited)
        hidden = [hidden_spec(key) for key in sorted(unknown)]
        for spec in (*self.desired.values(), *hidden):
            key = spec.key
            if self._is_as_desired(spec):
                continue
            if not spec.hidden:
                self._unhide(key)
                self._copy_common_listing(spec, now)
            good = self.last_known_good.get(key)
            if good is not None and good.launch_hash == spec.launch_hash:
                if good.awaits_login:
                    self._await_login(spec)
                    self._probe(spec, trace)
                else:
                    self._renew_exposure(good, spec, now)
            elif spec.hidden:
                self._hide(spec, now)
            elif key in awaited:
                self._withdraw(self.probes.drop(key))
            else:  # the last known good variant stays until the new one works (design.md#reload.5)
                self._probe(spec, trace)
        withheld = self.withheld
        self.changed = self.changed or withheld != self._kept_out
        self._kept_out = withheld

    def _is_as_desired(self, spec: ServerSpec) -> bool:
        """Return whether there is nothing to do for a spec: it works, and nothing is tried."""
        good = self.last_known_good.get(spec.key)
        return (
            good is not None
            and good.spec is spec
            and good.rules_known
            and not good.awaits_login
            and spec.key not in self.probes.jobs
            and spec.key not in self.failures
            and spec.key not in self.troubled
        )

    def adopt(self, served: Served) -> bool:
        """Adopt a variant that a worker holds if it is nearer to the desired spec.

        Returns:
            Whether it is; the owner plans and commits it.
        """
        good = self.last_known_good.get(served.key)
        wanted = (self.desired or {}).get(served.key)
        is_placeholder = good is not None and good.spec.hidden and served.key in self.refused
        nearer = (good is None or is_placeholder) or (
            wanted is not None
            and good.launch_hash != wanted.launch_hash
            and served.hashes.launch == wanted.launch_hash
        )
        if nearer:
            listing = self._shared(served.key, served.listing)
            self.last_known_good[served.key] = adopt(replace(served, listing=listing))
            self._touch(served.key)
        return nearer

    def handle_probe_result(
        self, probe_id: int, outcome: ServerListing | Problem, now: Moment
    ) -> None:
        """Record the result of a probe; ignore it if the probe was cancelled."""
        job = self.probes.finish(probe_id)
        if job is None:
            return
        if job.claim is not None:
            if isinstance(outcome, ServerListing):
                self.probed_by[job.spec.key] = job.last_worker
            self._verify(job, job.claim, outcome, now)
        elif isinstance(outcome, ServerListing):
            self._take_first(job.spec, outcome, job.last_worker, now)
        else:
            self._record_failure(job, _without_worker(outcome, job.last_worker), now)

    def _take_first(
        self, spec: ServerSpec, outcome: ServerListing, worker_id: str, now: Moment
    ) -> None:
        """Record the first listing of a launch."""
        key = spec.key
        self.probed_by[key] = worker_id
        self._withdraw(self.probes.drop(key))
        self._forget_failure(key)
        before = self.last_known_good.get(key)
        listing = outcome if before is None else outcome.settled(before.listing)
        self._set_good(key, build_good(spec, self._shared(key, listing)), now)
        if not key.tenant:
            for other in self._of_tenants.of(key.server_id):
                self._copy_common_listing(other, now)

    def handle_relisting(
        self,
        worker_id: str,
        key: VariantKey,
        launch_hash: str,
        outcome: ServerListing | Problem,
        now: Moment,
    ) -> None:
        """Record a new listing of a live shared instance that no probe asked for.

        The listing of the worker that probed last counts; that of another worker is a claim. A
        failed listing changes no tool.
        """
        good = self.last_known_good.get(key)
        if good is None or good.launch_hash != launch_hash:
            return
        if not isinstance(outcome, ServerListing):
            self._open_problem(key, outcome, now)
        elif good.awaits_login:  # the first login came to this worker, and not to one that probes
            self._take_first(good.spec, outcome, worker_id, now)
        elif self.probed_by.get(key) == worker_id:
            self._set_good(key, relist(good, outcome.settled(good.listing)), now)
        elif outcome.settled(good.listing) == good.listing:
            self._close_problem(key, now)
            self._close_mismatch(key, worker_id)
        else:
            wanted = (self.desired or {}).get(key)
            spec = good.spec if wanted is None else wanted
            if spec.launch_hash == launch_hash:
                self.probes.verify_claim(spec, Claim(worker_id, outcome), now.mono)

    def handle_worker_disconnected(self, worker_id: str) -> None:
        """Retry the probes of a disconnected worker elsewhere; its later listings are claims."""
        self.probes.handle_worker_disconnected(worker_id)
        self.probed_by = {key: by for key, by in self.probed_by.items() if by != worker_id}

    def expire_probes(self, now: Moment) -> None:
        """Cancel and retry probes that were not answered in time."""
        for job, probe in self.probes.pop_overdue(now.mono):
            key = job.spec.key
            self.withdrawn.append(probe)
            message = (
                f"Worker '{probe.worker_id}' did not report the result of probing server '{key}'."
                " The probe is repeated; look at that worker's log if this persists."
            )
            problem = Problem(
                scope="server",
                reason="PROBE_OVERDUE",
                message=message,
                server_id=key.server_id,
                tenant=key.tenant,
            )
            if job.claim is not None:
                self._verify(job, job.claim, problem, now)
            else:
                self._record_failure(job, problem, now)

    def lacks_result(self, key: VariantKey) -> bool:
        """Return whether the first probe of a variant has not ended."""
        return (
            key in (self.desired or ())
            and key not in self.failures
            and key not in self.last_known_good
            and key not in self.unplaced
        )

    def update_unplaced(self, scopes: Collection[WorkerScope], now: Moment) -> None:
        """Find the servers that no worker accepts and report them as problems.

        Args:
            scopes: The different scopes of all workers; if empty, nothing is reported.
            now: The time.
        """
        before, self.unplaced = (
            self.unplaced,
            unplaced((self.desired or {}).values(), scopes),
        )
        for key in before.keys() ^ self.unplaced.keys():
            self._touch(key)
        by_server = {key.server_id: problem for key, problem in self.unplaced.items()}
        self.problems.replace("unplaced", by_server.values(), now.unix)

    def _forget_undesired(self, now: Moment) -> None:
        desired = self.desired or {}
        for key in [
            key for key in self.last_known_good if key not in desired and not self._keeps(key)
        ]:
            del self.last_known_good[key]
            self._touch(key)
            self.problems.replace(f"exposure:{key}", (), now.unix)
            self.changed = True
        for key in [key for key in self.probes.jobs if key not in desired]:
            self._withdraw(self.probes.drop(key))
        self.probes.forget_claims(self.last_known_good)
        for key in [key for key in self.probed_by if key not in self.last_known_good]:
            del self.probed_by[key]
        known = self.failures.keys() | (self.troubled - self.last_known_good.keys())
        for key in known - desired.keys():
            self._clear_failure(key, now)

    def _keeps(self, key: VariantKey) -> bool:
        return key.server_id in self.rejected or key in self.refused

    def _hide(self, spec: ServerSpec, now: Moment) -> None:
        # A hidden variant needs no probe: its listing is empty.
        self._withdraw(self.probes.drop(spec.key))
        self._clear_failure(spec.key, now)
        self._set_good(spec.key, build_good(spec, ServerListing()), now)

    def _unhide(self, key: VariantKey) -> None:
        good = self.last_known_good.get(key)
        if good is not None and good.spec.hidden:
            del self.last_known_good[key]
            self._touch(key)
            self.changed = True

    def _copy_common_listing(self, spec: ServerSpec, now: Moment) -> None:
        """Use the common variant's listing for a tenant's new variant with the same launch hash."""
        own = self.last_known_good.get(spec.key)
        if not spec.key.tenant or (own is not None and not own.awaits_login):
            return
        common = self.last_known_good.get(common_key(spec.key))
        if common is None or common.awaits_login or spec.part.auth.subject == "tenant":
            return  # there is none, or it is another tenant's
        if common.launch_hash == spec.launch_hash:
            self._withdraw(self.probes.drop(spec.key))
            self._clear_failure(spec.key, now)
            self._set_good(spec.key, build_good(spec, common.listing), now)

    def _shared(self, key: VariantKey, listing: ServerListing) -> ServerListing:
        """Return the common variant's listing if a tenant's is equal: it keeps what it derives."""
        common = self.last_known_good.get(common_key(key)) if key.tenant else None
        if common is not None and common.listing.digest == listing.digest:
            return common.listing
        return listing

    def _renew_exposure(self, good: LastKnownGood, spec: ServerSpec, now: Moment) -> None:
        self._withdraw(self.probes.renew_exposure(spec))
        self._clear_failure(spec.key, now)  # a change that failed was reverted
        if not good.rules_known or (good.spec is not spec and good.spec != spec):
            self._set_good(spec.key, build_good(spec, good.listing), now)

    def _probe(self, spec: ServerSpec, trace: str) -> None:
        job = self.probes.jobs.get(spec.key)
        if job is None or job.spec.launch_hash != spec.launch_hash:
            self._forget_failure(spec.key)  # another spec failed
        self._withdraw(self.probes.add(spec, trace))

    def _set_good(
        self, key: VariantKey, built: tuple[LastKnownGood, tuple[Problem, ...]], now: Moment
    ) -> None:
        good, problems = built
        self.changed = self.changed or good != self.last_known_good.get(key)
        self.last_known_good[key] = good
        self._touch(key)
        self.problems.replace(f"exposure:{key}", problems, now.unix)
        self._close_problem(key, now)

    def _await_login(self, spec: ServerSpec) -> None:
        """Serve a server to which nobody has logged in; that stays a problem."""
        good = await_login(spec)
        self.changed = self.changed or good != self.last_known_good.get(spec.key)
        self.last_known_good[spec.key] = good
        self._touch(spec.key)

    def _verify(
        self, job: ProbeJob, claim: Claim, outcome: ServerListing | Problem, now: Moment
    ) -> None:
        """Compare the listing of the worker that was asked with the claim; retry failed probes."""
        key = job.spec.key
        good = self.last_known_good.get(key)
        if isinstance(outcome, Problem):
            job.needs_start = True
            self.probes.retry(job, now.mono)
            if job.attempt < _MAX_CLAIM_ATTEMPTS and job.last_worker != claim.worker_id:
                return
        self.probes.drop(key)
        if good is None or good.launch_hash != job.spec.launch_hash:
            return
        if isinstance(outcome, ServerListing):
            self._set_good(key, relist(good, outcome.settled(good.listing)), now)
        newest = job.later or claim
        if isinstance(outcome, ServerListing) and outcome.agrees(newest.listing):
            self._close_mismatch(key, newest.worker_id)
        elif job.later is not None:
            self.probes.verify_claim(job.spec, job.later, now.mono)
        else:
            self._report_mismatch(key, claim.worker_id, job.last_worker, now)

    def _report_mismatch(self, key: VariantKey, claimer: str, asked: str, now: Moment) -> None:
        if asked == claimer:
            return  # its listing has changed again, or the server has exited: it reports again
        message = (
            f"Worker '{claimer}' reports a changed listing of server '{key}'; worker '{asked}',"
            " which was asked to list it again, does not confirm it. The known listing stays. Check"
            " whether the server lists the same on both workers, and whether that worker is yours."
        )
        problem = Problem(
            scope="server",
            reason=_LISTS_DIFFER,
            message=message,
            server_id=key.server_id,
            tenant=key.tenant,
            worker_id=claimer,
            severity="warning",
        )
        self.problems.report(problem, now.unix)

    def _close_mismatch(self, key: VariantKey, claimer: str) -> None:
        self.problems.clear(
            scope="server",
            server_id=key.server_id,
            tenant=key.tenant,
            worker_id=claimer,
            reason=_LISTS_DIFFER,
        )

    def _record_failure(self, job: ProbeJob, problem: Problem, now: Moment) -> None:
        key = job.spec.key
        if problem.reason == Reason.LOGIN_REQUIRED and job.spec.part.auth.logs_in:
            # Callers are offered a login, also in place of what was served before a change.
            self._await_login(job.spec)
            self.problems.replace(f"exposure:{key}", (), now.unix)  # it had another listing
            problem = _first_login(job.spec, problem)
        if key in self._of_tenants.withheld(self.last_known_good):
            message = (
                f"{problem.message} Until the server starts, tenant '{key.tenant}' does not have"
                " it: its configuration differs from that of other tenants."
            )
            problem = replace(problem, message=message)
        self.failures[key] = replace(problem, server_id=key.server_id, tenant=key.tenant)
        self._touch(key)
        self._open_problem(key, self.failures[key], now)
        self.probes.retry(job, now.mono)

    def _forget_failure(self, key: VariantKey) -> None:
        if self.failures.pop(key, None) is not None:
            self._touch(key)

    def _clear_failure(self, key: VariantKey, now: Moment) -> None:
        self._forget_failure(key)
        self._close_problem(key, now)

    def _open_problem(self, key: VariantKey, problem: Problem, now: Moment) -> None:
        self.troubled.add(key)
        self.problems.replace(f"probe:{key}", [problem], now.unix, seen_again=True)

    def _close_problem(self, key: VariantKey, now: Moment) -> None:
        if key in self.troubled:
            self.troubled.remove(key)
            self.problems.replace(f"probe:{key}", (), now.unix)

    def _withdraw(self, probe: StartedProbe | None) -> None:
        if probe is not None:
            self.withdrawn.append(probe)


def _first_login(spec: ServerSpec, problem: Problem) -> Problem:
    """Return the problem of a server that cannot be listed before somebody has logged in."""
    server_id, whose = spec.key.server_id, spec.part.auth.subject
    message = (
        f"Server '{spec.key}' waits for the first login of a {whose}. Whoever may use it is offered"
        f" that login: {LOGIN_TOOL} is among the listed tools."
    )
    tenant = spec.key.tenant or "TENANT"
    user = " --user USER" if whose == "user" else ""
    advice = f"Or log in on a worker's machine: leaseway login {server_id} --tenant {tenant}{user}."
    return replace(problem, message=message, advice=advice)


def _without_worker(problem: Problem, worker_id: str) -> Problem:
    """Return a failed probe's problem with its worker only in the message.

    Retries change the worker. If it were part of the problem's key, each retry would close the
    problem and open another.
    """
    message = f"The last probe, on worker '{worker_id}', failed. {problem.message}"
    return replace(problem, worker_id="", message=message)
