"""Which leases a worker holds, until when, and how the others ended (DESIGN §5).

Pure: every method takes `now`, seconds on a monotonic clock, and no method waits. The caller
runs `tick` when `next_tick` says so, and closes the instance of each lease that is returned as
ended.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from leaseway.spec.model import VariantKey
from leaseway.wire import bounds

LeaseOutcome = Literal["expired", "revoked", "released", "lost"]

_MOST_REMEMBERED: Final = 10_000
_STALL: Final = 1.0
"""A tick that is later than this means that the whole process stood still."""
_LONGEST_PAUSE: Final = 0.5
"""Between ticks, so that a stall is noticed before the first lease expires because of it."""
_GRACE: Final = 1 / 3
"""The part of a time to live that renewals get to arrive after a stall."""


@dataclass(frozen=True, slots=True)
class WorkerLeaseKey:
    """Whose lease for what; there is one lease a key."""

    tenant: str
    session: str
    server_id: str


@dataclass(slots=True)
class WorkerLease:
    """One lease; written by its table only.

    Attributes:
        id: The worker's incarnation and a counter.
        key: Whose it is, for what.
        agent: Who took it.
        acquirer: How the client that took it calls itself, or empty.
        variant: Which variant its instance was made from.
        launch_hash: From which version of it.
        ttl: The time to live granted, in seconds.
        granted_at: When it was granted.
        expires_at: When it ends unless it is renewed or has a call in flight.
        calls: Calls in flight.
        ends_by: From when on it ends as soon as no call is in flight, or None.
        why: Why it ends then, in a sentence.
        renewed_by_session: Whether a renewal has named its session; since then only such do.
    """

    id: str
    key: WorkerLeaseKey
    agent: str
    acquirer: str
    variant: VariantKey
    launch_hash: str
    ttl: float
    granted_at: float
    expires_at: float
    calls: int = 0
    ends_by: float | None = None
    why: str = ""
    renewed_by_session: bool = False

    def is_due(self, now: float) -> bool:
        """Return whether nothing but a call in flight can keep it."""
        return now >= self.expires_at or (self.ends_by is not None and now >= self.ends_by)


@dataclass(frozen=True, slots=True)
class EndedLease:
    """How a lease ended.

    Attributes:
        how: In one word.
        why: In a sentence; empty where the word says all.
        at: When.
        tenant: Whose it was.
    """

    how: LeaseOutcome
    why: str
    at: float
    tenant: str = ""


class LeaseLimitReached(Exception):
    """The worker, the server on it or the tenant has as many leases as it may; the text says which.

    Attributes:
        everywhere: Whether no other server or tenant has room either.
        of_tenant: Whether it is the tenant that has as many as it may.
        of_line: Whether too many wait for room already, most of them of its tenant.
    """

    def __init__(self, why: str, *, everywhere: bool = False, of_tenant: bool = False) -> None:
        super().__init__(why)
        self.everywhere = everywhere
        self.of_tenant = of_tenant
        self.of_line = False


class LeaseTable:
    """All leases of one run of a worker.

    Args:
        incarnation: The run's random id; lease ids begin with it.
        capacity: The most leases held at once.
    """

    def __init__(self, incarnation: str, capacity: int = bounds.MAX_LEASES) -> None:
        self._incarnation = incarnation
        self._capacity = capacity
        self._counter = 0
        self._leases: dict[str, WorkerLease] = {}
        self._by_key: dict[WorkerLeaseKey, WorkerLease] = {}
        self._per_server: Counter[str] = Counter()
        self._per_tenant: Counter[str] = Counter()
        self._ended: OrderedDict[str, EndedLease] = OrderedDict()
        self._expected_tick: float | None = None

    def __len__(self) -> int:
        return len(self._leases)

    @property
    def leases(self) -> tuple[WorkerLease, ...]:
        """The leases held, the oldest first."""
        return tuple(self._leases.values())

    def get(self, lease_id: str) -> WorkerLease | None:
        return self._leases.get(lease_id)

    def find(self, key: WorkerLeaseKey) -> WorkerLease | None:
        return self._by_key.get(key)

    def acquire(
        self,
        key: WorkerLeaseKey,
        now: float,
        *,
        variant: VariantKey,
        launch_hash: str,
        ttl: float | None = None,
        agent: str = "",
        acquirer: str = "",
        server_limit: int = bounds.MAX_INSTANCES,
        tenant_limit: int = bounds.MAX_TENANT_LEASES,
    ) -> tuple[WorkerLease, bool]:
        """Return the lease of a key, renewed or new, and whether it is new.

        Args:
            key: Whose lease for what.
            now: The time.
            variant: What a new lease's instance is made from.
            launch_hash: The version of it.
            ttl: The time to live asked for in seconds, brought into 1 s to 24 h; None is 60 s. A
                lease that is held keeps the longest that was asked for.
            agent: Who asks.
            acquirer: How its client calls itself.
            server_limit: The most leases of this server.
            tenant_limit: The most leases of this tenant.

        Raises:
            LeaseLimitReached: There is no room for a new lease.
        """
        ttl = bounds.LEASE_TTL if ttl is None else ttl
        ttl = min(max(ttl, bounds.MIN_LEASE_TTL), bounds.MAX_LEASE_TTL)
        lease = self._by_key.get(key)
        if lease is not None:
            lease.ttl = max(lease.ttl, ttl)
            lease.expires_at = now + lease.ttl
            return lease, False
        self._check_room(key, server_limit, tenant_limit)
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
        )
        self._leases[lease.id] = self._by_key[key] = lease
        self._per_server[key.server_id] += 1
        self._per_tenant[key.tenant] += 1
        return lease, True

    def _check_room(self, key: WorkerLeaseKey, server_limit: int, tenant_limit: int) -> None:
        if len(self._leases) >= self._capacity:
            raise LeaseLimitReached(
                f"this worker holds {self._capacity} leases, as many as it may", everywhere=True
            )
        if self._per_server[key.server_id] >= server_limit:
            raise LeaseLimitReached(
                f"this worker holds {server_limit} leases of server {key.server_id}, as many as "
                "its max_instances allows"
            )
        most = min(tenant_limit, bounds.MAX_TENANT_LEASES)
        if self._per_tenant[key.tenant] >= most:
            raise LeaseLimitReached(
                f"tenant {key.tenant} holds {most} leases on this worker alone, as many as it may",
                of_tenant=True,
            )

    def held_by(self, tenant: str) -> int:
        """Return how many leases a tenant holds."""
        return self._per_tenant[tenant]

    @property
    def held_by_tenants(self) -> Mapping[str, int]:
        """How many leases each tenant holds that holds any."""
        return self._per_tenant

    def renew(self, lease_id: str, now: float, *, by_session: bool = False) -> WorkerLease | None:
        """Renew a lease for the time to live granted; None where it is not held."""
        lease = self._leases.get(lease_id)
        if lease is not None:
            lease.expires_at = now + lease.ttl
            lease.renewed_by_session = lease.renewed_by_session or by_session
        return lease

    def start_call(self, lease: WorkerLease, now: float) -> None:
        """Note that a call is in flight; the lease does not end before it does."""
        lease.calls += 1
        lease.expires_at = now + lease.ttl

    def end_call(self, lease: WorkerLease, now: float) -> bool:
        """Note that a call ended; say whether the lease is due and nothing keeps it now."""
        lease.calls -= 1
        lease.expires_at = now + lease.ttl
        return lease.calls == 0 and lease.id in self._leases and lease.is_due(now)

    def end_by(self, lease: WorkerLease, at: float, why: str) -> None:
        """Let a lease end as revoked at a time, or when its calls after that are done.

        The earliest time asked for holds.
        """
        if lease.ends_by is None or at < lease.ends_by:
            lease.ends_by, lease.why = at, why

    def made_from(self, lease: WorkerLease, launch_hash: str) -> None:
        """Record which version of its server the instance of a lease was made from."""
        lease.launch_hash = launch_hash

    def cancel_scheduled_end(self, lease: WorkerLease) -> None:
        """Cancel a scheduled end: what the lease stands on is in force again."""
        lease.ends_by, lease.why = None, ""

    def end(
        self, lease_id: str, how: LeaseOutcome, now: float, why: str = ""
    ) -> WorkerLease | None:
        """End a lease now, calls in flight or not; None where it is not held."""
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
        self._forget_old(now)
        self._ended[lease_id] = EndedLease(how, why, now, lease.key.tenant)
        return lease

    def _forget_old(self, now: float) -> None:
        while self._ended:
            oldest = next(iter(self._ended.values()))
            if len(self._ended) < _MOST_REMEMBERED and now - oldest.at < bounds.LEASE_MEMORY:
                return
            self._ended.popitem(last=False)

    def how_ended(self, lease_id: str, now: float, tenant: str = "") -> EndedLease | None:
        """Return how a lease ended, or None where that is not remembered: it counts as lost.

        Args:
            lease_id: The lease.
            now: The time.
            tenant: Who asks, or empty for the worker itself: others' leases never were.
        """
        ended = self._ended.get(lease_id)
        if ended is None or tenant not in ("", ended.tenant):
            return None
        return ended if now - ended.at < bounds.LEASE_MEMORY else None

    def next_tick(self, now: float) -> float | None:
        """Return when `tick` is to run next, or None where no lease is held."""
        self._forgive_stall(now)
        deadlines = [
            lease.expires_at if lease.ends_by is None else min(lease.expires_at, lease.ends_by)
            for lease in self._leases.values()
            if not lease.calls
        ]
        if self._leases:
            soonest = min(deadlines, default=now + _LONGEST_PAUSE)
            self._expected_tick = max(now, min(soonest, now + _LONGEST_PAUSE))
        return self._expected_tick

    def tick(self, now: float) -> list[tuple[WorkerLease, EndedLease]]:
        """End what is due and has no call in flight; return it with how it ended.

        After a stall nothing expires for a third of its time to live: the renewals that would
        have prevented it may still be on their way.
        """
        self._forgive_stall(now)
        ended: list[tuple[WorkerLease, EndedLease]] = []
        for lease in tuple(self._leases.values()):
            if lease.calls or not lease.is_due(now):
                continue
            how: LeaseOutcome = "expired" if now >= lease.expires_at else "revoked"
            self.end(lease.id, how, now, lease.why if how == "revoked" else "")
            ended.append((lease, self._ended[lease.id]))
        return ended

    def _forgive_stall(self, now: float) -> None:
        # Whoever looks first after a stall sees it: the tick that is late may be set anew before
        # it runs.
        expected, self._expected_tick = self._expected_tick, None
        if expected is not None and now - expected > _STALL:
            for lease in self._leases.values():
                lease.expires_at = max(lease.expires_at, now + lease.ttl * _GRACE)
