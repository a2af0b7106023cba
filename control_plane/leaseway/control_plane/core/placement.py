"""Which worker is to hold a lease: reservations and what workers report (DESIGN §5).

The control plane reserves, the worker grants. A reservation counts a unit of the worker's
capacity until the lease is reported or 10 s have passed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from leaseway.wire import bounds

__all__ = ["Candidate", "HeldLease", "LeaseKey", "Placement", "PlacementTable"]


@dataclass(frozen=True, order=True)
class LeaseKey:
    """What a lease is found by."""

    tenant: str
    session: str
    server_id: str


@dataclass(frozen=True)
class HeldLease:
    """A lease as its worker reported it.

    Attributes:
        granted_at: When it was granted, on the control plane's monotonic clock.
    """

    id: str
    key: LeaseKey
    worker_id: str
    granted_at: float
    agent: str = ""
    ttl: float = bounds.LEASE_TTL
    launch_hash: str = ""
    instance_id: str = ""


@dataclass(frozen=True)
class Candidate:
    """A worker that could hold the lease.

    Attributes:
        capacity: The most leases that it takes.
        most: The most of them that may be of the server in question.
    """

    worker_id: str
    capacity: int
    most: int = bounds.MAX_INSTANCES


@dataclass(frozen=True)
class Placement:
    """Where to ask, and the lease that is held there already (or None)."""

    worker_id: str
    lease_id: str | None = None


@dataclass(frozen=True)
class _Reservation:
    worker_id: str
    until: float

    def renewed(self, now: float) -> _Reservation:
        return _Reservation(self.worker_id, now + bounds.RESERVATION)


@dataclass
class PlacementTable:
    """Leases and reservations. Its owner is the coordinator."""

    leases: dict[str, HeldLease] = field(default_factory=dict)
    _by_key: dict[LeaseKey, list[HeldLease]] = field(default_factory=dict)  # oldest first
    _reserved: dict[LeaseKey, _Reservation] = field(default_factory=dict)
    _held: dict[str, int] = field(default_factory=dict)
    _booked: dict[str, int] = field(default_factory=dict)
    _servers: dict[tuple[str, str], int] = field(default_factory=dict)  # by worker and server
    _sessions: dict[tuple[str, str], dict[str, int]] = field(default_factory=dict)
    _tenants: dict[str, int] = field(default_factory=dict)

    def knows(self, key: LeaseKey) -> bool:
        """Say whether a worker has reported a lease for the key."""
        return key in self._by_key

    def standing(self, key: LeaseKey, workers: Collection[str]) -> HeldLease | None:
        """Return the oldest lease of a key that one of these workers has reported."""
        held = (lease for lease in self._by_key.get(key, ()) if lease.worker_id in workers)
        return next(held, None)

    def load(self, worker_id: str) -> int:
        """Return the units of a worker that are taken."""
        return self._held.get(worker_id, 0) + self._booked.get(worker_id, 0)

    def load_of(self, worker_id: str, server_id: str) -> int:
        """Return the units of a worker that leases of one server take."""
        return self._servers.get((worker_id, server_id), 0)

    def has_all(self, tenant: str) -> bool:
        """Say whether a tenant has as many leases, reserved ones included, as it may."""
        return self._tenants.get(tenant, 0) >= bounds.MAX_TENANT_LEASES

    def held_by(self, worker_id: str) -> int:
        """Return how many leases a worker has reported."""
        return self._held.get(worker_id, 0)

    def place(
        self,
        key: LeaseKey,
        candidates: Sequence[Candidate],
        excluded: Iterable[str],
        now: float,
        holding: Collection[str] = (),
    ) -> Placement | None:
        """Choose a worker and reserve a unit of it; None where there is no room.

        There is none where every candidate is full, or where the tenant has all that it may.

        Args:
            key: What the lease is found by.
            candidates: Workers that could hold it.
            excluded: Workers that refused or could not be reached.
            now: When, on the control plane's monotonic clock.
            holding: Workers whose leases stand, candidates or not: a holder that is behind with
                the registry still holds.
        """
        self.expire(now)
        avoid = set(excluded)
        free = {c.worker_id: c for c in candidates if c.worker_id not in avoid}
        for lease in self._by_key.get(key, ()):
            if lease.worker_id in free or (
                lease.worker_id in holding and lease.worker_id not in avoid
            ):
                return Placement(lease.worker_id, lease.id)
        booked = self._reserved.get(key)
        if booked is not None:
            if booked.worker_id in free:
                self._reserved[key] = self._reserved.pop(key).renewed(now)
                return Placement(booked.worker_id)
            self._cancel(key)
        chosen = None if self.has_all(key.tenant) else self._choose(key, free)
        if chosen is None:
            return None
        self._reserved[key] = _Reservation(chosen, now + bounds.RESERVATION)
        self._booked[chosen] = self._booked.get(chosen, 0) + 1
        self._count(key, chosen, 1)
        return Placement(chosen)

    def gained(self, lease: HeldLease) -> tuple[HeldLease, ...]:
        """Take a reported lease; return all with its key where it has a twin, the oldest first."""
        self.lost(lease.id)
        booked = self._reserved.get(lease.key)
        if booked is not None and booked.worker_id == lease.worker_id:
            self._cancel(lease.key)
        self.leases[lease.id] = lease
        self._held[lease.worker_id] = self._held.get(lease.worker_id, 0) + 1
        self._count(lease.key, lease.worker_id, 1)
        held = self._by_key.setdefault(lease.key, [])
        held.append(lease)
        held.sort(key=lambda one: (one.granted_at, one.id))
        return tuple(held) if len(held) > 1 else ()

    def lost(self, lease_id: str) -> None:
        """Forget a lease that has ended; an unknown one is no error."""
        lease = self.leases.pop(lease_id, None)
        if lease is None:
            return
        self._take(self._held, lease.worker_id)
        self._count(lease.key, lease.worker_id, -1)
        held = self._by_key[lease.key]
        held.remove(lease)
        if not held:
            del self._by_key[lease.key]

    def worker_gone(self, worker_id: str) -> None:
        """Forget everything about a worker that is lost."""
        for lease_id in [held.id for held in self.leases.values() if held.worker_id == worker_id]:
            self.lost(lease_id)
        for key in [k for k, booked in self._reserved.items() if booked.worker_id == worker_id]:
            self._cancel(key)

    def replace_worker(
        self, worker_id: str, leases: Iterable[HeldLease]
    ) -> list[tuple[HeldLease, ...]]:
        """Take a worker's word on all that it holds; return the twins, as `gained` does."""
        reported = {lease.id: lease for lease in leases}
        for held in [held for held in self.leases.values() if held.worker_id == worker_id]:
            if held.id not in reported:
                self.lost(held.id)
        found = [self.gained(lease) for lease in reported.values()]
        return [twins for twins in found if twins]

    def expire(self, now: float) -> None:
        """Drop reservations that nobody used."""
        while self._reserved:
            key = next(iter(self._reserved))  # the dict is in the order of their ends
            if self._reserved[key].until > now:
                break
            self._cancel(key)

    def next_expiry(self) -> float | None:
        """Return when the next reservation ends by itself; None without any."""
        first = next(iter(self._reserved.values()), None)
        return None if first is None else first.until

    def _choose(self, key: LeaseKey, free: Mapping[str, Candidate]) -> str | None:
        roomy = [
            c
            for c in free.values()
            if self.load(c.worker_id) < c.capacity
            and self.load_of(c.worker_id, key.server_id) < c.most
        ]
        if not roomy:
            return None
        mine = self._sessions.get((key.tenant, key.session), {})
        return min(
            roomy, key=lambda c: (c.worker_id not in mine, self.load(c.worker_id), c.worker_id)
        ).worker_id

    def _cancel(self, key: LeaseKey) -> None:
        booked = self._reserved.pop(key)
        self._take(self._booked, booked.worker_id)
        self._count(key, booked.worker_id, -1)

    def _count(self, key: LeaseKey, worker_id: str, step: int) -> None:
        server = (worker_id, key.server_id)
        self._servers[server] = self._servers.get(server, 0) + step
        if not self._servers[server]:
            del self._servers[server]
        session = (key.tenant, key.session)
        workers = self._sessions.setdefault(session, {})
        workers[worker_id] = workers.get(worker_id, 0) + step
        if workers[worker_id] <= 0:
            del workers[worker_id]
        if not workers:
            del self._sessions[session]
        self._tenants[key.tenant] = self._tenants.get(key.tenant, 0) + step
        if not self._tenants[key.tenant]:
            del self._tenants[key.tenant]

    @staticmethod
    def _take(counts: dict[str, int], worker_id: str) -> None:
        counts[worker_id] -= 1
        if not counts[worker_id]:
            del counts[worker_id]
