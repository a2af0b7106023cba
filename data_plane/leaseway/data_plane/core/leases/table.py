"""Held leases of a worker, their expiry, and a record of ended leases (design.md#leases).

Pure: every method takes `now`, seconds on a monotonic clock. The caller runs `tick` at the time
that `next_tick` returns, and closes the instances of the leases that `tick` ended.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from leaseway.spec.model import VariantKey
from leaseway.wire import bounds
from leaseway.wire.messages.states import LeaseOutcome
from leaseway.wire.names import LeaseKey

_MAX_ENDED: Final = 10_000
_MAX_CLIENTS: Final = 64
"""Clients of one lease whose names are kept; with more, no client's leaving ends the lease."""
_STALL: Final = 1.0
"""Seconds; a tick that is later than this means that the whole process stood still."""
_MAX_TICK_INTERVAL: Final = 0.5
"""Seconds between ticks, so that a stall is noticed before it expires the first lease."""
_GRACE: Final = 1 / 3
"""The part of a time to live that renewals get to arrive after a stall."""


@dataclass(slots=True)
class WorkerLease:
    """One held lease. Only the lease table writes it.

    Attributes:
        id: The worker's incarnation and a counter.
        agent: The agent that acquired it.
        user: The user whose login its instance uses; empty if the server acts for no users.
        acquirer: The name of the client that acquired it, or empty.
        variant: The variant that its instance was started from.
        launch_hash: The version of that variant.
        ttl: The granted time to live, in seconds.
        expires_at: When it ends unless it is renewed or has a call in flight.
        calls: Calls in flight.
        ends_by: When it is revoked, or later once no call is in flight; None if not scheduled.
        end_cause: Why it is scheduled to end, in a sentence.
        renewed_by_session: Whether a renewal has named its session; then all renewals must.
        clients: The names of the clients that acquired or joined it and have not left; an empty
            name is one or more unknown clients, which never leave.
        idle_limit: Seconds without a call for which it is kept, also without renewals, because a
            client that used it has left; 0 if none has.
        kept_until: When that time ends.
        has_started: Whether its instance has started.
        holder: The name of the credential that acquired it, if its instance acts for the holder of
            a token and for no user; empty otherwise.
    """

    id: str
    key: LeaseKey
    agent: str
    acquirer: str
    variant: VariantKey
    launch_hash: str
    ttl: float
    granted_at: float
    expires_at: float
    calls: int = 0
    ends_by: float | None = None
    end_cause: str = ""
    renewed_by_session: bool = False
    clients: set[str] = field(default_factory=set)
    idle_limit: float = 0.0
    kept_until: float = 0.0
    has_started: bool = False
    user: str = ""
    holder: str = ""

    @property
    def lapses_at(self) -> float:
        """When it ends unless it is renewed, called or has a call in flight."""
        return max(self.expires_at, self.kept_until)

    def is_due(self, now: float) -> bool:
        """Return whether only a call in flight keeps it from ending."""
        return now >= self.lapses_at or (self.ends_by is not None and now >= self.ends_by)


@dataclass(frozen=True, slots=True)
class EndedLease:
    """Record of an ended lease.

    Attributes:
        outcome: How it ended.
        cause: Why, in a sentence, or empty if the outcome says it all.
        at: When.
        tenant: Its tenant.
        unasked: Whether it had started and its session did not ask for the end, and so does not
            know of it.
    """

    outcome: LeaseOutcome
    cause: str
    at: float
    tenant: str = ""
    unasked: bool = False


def idle_cause(limit: float) -> str:
    """Return why a lease was released after `limit` seconds without a call."""
    return f"no call had run on it for {limit:g} s, its idle limit"


class LeaseLimitReached(Exception):
    """The worker, the server on it, or the tenant is at its limit of leases.

    Attributes:
        tenant_full: Whether the tenant is at its limit.
    """

    def __init__(self, message: str, *, tenant_full: bool = False) -> None:
        super().__init__(message)
        self.tenant_full = tenant_full


