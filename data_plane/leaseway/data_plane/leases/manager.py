"""The leases of a worker: the lease table, with time and with what happens around (DESIGN §5)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from leaseway.data_plane.core.leases.errors import (
    capacity_error,
    lease_ended,
    not_leasable,
    not_theirs,
)
from leaseway.data_plane.core.leases.table import (
    LeaseLimitReached,
    LeaseOutcome,
    LeaseTable,
    WorkerLease,
    WorkerLeaseKey,
)
from leaseway.data_plane.instances.generation import Generation
from leaseway.data_plane.instances.live_instance import LiveInstance
from leaseway.data_plane.instances.pool import Pool
from leaseway.data_plane.leases.instances import LeaseInstances
from leaseway.data_plane.leases.waiters import Granted, LeaseWaitQueue
from leaseway.data_plane.metrics.instruments import measure_lease_wait
from leaseway.spec.policy import OTHERS
from leaseway.wire.bounds import MAX_TENANT_LEASES
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.names import check_caller_names
from leaseway.wire.timing.durations import check_lease_ttl

_MOST_COUNTED: Final = 10_000


class WorkerLeaseManager:
    """Grants, renews and ends leases.

    Args:
        pool: Where instances come from.
        table: What is held; nobody else writes it.
        clock: Seconds, monotonic; the event loop's own.

    Attributes:
        refused: How often tenants were refused a lease because they have as many as they may.
    """

    def __init__(self, pool: Pool, table: LeaseTable, clock: Callable[[], float]) -> None:
        self._pool = pool
        self._table = table
        self._clock = clock
        self._context = pool.context
        self._instances = LeaseInstances(self._context.background, self._is_up, self._not_up)
        self._lives = self._instances.up
        self._line = LeaseWaitQueue(table.held_by)
        self._leaving: Fault | None = None
        self.refused: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None
        self._context.hooks.on_leased_instance_ended = self._instance_ended
        self._context.hooks.on_takeover = self._follow_soon
        self._context.hooks.on_lease_due = lambda live, why: self.revoke(live.lease_id, why)

    @property
    def waiting(self) -> int:
        """How many callers wait for room."""
        return len(self._line)

    @property
    def leases(self) -> Iterable[WorkerLease]:
        """The leases held, the oldest first."""
        return self._table.leases

    @property
    def held_by_tenants(self) -> Mapping[str, int]:
        """How many leases each tenant holds that holds any."""
        return self._table.held_by_tenants

    def get(self, lease_id: str) -> WorkerLease | None:
        return self._table.get(lease_id)

    def find(self, key: WorkerLeaseKey) -> WorkerLease | None:
        return self._table.find(key)

    def live_instance(self, lease: WorkerLease) -> LiveInstance | None:
        """Return the instance of a lease, or None while it is starting."""
        entry = self._lives.get(lease.id)
        return entry[0] if entry is not None else None

    def get_held(self, lease_id: str, key: WorkerLeaseKey) -> WorkerLease:
        """Return the lease that a caller names, together with the session that holds it.

        Raises:
            Fault: LEASE_EXPIRED, LEASE_REVOKED, LEASE_RELEASED or LEASE_LOST.
        """
        lease = self._table.get(lease_id)
        if lease is None or lease.key.tenant != key.tenant:  # ids can be guessed: they are counted
            raise self.ended_fault(lease_id, key.tenant)
        if lease.key != key:
            raise not_theirs(lease_id, f"of server {key.server_id[:64]} for")
        return lease

    def check_holder(self, lease_id: str, tenant: str, session: str) -> None:
        """Check that a lease, if it is held, is held by a tenant's session.

        Raises:
            Fault: LEASE_LOST.
        """
        self.check_tenant(lease_id, tenant)
        lease = self._table.get(lease_id)
        if lease is not None and lease.key.session != session:
            raise not_theirs(lease_id, "of")

    def check_tenant(self, lease_id: str, tenant: str) -> None:
        """Check that a lease, if it is held or remembered, is a tenant's; empty is anybody.

        Raises:
            Fault: LEASE_LOST.
        """
        lease = self._table.get(lease_id)
        if lease is None:
            ended = self._table.how_ended(lease_id, self._clock())
            if ended is not None and tenant not in ("", ended.tenant):
                raise self.ended_fault(lease_id, tenant)
        elif tenant not in ("", lease.key.tenant):
            raise self.ended_fault(lease_id, tenant)

    def ended_fault(self, lease_id: str, tenant: str = "") -> Fault:
        """Return why a lease is not held; to a tenant, others' leases never were."""
        return lease_ended(lease_id, self._table.how_ended(lease_id, self._clock(), tenant))

    async def acquire(
        self,
        key: WorkerLeaseKey,
        *,
        agent: str = "",
        acquirer: str = "",
        ttl: float | None = None,
        wait: float = 0.0,
    ) -> tuple[WorkerLease, bool]:
        """Return the lease of a key with its instance up, and whether it is new.

        Args:
            key: Whose lease for what.
            agent: Who asks.
            acquirer: How its client calls itself, or empty.
            ttl: The time to live asked for in seconds, or None for 60 s.
            wait: Seconds to wait for room.

        Raises:
            Fault: INVALID_REQUEST: a name or the time to live is out of bounds; NOT_LEASABLE,
                TOOL_NOT_FOUND, CAPACITY, or why the instance did not come up.
        """
        check_caller_names(session=key.session, tenant=key.tenant, agent=agent)
        if ttl is not None:
            check_lease_ttl(ttl)
        with measure_lease_wait(self._context.meters, key.server_id) as granted:
            lease, created, starting = await self._grant(key, agent, acquirer, ttl, wait)
            if starting is not None:
                await asyncio.shield(starting)
            if self._table.get(lease.id) is None:  # it has ended before its caller's turn came
                raise self.ended_fault(lease.id)
            granted(lease, created, self.live_instance(lease))
        return lease, created

    async def _grant(
        self, key: WorkerLeaseKey, agent: str, acquirer: str, ttl: float | None, wait: float
    ) -> Granted:
        def attempt() -> Granted:
            return self._take_room(key, agent, acquirer, ttl)

        try:
            return attempt()
        except LeaseLimitReached as full:
            why = full
        try:
            return await self._line.wait(key, attempt, why, wait)
        except LeaseLimitReached as full:
            if full.of_tenant:
                self.refused[key.tenant if len(self.refused) < _MOST_COUNTED else OTHERS] += 1
            raise capacity_error(key.server_id, full) from None

    def _take_room(
        self, key: WorkerLeaseKey, agent: str, acquirer: str, ttl: float | None
    ) -> Granted:
        if self._leaving is not None:
            raise self._leaving
        generation = self._leasable(key, agent)
        lease, created = self._table.acquire(
            key,
            self._clock(),
            variant=generation.key,
            launch_hash=generation.launch_hash,
            ttl=ttl,
            agent=agent,
            acquirer=acquirer,
            server_limit=generation.variant.spec.instances.max_instances,
            tenant_limit=_limit_of(generation, key.tenant),
        )
        if created:
            self._start_instance(lease, generation)
        else:
            self._context.reports.add_lease(lease)  # its time to live, perhaps
        return lease, created, self._instances.starting(lease.id)

    def _leasable(self, key: WorkerLeaseKey, agent: str) -> Generation:
        generation = self._pool.resolve(key.server_id, key.tenant, agent)
        if generation.is_shared and self._table.find(key) is None:
            raise not_leasable(key.server_id)
        return generation

    def _start_instance(self, lease: WorkerLease, generation: Generation) -> None:
        # The start counts as a call, so that a short time to live does not end the lease first.
        self._table.start_call(lease, self._clock())
        self._instances.start(lease, generation)
        # A start may take longer than the control plane keeps room for a lease that it placed.
        self._context.reports.add_lease(lease)
        self._schedule()

    def _is_up(self, lease: WorkerLease, generation: Generation) -> None:
        self._table.made_from(lease, generation.launch_hash)
        self.end_call(lease)
        self._context.reports.add_lease(lease)
        key = lease.key
        message = f"Session {key.session} leases server {key.server_id} on this worker."
        self._context.reports.record_lease_event(lease, "granted", message)
        if generation.draining:  # replaced while the instance was starting
            self.reconcile()

    def _not_up(self, lease: WorkerLease, fault: Fault) -> None:
        self.end(lease.id, "lost", fault.message)

    def start_call(self, lease: WorkerLease) -> None:
        self._table.start_call(lease, self._clock())

    def end_call(self, lease: WorkerLease) -> None:
        if self._table.end_call(lease, self._clock()):
            self._tick()

    def renew(self, lease_id: str, session: str | None = None) -> float:
        """Renew a lease; return its time to live from now on, in seconds.

        Args:
            lease_id: The lease.
            session: Who holds it, or None where its client, one of before, does not say. That
                renews no lease that its holder keeps alive by name.

        Raises:
            Fault: LEASE_EXPIRED, LEASE_REVOKED, LEASE_RELEASED or LEASE_LOST.
        """
        now = self._clock()
        held = self._table.get(lease_id)
        if held is not None:
            if session is None and held.renewed_by_session:
                return max(0.0, held.expires_at - now)
            if session not in (None, held.key.session):
                raise not_theirs(lease_id, "of")
        lease = self._table.renew(lease_id, now, by_session=session is not None)
        if lease is None:
            raise self.ended_fault(lease_id)
        return lease.ttl

    def idle_for(self, lease_id: str) -> float | None:
        """Return for how long no call has run on a lease; None where it is not held.

        One whose instance is starting, or that has a call in flight, is in use.
        """
        lease = self._table.get(lease_id)
        if lease is None:
            return None
        live = self.live_instance(lease)
        return 0.0 if lease.calls or live is None else max(0.0, live.idle_for)

    def release(self, lease_id: str, why: str = "") -> bool:
        """End a lease for its holder; False where it had been released before.

        Args:
            lease_id: The lease.
            why: Why, for others who name it, where its holder did not ask for it.

        Raises:
            Fault: LEASE_EXPIRED, LEASE_REVOKED or LEASE_LOST.
        """
        if self.end(lease_id, "released", why):
            return True
        fault = self.ended_fault(lease_id)
        if fault.reason is not Reason.LEASE_RELEASED:
            raise fault
        return False

    def revoke(self, lease_id: str, why: str) -> None:
        """End a lease against its holder's will; one that is not held is left as it ended."""
        self.end(lease_id, "revoked", why)

    def reject_new(self, refusal: Fault) -> None:
        """Grant nothing more: refuse whoever asks, and whoever waits for room."""
        self._leaving = refusal
        self._line.fail(refusal)

    def revoke_all(self, why: str) -> None:
        for lease in self._table.leases:
            self.end(lease.id, "revoked", why)

    def _follow_soon(self) -> None:
        asyncio.get_running_loop().call_soon(self.reconcile)  # whoever calls is in the middle of it

    def reconcile(self) -> None:
        """Compare what is held and waited for with what is served now: after each update."""
        now = self._clock()
        for lease in self._table.leases:
            try:
                current = self._pool.resolve(lease.key.server_id, lease.key.tenant)
            except Fault:
                self._table.end_by(lease, now, f"server {lease.key.server_id} was removed")
                continue
            older = current.predecessor
            if older is not None and older.launch_hash == lease.launch_hash:
                self._table.cancel_scheduled_end(
                    lease
                )  # what is configured now has not been up here yet
                continue
            what = "the configuration"
            if (current.key, current.launch_hash) == (lease.variant, lease.launch_hash):
                live = self.live_instance(lease)
                if live is None or not current.outdates(live):
                    self._table.cancel_scheduled_end(lease)
                    continue
                what = "a secret or file"
            self._table.end_by(
                lease,
                now + current.variant.spec.lease_drain_timeout,
                f"{what} of server {lease.key.server_id} has changed and the time for leases of "
                "the old one is over",
            )
        self._tick()
        self._line.serve()  # there may be more room by now, or nothing to wait for

    def _instance_ended(self, live: LiveInstance, fault: Fault | None) -> None:
        why = fault.message if fault is not None else "its instance ended"
        self._instances.forget(live.lease_id)
        self.end(live.lease_id, "lost", why)

    def end(self, lease_id: str, how: LeaseOutcome, why: str = "") -> bool:
        """End a lease; False where it is not held."""
        lease = self._table.end(lease_id, how, self._clock(), why)
        if lease is None:
            return False
        self._clean_up(lease, how)
        return True

    def _clean_up(self, lease: WorkerLease, how: LeaseOutcome) -> None:
        if self._context.meters is not None:
            self._context.meters.record_lease_end(lease, how)
        ended = self.ended_fault(lease.id)
        self._instances.end(lease.id, ended)
        self._context.reports.add_lease_end(lease, how)
        severity = "warning" if how == "lost" else "info"
        self._context.reports.record_lease_event(lease, how, ended.message, severity)
        self._line.serve()

    def _tick(self) -> None:
        for lease, ended in self._table.tick(self._clock()):
            self._clean_up(lease, ended.how)
        self._schedule()

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        at = self._table.next_tick(self._clock())
        if at is not None:
            self._timer = asyncio.get_running_loop().call_later(
                max(0.0, at - self._clock()), self._tick
            )

    def stop(self) -> None:
        """Let no further lease expire; the worker is gone next."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _limit_of(generation: Generation, tenant: str) -> int:
    """Return how many leases a tenant may hold on this worker."""
    limits = generation.variant.spec.policy.limits_of(tenant)
    return MAX_TENANT_LEASES if limits is None or limits.leases is None else limits.leases
