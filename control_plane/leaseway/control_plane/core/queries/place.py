"""Queries of callers: on which worker to place a lease, and which workers serve a variant."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from leaseway.control_plane.core.catalog.admin_toolset import is_admin
from leaseway.control_plane.core.catalog.exposure import shown
from leaseway.control_plane.core.catalog.subjects import Reader
from leaseway.control_plane.core.catalog.variants import Served
from leaseway.control_plane.core.coordinator import Coordinator
from leaseway.control_plane.core.denial import Denial, PendingServers
from leaseway.control_plane.core.moment import Moment
from leaseway.control_plane.core.placement.caller import ANY_CALLER, PlacementCaller
from leaseway.control_plane.core.placement.capacity_errors import capacity_error, queue_full_error
from leaseway.control_plane.core.placement.lease_ends import (
    ReportedLeaseEnd,
    left_on_draining_worker,
    lost_unreported,
    lost_with_worker,
)
from leaseway.control_plane.core.placement.table import HeldLease, Placement
from leaseway.control_plane.core.placement.wait_queue import Waiter
from leaseway.control_plane.core.servers.probing import RetryOutlook
from leaseway.control_plane.core.workers.records import WorkerRecord
from leaseway.spec.model import VariantKey
from leaseway.wire.advice import LISTED_BY, for_operators
from leaseway.wire.errors import Reason
from leaseway.wire.names import LeaseKey
from leaseway.wire.text.suggestions import alike

_NOT_READY_RETRY = 0.5
_RECONNECT_RETRY = 1.0
_ENDING_RETRY = 0.1


@dataclass(frozen=True)
class _EligibleWorkers:
    """The workers that may hold a lease of a server; implements `Eligible`."""

    state: Coordinator
    served: Served
    now: float
    max_leases: int
    accepted: frozenset[str]

    @cached_property
    def spares(self) -> Collection[str]:
        launched = self.served.key, self.served.hashes.launch
        return self.state.roster.workers_with_spare(launched, self.accepted)

    def accepts(self, worker_id: str) -> bool:
        record = self.state.workers.get(worker_id)
        return record is not None and record.accepts_work and record.subscription.has(self.served)

    def keeps_leases(self, worker_id: str) -> bool:
        return _keeps_leases(self.state, worker_id)

    def is_suspect(self, worker_id: str) -> bool:
        record = self.state.workers[worker_id]
        if record.is_failing(self.served.key, self.served.hashes.launch):
            return True
        return record.is_suspect(self.state.placements.unanswered_since(worker_id), self.now)


def place(
    state: Coordinator,
    key: LeaseKey,
    excluded: Collection[str],
    now: Moment,
    caller: PlacementCaller = ANY_CALLER,
) -> Placement | PendingServers | Denial:
    """Choose a worker for a lease and reserve capacity on it (design.md#leases)."""
    return _try_place(state, key, excluded, now, caller) or _capacity_error(
        state, key, excluded, now
    )


def _try_place(
    state: Coordinator,
    key: LeaseKey,
    excluded: Collection[str],
    now: Moment,
    caller: PlacementCaller,
) -> Placement | PendingServers | Denial | None:
    """Like `place`, but return None if there is no capacity or no worker serves the server."""
    served = state.visible.view(key.tenant).servers.get(key.server_id)
    if served is None:
        return no_server(state, Reader(key.tenant), key.server_id, now)
    if served.spec.truely_stateless:
        message = (
            f"Server '{key.server_id}' is declared stateless (truely-stateless: true): its"
            " instances are shared and there is nothing to lease. Call its tools directly."
        )
        return Denial(Reason.NOT_LEASABLE, message, metadata={"server": key.server_id})
    remaining = state.settling_remaining(now)
    if remaining > 0 and not state.placements.has_lease(key):
        message = (
            "The control plane has just started and waits for workers to report their leases. Try"
            " again in a moment."
        )
        return Denial(Reason.SYNCING, message, min(remaining, 0.25))
    disconnected = _holder_disconnected(state, key, excluded, now)
    if disconnected is not None:
        return disconnected
    eligible = _EligibleWorkers(
        state=state,
        served=served,
        now=now.mono,
        max_leases=served.spec.instances.max_instances,
        accepted=caller.spares,
    )
    ending = state.placements.workers_ending(key)
    policy = served.spec.policy
    placed = state.placements.place(
        key,
        eligible,
        {*excluded, *ending},
        now.mono,
        policy.leases_of(key.tenant),
        policy.quota.leases,
        caller,
    )
    if placed is None and any(_keeps_leases(state, worker_id) for worker_id in ending):
        message = (
            f"Worker '{ending[0]}' has not ended the session's lost lease yet. Try again in a"
            " moment."
        )
        return Denial(Reason.SYNCING, message, _ENDING_RETRY)
    return placed


def _time_to_rejoin(record: WorkerRecord, now: Moment) -> float:
    """Return for how many seconds a disconnected worker does not count as lost; 0 for others."""
    if record.draining or record.lost_at is None:
        return 0.0
    return max(0.0, record.lost_at - now.mono)


def _holder_disconnected(
    state: Coordinator, key: LeaseKey, excluded: Collection[str], now: Moment
) -> Denial | None:
    """Return a denial if the holder of the lease has just disconnected, else None.

    It may reconnect soon, and a lease on another worker would be a duplicate. A caller that cannot
    reach the worker either excludes it.
    """
    holders = state.placements.workers_of(key)
    if any(_keeps_leases(state, worker_id) for worker_id in holders):
        return None
    for worker_id in holders:
        record = state.workers.get(worker_id)
        if record is None or worker_id in excluded or record.connected or record.draining:
            continue
        # Also if its time is over: the session is told of its lease once the worker is removed.
        remaining = _time_to_rejoin(record, now)
        message = (
            f"Worker '{worker_id}', which holds this session's lease, is disconnected. It"
            f" counts as lost in {remaining:.1f} s unless it reconnects. Try again."
        )
        delay = min(max(remaining, _ENDING_RETRY), _RECONNECT_RETRY)
        return Denial(Reason.SYNCING, message, delay)
    return None


def holders(state: Coordinator, key: LeaseKey) -> set[str]:
    """Return the workers that hold leases of a key which have started and remain valid."""
    leases = _started(state, key)
    return {lease.worker_id for lease in leases if _keeps_leases(state, lease.worker_id)}


def _started(state: Coordinator, key: LeaseKey) -> list[HeldLease]:
    """Return the leases of a key that its session may have used."""
    return [lease for lease in state.placements.leases_of(key) if lease.instance_id]


def give_up_leases(
    state: Coordinator, key: LeaseKey, excluded: Collection[str]
) -> list[ReportedLeaseEnd]:
    """Give up the leases of a key that its session can no longer use; return their ends.

    These are leases on workers that shut down, and on disconnected ones that the caller does not
    reach either. Their worker may not know it yet, so that a caller elsewhere could still use them:
    they are fenced. A disconnected worker may also have granted one and not reported it. None are
    given up while the session has a valid one.
    """
    ends: list[ReportedLeaseEnd] = []
    if holders(state, key):
        return ends
    for lease in _started(state, key):
        record = state.workers.get(lease.worker_id)
        if record is not None and record.draining:
            # Not revoked: its calls in flight end within the time that the worker gives them.
            state.placements.fence(lease.id, key)
            ends.append(left_on_draining_worker(lease))
        elif lease.worker_id in excluded:
            state.roster.fence(lease.id, key)
            ends.append(lost_with_worker(lease))
    record = state.workers.get(state.placements.reserved_worker(key))
    if record is not None and record.id in excluded and not record.connected:
        unreported = state.placements.unreported_lease(key, record.hello.address.incarnation)
        state.placements.drop_reservation(key, record.id)
        ends.append(lost_unreported(unreported))
    return ends


def await_worker(state: Coordinator, end: ReportedLeaseEnd | None, now: Moment) -> Denial | None:
    """Return a denial if an untold end of a lost lease may be none: its worker may come back."""
    if end is None or end.how != "lost" or state.placements.has_lease(end.key):
        return None
    if not state.may_regain_workers(now):
        return None
    message = (
        "The control plane has lost all its workers and waits for them to report their leases, as"
        " it may have been cut off. Try again in a moment."
    )
    return Denial(Reason.SYNCING, message, _NOT_READY_RETRY)


def _capacity_error(
    state: Coordinator, key: LeaseKey, excluded: Collection[str], now: Moment
) -> Denial:
    served = state.visible.view(key.tenant).servers[key.server_id]
    serving = state.workers_serving(served)
    able = [record.id for record in serving if record.accepts_work]
    if not able:
        away = (record for record in serving if record.id not in excluded)
        if any(_time_to_rejoin(record, now) for record in away):
            # After a gap of the network or of this process all streams open anew.
            message = (
                f"All workers that serve '{key.server_id}' are disconnected and have a moment to"
                " join again. Try again."
            )
            return Denial(Reason.SYNCING, message, _NOT_READY_RETRY)
        return not_served(state, served.key)
    policy = served.spec.policy
    return capacity_error(
        state.placements,
        key,
        able,
        served.spec.instances.max_instances,
        policy.leases_of(key.tenant),
        policy.quota.leases,
        policy.tenant_entry(key.tenant),
    )


def place_or_wait(
    state: Coordinator,
    key: LeaseKey,
    excluded: Collection[str],
    now: Moment,
    *,
    wait: bool,
    caller: PlacementCaller = ANY_CALLER,
) -> Placement | PendingServers | Denial | Waiter:
    """Place a lease after all waiting requests; with `wait`, queue it if there is no capacity."""
    serve_queue(state, now)
    outcome = place(state, key, excluded, now, caller)
    if not wait or not isinstance(outcome, Denial) or not outcome.is_temporary:
        return outcome
    waiter = state.wait_queue.join(key, excluded, now.mono, caller)
    return waiter or queue_full_error(key.server_id)


def serve_queue(state: Coordinator, now: Moment) -> None:
    """Place waiting requests for which there is capacity; the queue keeps their answers.

    They are tried only if the last events may have changed something for one of them.
    """
    queue, placements = state.wait_queue, state.placements
    if not len(queue):
        placements.room.clear()
        return
    placements.expire(now.mono)
    depends_on = (state.roster.standing, state.visible, state.settled)
    if not queue.must_try(depends_on, placements.room, now.mono):
        return

    def attempt(waiter: Waiter) -> Placement | Denial | None:
        outcome = _try_place(state, waiter.key, waiter.avoided, now, waiter.caller)
        if isinstance(outcome, PendingServers):
            queue.mark_pending()
            return None
        if isinstance(outcome, Denial) and outcome.is_temporary:
            return None
        return outcome

    queue.serve(attempt, now.mono, placements.has_lease, placements.tenant_load)


def find_lease(state: Coordinator, key: LeaseKey) -> Placement | None:
    """Return the reported lease for a key, or None; reserves nothing."""
    lease = state.placements.find_active(key, partial(_keeps_leases, state))
    return Placement(lease.worker_id, lease.id) if lease is not None else None


def find_leases(state: Coordinator, reader: Reader, session: str) -> list[HeldLease]:
    """Return a session's reported leases, ordered by server, one for each that a reader may see."""
    placements, servers = state.placements, state.servers
    variants = servers.variants_of(reader.tenant)
    found = (
        placements.find_active(key, partial(_keeps_leases, state))
        for key in sorted(placements.keys_of_session(reader.tenant, session))
        if (variant := variants.get(key.server_id)) is not None
        and servers.may_see(variant, reader.tenant, reader.agent)
    )
    return [lease for lease in found if lease is not None]


def workers_for(state: Coordinator, served: Served) -> Sequence[WorkerRecord]:
    """Return the workers that serve a variant; all of them serve the built-in toolset."""
    if not is_admin(served):
        return state.workers_serving(served)
    able = [record for record in state.roster.sorted_workers if record.accepts_work]
    return able or [record for record in state.roster.all_workers if not record.draining]


def not_served(state: Coordinator, key: VariantKey) -> Denial:
    """Return the denial for a listed server that no worker serves at the moment.

    It concerns this variant only, so that it reveals nothing of other tenants' variants.
    """
    server_id = key.server_id
    problem = state.servers.unplaced.get(key)
    if problem is not None:
        metadata = {"server": server_id, **for_operators(problem.advice)}
        return Denial(
            Reason.SERVER_NOT_READY, problem.message, _RECONNECT_RETRY, metadata, can_wait=False
        )
    if state.roster.is_on_its_way(key):
        # The only worker was started again, or all streams open anew.
        message = f"Server '{server_id}' is on its way to a worker that has just joined. Try again."
        return Denial(Reason.SYNCING, message, _NOT_READY_RETRY)
    message = (
        f"Server '{server_id}' is configured, but no connected worker serves it at the moment."
    )
    advice = for_operators("Look at `leaseway workers` and `leaseway problems`.")
    metadata = {"server": server_id, **advice}
    return Denial(Reason.SERVER_NOT_READY, message, _NOT_READY_RETRY, metadata)


def no_server(
    state: Coordinator, reader: Reader, server_id: str, now: Moment
) -> PendingServers | Denial:
    """Return the answer for a server that is not in a reader's view."""
    if not state.has_config:
        return no_config()
    tenant, agent = reader.tenant, reader.agent
    key = state.servers.variants_of(tenant).get(server_id)
    if key is not None and not state.servers.may_see(key, tenant, agent):
        key = None
    if key in state.pending.variants:
        return PendingServers((server_id,))
    failure = None if key is None else state.servers.failures.get(key)
    if key is not None and failure is not None:
        outlook = state.servers.probes.retry_outlook(key, now.mono)
        return _not_ready(server_id, failure.message, for_operators(failure.advice), outlook)
    if key is not None and (key in state.servers.unplaced or key in state.servers.last_known_good):
        return not_served(state, key)
    own = VariantKey(server_id, tenant)
    refused = server_id in state.servers.rejected and not state.visible.is_restricted
    if refused or own in state.servers.refused:
        message = "its entry in the configuration has an error"
        return _not_ready(server_id, message, for_operators("Run `leaseway problems`."))
    known = [*state.visible.view(tenant, agent).servers, *pending_servers(state, reader)]
    near = alike(server_id, known)
    message = f"There is no server {shown(server_id)}."
    message += did_you_mean([repr(name) for name in near])
    return Denial(Reason.TOOL_NOT_FOUND, message, metadata=advice_of(near, "servers"))


def no_config() -> Denial:
    """Return the answer for any name before a configuration was read: nobody knows which exist."""
    message = (
        "The control plane has just started and has not read its configuration yet. Try again in a"
        " moment."
    )
    return Denial(Reason.SYNCING, message, _NOT_READY_RETRY)


def pending_servers(state: Coordinator, reader: Reader) -> Iterator[str]:
    """Yield the servers without a first result that a reader may know of, by id."""
    variants = state.servers.variants_of(reader.tenant)
    return (
        server_id
        for server_id in state.pending.of(reader.tenant)
        if state.servers.may_see(variants[server_id], reader.tenant, reader.agent)
    )


def did_you_mean(near: list[str]) -> str:
    """Return the sentence that follows an unknown name: similar ones, which are in quotes."""
    return f" Did you mean {' or '.join(near)}?" if near else ""


def advice_of(near: list[str], listed_by: str) -> dict[str, str]:
    """Return the metadata of an unknown name: similar ones, or what lists the known ones."""
    return {"nearest": ", ".join(near)} if near else {LISTED_BY: listed_by}


def _keeps_leases(state: Coordinator, worker_id: str) -> bool:
    """Return whether a worker's leases remain valid: it is connected and not draining."""
    record = state.workers.get(worker_id)
    return record is not None and record.accepts_work


def _not_ready(
    server_id: str, problem: str, advice: Mapping[str, str], outlook: RetryOutlook | None = None
) -> Denial:
    state = f"Server '{server_id}' is configured but has not started"
    metadata = {"server": server_id, **advice}
    if outlook is None:  # only another configuration fixes it
        return Denial(Reason.SERVER_NOT_READY, f"{state}: {problem}.", metadata=metadata)
    wait = max(outlook.wait or 0.0, _NOT_READY_RETRY)
    if outlook.wait is None:
        retry = "The next try is running."
    elif outlook.wait > 0:
        retry = f"The next try is in {wait:.1f} s."
    else:
        retry = "The next try starts as soon as a worker is free."
    message = f"{state}. {retry} {problem}"
    return Denial(Reason.SERVER_NOT_READY, message, wait, metadata, can_wait=False)