class LeaseTable:
    """All leases of one run of a worker.

    Args:
        incarnation: The run's random id; lease ids begin with it.
        capacity: The limit of held leases.
    """

    def __init__(self, incarnation: str, capacity: int = bounds.MAX_LEASES) -> None:
        self._incarnation = incarnation
        self._capacity = capacity
        self._counter = 0
        self._leases: dict[str, WorkerLease] = {}
        self._by_key: dict[LeaseKey, WorkerLease] = {}
        self._per_server: Counter[str] = Counter()
        self._per_tenant: Counter[str] = Counter()
        self._ended: OrderedDict[str, EndedLease] = OrderedDict()
        self._expected_tick: float | None = None

    def __len__(self) -> int:
        return len(self._leases)

    @property
    def leases(self) -> tuple[WorkerLease, ...]:
        """The held leases, the oldest first."""
        return tuple(self._leases.values())

    def get(self, lease_id: str) -> WorkerLease | None:
        return self._leases.get(lease_id)

    def find(self, key: LeaseKey) -> WorkerLease | None:
        return self._by_key.get(key)

    def acquire(  # noqa: PLR0913 - the fields of a lease
        self,
        key: LeaseKey,
        now: float,
        *,
        variant: VariantKey,
        launch_hash: str,
        ttl: float = bounds.LEASE_TTL,
        agent: str = "",
        user: str = "",
        holder: str = "",
        acquirer: str = "",
        server_limit: int = bounds.MAX_INSTANCES,
        tenant_limit: int = bounds.MAX_TENANT_LEASES,
    ) -> tuple[WorkerLease, bool]:
        """Return the lease of a key, renewed or new, and whether it is new.

        Args:
            key: The session and server.
            now: The time.
            variant: The variant that a new lease's instance is started from.
            launch_hash: The version of that variant.
            ttl: The requested time to live in seconds, within its bounds (`check_lease_ttl`). A
                held lease keeps the longest requested time.
            agent: The agent that acquires it.
            user: The user whose login its instance uses, or empty.
            holder: As of a lease.
            acquirer: The name of the client.
            server_limit: The limit of leases of this server.
            tenant_limit: The limit of leases of this tenant.

        Raises:
            LeaseLimitReached: A new lease would exceed a limit.
        """
        lease = self._by_key.get(key)
        if lease is not None:
            lease.ttl = max(lease.ttl, ttl)
            lease.expires_at = now + lease.ttl
            self.add_client(lease, acquirer)
            return lease, False
        self._check_limits(key, server_limit, tenant_limit)
        self._counter += 1
        lease = WorkerLease(
            id=f"{self._incarnation}-{self._counter}",
            key=key,
            agent=agent,
            acquirer=acquirer,
            variant=variant,
            launch_hash=launch_hash,
            ttl=ttl,
            granted_at=now,
            expires_at=now + ttl,
            user=user,
            holder=holder,
        )
        self.add_client(lease, acquirer)
        self._leases[lease.id] = self._by_key[key] = lease
        self._per_server[key.server_id] += 1
        self._per_tenant[key.tenant] += 1
        return lease, True

    def _check_limits(self, key: LeaseKey, server_limit: int, tenant_limit: int) -> None:
        if len(self._leases) >= self._capacity:
            raise LeaseLimitReached(f"this worker holds {self._capacity} leases, its limit")
        if self._per_server[key.server_id] >= server_limit:
            raise LeaseLimitReached(
                f"this worker holds {server_limit} leases of server {key.server_id}, its limit "
                "(max_instances, or leases in quota)"
            )
        tenant_limit = min(tenant_limit, bounds.MAX_TENANT_LEASES)
        if self._per_tenant[key.tenant] >= tenant_limit:
            raise LeaseLimitReached(
                f"tenant {key.tenant} holds {tenant_limit} leases on this worker, its limit",
                tenant_full=True,
            )

    @property
    def held_by_tenants(self) -> Mapping[str, int]:
        """The number of leases of each tenant that holds any."""
        return self._per_tenant

    def renew(self, lease_id: str, now: float, *, by_session: bool = False) -> WorkerLease | None:
        """Renew a lease for its time to live; return None if it is not held."""
        lease = self._leases.get(lease_id)
        if lease is not None:
            lease.expires_at = now + lease.ttl
            lease.renewed_by_session = lease.renewed_by_session or by_session
        return lease

    def add_client(self, lease: WorkerLease, client: str) -> None:
        """Record that a client uses a lease; an empty name is an unknown client."""
        if client and client not in lease.clients:
            lease.clients.add(client if len(lease.clients) < _MAX_CLIENTS else "")

    def leave(
        self, lease: WorkerLease, client: str, now: float, *, keep: float, idle: float
    ) -> bool:
        """Record that a client no longer uses a lease; return whether to release it.

        Args:
            lease: The lease.
            client: The client's name.
            now: The time.
            keep: Seconds without a call for which to keep the lease, within its bounds
                (`check_kept`); 0 if the client needs none.
            idle: Seconds since the last call.
        """
        is_known = bool(client) and client in lease.clients
        lease.clients.discard(client)
        if keep:
            lease.idle_limit = max(lease.idle_limit, keep)
            lease.kept_until = max(lease.kept_until, now - idle + lease.idle_limit)
        return is_known and not lease.clients and now >= lease.kept_until

    def set_started(self, lease: WorkerLease) -> None:
        """Record that the lease's instance has started."""
        lease.has_started = True

    def start_call(self, lease: WorkerLease, now: float) -> None:
        """Count a call in flight; the lease does not expire before the call ends."""
        lease.calls += 1
        lease.expires_at = now + lease.ttl

    def end_call(self, lease: WorkerLease, now: float) -> bool:
        """Count an ended call; return whether the lease is due and has no other call."""
        lease.calls -= 1
        lease.expires_at = now + lease.ttl
        if lease.idle_limit:
            lease.kept_until = now + lease.idle_limit
        return lease.calls == 0 and lease.id in self._leases and lease.is_due(now)

    def schedule_end(self, lease: WorkerLease, at: float, cause: str) -> None:
        """Revoke a lease at a time, or once its calls have ended; the earliest time wins."""
        if lease.ends_by is None or at < lease.ends_by:
            lease.ends_by, lease.end_cause = at, cause

    def set_launch_hash(self, lease: WorkerLease, launch_hash: str) -> None:
        """Record the version of the server that the lease's instance was started from."""
        lease.launch_hash = launch_hash

    def cancel_scheduled_end(self, lease: WorkerLease) -> None:
        """Keep a lease: the configuration that its instance runs is current again."""
        lease.ends_by, lease.end_cause = None, ""

    def end(
        self, lease_id: str, outcome: LeaseOutcome, now: float, cause: str = ""
    ) -> WorkerLease | None:
        """End a lease now, also with calls in flight; return None if it is not held."""
        lease = self._leases.pop(lease_id, None)
        if lease is None:
            return None
        del self._by_key[lease.key]
        for counts, name in (
            (self._per_server, lease.key.server_id),
            (self._per_tenant, lease.key.tenant),
        ):
            counts[name] -= 1
            if not counts[name]:
                del counts[name]
        self._drop_old_records(now)
        unasked = lease.has_started and (outcome != "released" or bool(cause))
        self._ended[lease_id] = EndedLease(
            outcome=outcome, cause=cause, at=now, tenant=lease.key.tenant, unasked=unasked
        )
        return lease

    def _drop_old_records(self, now: float) -> None:
        while self._ended:
            oldest = next(iter(self._ended.values()))
            if len(self._ended) < _MAX_ENDED and now - oldest.at < bounds.LEASE_MEMORY:
                return
            self._ended.popitem(last=False)

    def find_ended(self, lease_id: str, now: float, tenant: str = "") -> EndedLease | None:
        """Return the record of an ended lease, or None: it counts as lost.

        Args:
            lease_id: The lease.
            now: The time.
            tenant: The caller's tenant, which sees no lease of another tenant; empty sees all.
        """
        ended = self._ended.get(lease_id)
        if ended is None or tenant not in ("", ended.tenant):
            return None
        return ended if now - ended.at < bounds.LEASE_MEMORY else None

    def next_tick(self, now: float) -> float | None:
        """Return when to run `tick` next, or None if no lease is held."""
        self._forgive_stall(now)
        deadlines = [
            lease.lapses_at if lease.ends_by is None else min(lease.lapses_at, lease.ends_by)
            for lease in self._leases.values()
            if not lease.calls
        ]
        if self._leases:
            soonest = min([*deadlines, now + _MAX_TICK_INTERVAL])
            self._expected_tick = max(now, soonest)
        return self._expected_tick

    def tick(self, now: float) -> list[tuple[WorkerLease, EndedLease]]:
        """End the leases that are due and have no call in flight, and return their records.

        After a stall no lease expires for a third of its time to live: renewals may still be in
        transit.
        """
        self._forgive_stall(now)
        ended: list[tuple[WorkerLease, EndedLease]] = []
        for lease in tuple(self._leases.values()):
            if lease.calls or not lease.is_due(now):
                continue
            if now >= lease.lapses_at:
                if lease.kept_until > lease.expires_at:
                    self.end(lease.id, "released", now, idle_cause(lease.idle_limit))
                else:
                    self.end(lease.id, "expired", now)
            else:
                self.end(lease.id, "revoked", now, lease.end_cause)
            ended.append((lease, self._ended[lease.id]))
        return ended

    def _forgive_stall(self, now: float) -> None:
        # Also called by `next_tick`: a new deadline may replace the late tick before it runs.
        expected, self._expected_tick = self._expected_tick, None
        if expected is not None and now - expected > _STALL:
            for lease in self._leases.values():
                lease.expires_at = max(lease.expires_at, now + lease.ttl * _GRACE)
