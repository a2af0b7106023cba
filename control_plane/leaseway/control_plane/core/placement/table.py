"""Which worker is to hold a lease: reservations and what workers report (DESIGN §5).

The control plane reserves, the worker grants. A reservation counts a unit of the worker's
capacity until the lease is reported or 10 s have passed. Here twins are noticed, two leases for one
session and server; `core/workers/roster.py` has the younger revoked.

A fleet of hundreds is not sorted, nor walked, for each lease: workers with room are kept in order,
the least loaded first. A change of one worker's load moves that worker, and who chooses begins at
the front and mostly ends there.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from math import inf, nextafter
from typing import Protocol

from leaseway.wire import bounds

_MOST_FENCED = 16_384
"""Lost leases that are remembered, until their worker is back and ends them."""


class LoadOrder:
    """Who has room, by load and then by id. Its owner is the placement table."""

    def __init__(self) -> None:
        self._order: list[tuple[int, str]] = []
        self._capacity: dict[str, int] = {}
        self._load: dict[str, int] = {}  # of those in the order

    def __iter__(self) -> Iterator[str]:
        return (worker_id for _, worker_id in self._order)

    def __contains__(self, worker_id: str) -> bool:
        return worker_id in self._load

    def capacity(self, worker_id: str) -> int:
        """Return the number of leases that a worker takes; 0 for one that has not joined."""
        return self._capacity.get(worker_id, 0)

    def set_capacity(self, worker_id: str, capacity: int, load: int) -> None:
        """Register a worker, or take its new capacity."""
        self._capacity[worker_id] = capacity
        self.set_load(worker_id, load)

    def remove(self, worker_id: str) -> None:
        """Forget a worker; an unknown one is no error."""
        self._capacity.pop(worker_id, None)
        self._remove_from_order(worker_id)

    def set_load(self, worker_id: str, load: int) -> None:
        """Record a worker's new load; one that has not joined stays out."""
        self._remove_from_order(worker_id)
        if load < self._capacity.get(worker_id, 0):
            self._load[worker_id] = load
            insort(self._order, (load, worker_id))

    def _remove_from_order(self, worker_id: str) -> None:
        load = self._load.pop(worker_id, None)
        if load is not None:
            del self._order[bisect_left(self._order, (load, worker_id))]


@dataclass(frozen=True, order=True)
class PlacementKey:
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
    key: PlacementKey
    worker_id: str
    granted_at: float
    agent: str = ""
    ttl: float = bounds.LEASE_TTL
    launch_hash: str = ""
    instance_id: str = ""


class Eligible(Protocol):
    """Which workers a lease may go to, apart from whether they have room.

    Asked of few workers: max_leases leases go to the first one that is looked at.
    """

    @property
    def max_leases(self) -> int:
        """How many leases of the server in question a worker may have."""

    @property
    def spares(self) -> Collection[str]:
        """Which workers have a client of the server that is up and waits for a lease."""

    def accepts(self, worker_id: str) -> bool:
        """Return whether a worker could hold the lease."""

    def keeps_leases(self, worker_id: str) -> bool:
        """Return whether leases that a worker has reported stand, as they do where it takes more.

        They may where it does not: a holder that is behind still holds.
        """

    def is_suspect(self, worker_id: str) -> bool:
        """Return whether a worker is one to turn to only where there is no other with room."""


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
    _by_key: dict[PlacementKey, list[HeldLease]] = field(default_factory=dict)  # oldest first
    _reserved: dict[PlacementKey, _Reservation] = field(default_factory=dict)
    _held: dict[str, dict[str, HeldLease]] = field(default_factory=dict)  # by worker and lease id
    _booked: dict[str, int] = field(default_factory=dict)
    _servers: dict[tuple[str, str], int] = field(default_factory=dict)  # by worker and server
    _sessions: dict[tuple[str, str], dict[str, int]] = field(default_factory=dict)
    _tenants: dict[str, int] = field(default_factory=dict)
    _unused: dict[str, int] = field(default_factory=dict)  # reservations, by tenant
    _unanswered: dict[str, float] = field(default_factory=dict)
    _available: LoadOrder = field(default_factory=LoadOrder)
    _fenced: dict[str, PlacementKey] = field(default_factory=dict)  # by lease id, the oldest first
    _ending: dict[PlacementKey, list[HeldLease]] = field(
        default_factory=dict
    )  # fenced and reported
    _placed: set[str] = field(default_factory=set)  # ids of leases for which room was reserved

    def has_lease(self, key: PlacementKey) -> bool:
        return key in self._by_key

    def leases_of(self, key: PlacementKey) -> tuple[HeldLease, ...]:
        """Return the leases of a key, the oldest first."""
        return tuple(self._by_key.get(key, ()))

    def workers_of(self, key: PlacementKey) -> list[str]:
        """Return the workers that hold leases of a key, the oldest first, or have room reserved."""
        held = [lease.worker_id for lease in self._by_key.get(key, ())]
        booked = self._reserved.get(key)
        return held if booked is None else [*held, booked.worker_id]

    def find_active(self, key: PlacementKey, stands: Callable[[str], bool]) -> HeldLease | None:
        """Return the oldest lease of a key whose worker's leases stand."""
        return next((one for one in self._by_key.get(key, ()) if stands(one.worker_id)), None)

    def fence(self, lease_id: str, key: PlacementKey) -> HeldLease | None:
        """Remove a lease whose holder was told that it is lost; return it.

        One that is reported later is fenced, too; then None is returned now.
        """
        self._fenced[lease_id] = key
        if len(self._fenced) > _MOST_FENCED:
            del self._fenced[next(iter(self._fenced))]
        lease = self.leases.get(lease_id)
        if lease is None or lease.key != key or lease in self._ending.get(key, ()):
            return None
        self._hide(lease)
        self._ending.setdefault(key, []).append(lease)
        return lease

    def is_fenced(self, lease: HeldLease) -> bool:
        """Return whether the holder of a lease was told that it is lost."""
        return self._fenced.get(lease.id) == lease.key

    def workers_ending(self, key: PlacementKey) -> list[str]:
        """Return the workers that are still to end a fenced lease of a key."""
        return [lease.worker_id for lease in self._ending.get(key, ())]

    def is_superseded(self, lease: HeldLease, since: float) -> bool:
        """Return whether a lease's key has been given to another worker since a time."""
        booked = self._reserved.get(lease.key)
        if booked is not None and booked.worker_id != lease.worker_id:
            return True
        return any(
            other.worker_id != lease.worker_id and other.granted_at > since
            for other in self._by_key.get(lease.key, ())
        )

    def load(self, worker_id: str) -> int:
        return self.held_count(worker_id) + self._booked.get(worker_id, 0)

    def capacity(self, worker_id: str) -> int:
        return self._available.capacity(worker_id)

    def server_load(self, worker_id: str, server_id: str) -> int:
        """Return the units of a worker that leases of one server take."""
        return self._servers.get((worker_id, server_id), 0)

    def tenant_load(self, tenant: str) -> int:
        """Return how many leases a tenant has, reserved ones included."""
        return self._tenants.get(tenant, 0)

    def is_tenant_full(self, tenant: str) -> bool:
        """Return whether a tenant has as many leases, reserved ones included, as it may."""
        return self._tenants.get(tenant, 0) >= bounds.MAX_TENANT_LEASES

    def held_count(self, worker_id: str) -> int:
        """Return how many leases a worker has reported."""
        return len(self._held.get(worker_id, ()))

    def unanswered_since(self, worker_id: str) -> float | None:
        """Return when a worker was first chosen since it last said anything; None: it was not."""
        return self._unanswered.get(worker_id)

    def record_contact(self, worker_id: str) -> None:
        self._unanswered.pop(worker_id, None)

    def add_worker(self, worker_id: str, capacity: int) -> None:
        """Register a worker that leases may be placed on, with the units that it has."""
        self.record_contact(worker_id)
        self._available.set_capacity(worker_id, capacity, self.load(worker_id))

    def place(
        self, key: PlacementKey, eligible: Eligible, excluded: Collection[str], now: float
    ) -> Placement | None:
        """Choose a worker and reserve a unit of it; None where there is no room.

        There is none where every worker is full, or where the tenant has all that it may. A unit
        that a tenant with more reservations has not used yet goes to the one that asks: a worker
        grants what it has room for, so whoever loses a reservation loses nothing but its turn.

        Args:
            key: What the lease is found by.
            eligible: Which workers could hold it.
            excluded: Workers that refused or could not be reached.
            now: When, on the control plane's monotonic clock.
        """
        self.expire(now)
        for lease in self._by_key.get(key, ()):
            if lease.worker_id not in excluded and eligible.keeps_leases(lease.worker_id):
                return Placement(lease.worker_id, lease.id)
        booked = self._reserved.get(key)
        if booked is not None:
            if booked.worker_id not in excluded and eligible.accepts(booked.worker_id):
                self._reserved[key] = self._reserved.pop(key).renewed(now)
                return Placement(booked.worker_id)
            self._cancel(key)
        if self.is_tenant_full(key.tenant):
            return None
        chosen = self._choose(key, eligible, excluded) or self._displace(key, eligible, excluded)
        if chosen is None:
            return None
        self._reserved[key] = _Reservation(chosen, now + bounds.RESERVATION)
        self._booked[chosen] = self._booked.get(chosen, 0) + 1
        self._unused[key.tenant] = self._unused.get(key.tenant, 0) + 1
        self._unanswered.setdefault(chosen, now)
        self._count(key, chosen, 1)
        return Placement(chosen)

    def add_lease(self, lease: HeldLease) -> tuple[HeldLease, ...]:
        """Record a reported lease; where it has a twin, return all with its key, oldest first.

        An id that another worker holds stays that worker's. A lease that nobody placed is younger
        than those of its key that were placed on other workers, whatever its worker says.
        """
        known = self.leases.get(lease.id)
        if known is not None and known.worker_id != lease.worker_id:
            return ()
        is_placed = lease.id in self._placed
        self.remove_lease(lease.id)
        booked = self._reserved.get(lease.key)
        if booked is not None and booked.worker_id == lease.worker_id:
            self._cancel(lease.key)
            is_placed = True
        if is_placed:
            self._placed.add(lease.id)
        else:
            lease = self._after_placed(lease)
        self.leases[lease.id] = lease
        self._held.setdefault(lease.worker_id, {})[lease.id] = lease
        self._count(lease.key, lease.worker_id, 1)
        if self.is_fenced(lease):
            self._ending.setdefault(lease.key, []).append(lease)
            return ()
        held = self._by_key.setdefault(lease.key, [])
        held.append(lease)
        held.sort(key=lambda one: (one.granted_at, one.id))
        return tuple(held) if len(held) > 1 else ()

    def _after_placed(self, lease: HeldLease) -> HeldLease:
        others = self._by_key.get(lease.key, ())
        latest = max((one.granted_at for one in others if one.id in self._placed), default=None)
        if latest is None or lease.granted_at > latest:
            return lease
        return replace(lease, granted_at=nextafter(latest, inf))

    def remove_lease(self, lease_id: str, worker_id: str | None = None) -> None:
        """Forget a lease that has ended; an unknown one, or one of another worker, is no error."""
        lease = self.leases.get(lease_id)
        if lease is None or worker_id not in (None, lease.worker_id):
            return
        del self.leases[lease_id]
        self._placed.discard(lease_id)
        mine = self._held[lease.worker_id]
        del mine[lease_id]
        if not mine:
            del self._held[lease.worker_id]
        self._count(lease.key, lease.worker_id, -1)
        self._hide(lease)

    def _hide(self, lease: HeldLease) -> None:
        for known in (self._by_key, self._ending):
            held = known.get(lease.key, [])
            if lease in held:
                held.remove(lease)
                if not held:
                    del known[lease.key]

    def remove_worker(self, worker_id: str) -> None:
        """Forget everything about a worker that is lost."""
        for lease_id in list(self._held.get(worker_id, ())):
            self.remove_lease(lease_id)
        for key in [k for k, booked in self._reserved.items() if booked.worker_id == worker_id]:
            self._cancel(key)
        self._available.remove(worker_id)
        self.record_contact(worker_id)

    def replace_leases(
        self, worker_id: str, leases: Iterable[HeldLease]
    ) -> list[tuple[HeldLease, ...]]:
        """Record a worker's report of all that it holds; return the twins, as `gained` does."""
        reported = {lease.id: lease for lease in leases}
        for lease_id in [one for one in self._held.get(worker_id, ()) if one not in reported]:
            self.remove_lease(lease_id)
        found = [self.add_lease(lease) for lease in reported.values()]
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

    def _choose(
        self, key: PlacementKey, eligible: Eligible, excluded: Collection[str]
    ) -> str | None:
        """Return the session's worker, else the least loaded; suspect ones only after all others.

        Only workers with room are looked at, in that order, up to the first that will do. Of those
        as little loaded as that one, it is one that has a spare.
        """

        def will_do(worker_id: str) -> bool:
            if worker_id in excluded or not eligible.accepts(worker_id):
                return False
            return self.server_load(worker_id, key.server_id) < eligible.max_leases

        mine = list(self._preferred(key))
        second_best = None
        for worker_id in chain(mine, self._available):
            if not will_do(worker_id):
                continue
            if eligible.is_suspect(worker_id):
                second_best = second_best or worker_id
                continue
            if worker_id in mine or worker_id in eligible.spares:
                return worker_id
            load = self.load(worker_id)
            equals = (one for one in eligible.spares if one in self._available)
            ready = (one for one in equals if self.load(one) == load and will_do(one))
            return min((one for one in ready if not eligible.is_suspect(one)), default=worker_id)
        return second_best

    def _displace(
        self, key: PlacementKey, eligible: Eligible, excluded: Collection[str]
    ) -> str | None:
        """Cancel a reservation of a tenant with more of them; return its worker, or None."""
        fair = self._unused.get(key.tenant, 0) + 1
        greedy = {tenant for tenant, count in self._unused.items() if count > fair}
        if not greedy:
            return None
        for other, booked in self._reserved.items():
            worker_id = booked.worker_id
            if other.tenant not in greedy or worker_id in excluded:
                continue
            of_server = self.server_load(worker_id, key.server_id) - (
                other.server_id == key.server_id
            )
            has_room = of_server < eligible.max_leases and self.load(worker_id) <= self.capacity(
                worker_id
            )
            if has_room and eligible.accepts(worker_id):
                self._cancel(other)
                return worker_id
        return None

    def _preferred(self, key: PlacementKey) -> Iterator[str]:
        """Yield the workers with room that the session has leases on, the least loaded first."""
        mine = self._sessions.get((key.tenant, key.session), ())
        roomy = [(self.load(one), one) for one in mine if one in self._available]
        return (worker_id for _, worker_id in sorted(roomy))

    def _cancel(self, key: PlacementKey) -> None:
        booked = self._reserved.pop(key)
        self._booked[booked.worker_id] -= 1
        if not self._booked[booked.worker_id]:
            del self._booked[booked.worker_id]
        self._unused[key.tenant] -= 1
        if not self._unused[key.tenant]:
            del self._unused[key.tenant]
        self._count(key, booked.worker_id, -1)

    def _count(self, key: PlacementKey, worker_id: str, step: int) -> None:
        self._available.set_load(worker_id, self.load(worker_id))
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
