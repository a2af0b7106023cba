"""Placement of leases on workers: reservations and reported leases (design.md#leases).

The control plane reserves, the worker grants. A reservation counts against the worker's capacity
until the lease is reported, or that a request for it has failed, or 10 s have passed. `add_lease`
detects duplicates, two leases for one session and server; `core/workers/roster.py` revokes the
younger one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from math import inf, nextafter
from operator import attrgetter
from typing import Final, NamedTuple, Protocol, TypeVar

from leaseway.control_plane.core.placement.caller import ANY_CALLER, PlacementCaller
from leaseway.control_plane.core.placement.load_order import LoadOrder
from leaseway.control_plane.core.placement.room import RoomChanges
from leaseway.wire import bounds
from leaseway.wire.names import LeaseKey
from leaseway.wire.sharing.newest import Newest

_Key = TypeVar("_Key")
_AGE: Final = attrgetter("granted_at", "id")
_MAX_CLIENTS: Final = 8
"""Clients of a reservation that are told apart."""
_MAX_FENCED = 16_384
"""Fenced leases to remember until their worker reconnects and ends them."""
_MARGIN: Final = 4
"""Leases that a preferred worker may have more than the least loaded one."""
_MARGIN_SHARE: Final = 8
"""The margin is the lowest load divided by this if that is more: chance spreads sessions so far."""


class HeldLease(NamedTuple):
    """A lease as its worker reported it.

    A tuple, as a fleet reports a hundred thousand at once after a restart: it is made in
    less than half the time of a frozen dataclass.

    Attributes:
        granted_at: When it was granted, on the control plane's monotonic clock.
        user: The tenant's user for whom its server acts, or empty.
        holder: The credential that acquired it, if its server acts for the holder of a token.
    """

    id: str
    key: LeaseKey
    worker_id: str
    granted_at: float
    agent: str = ""
    ttl: float = bounds.LEASE_TTL
    launch_hash: str = ""
    instance_id: str = ""
    user: str = ""
    holder: str = ""


class Eligible(Protocol):
    """Which workers may hold a lease, apart from free capacity.

    Called for few workers per lease: usually the first worker in the order qualifies.
    """

    @property
    def max_leases(self) -> int:
        """Limit of leases of the server per worker."""

    @property
    def spares(self) -> Collection[str]:
        """Workers with a spare instance of the server that the lease can use."""

    def accepts(self, worker_id: str) -> bool:
        """Return whether a worker could hold the lease."""

    def keeps_leases(self, worker_id: str) -> bool:
        """Return whether the leases that a worker has reported remain valid.

        They may do so although `accepts` is false, such as on a worker with an older snapshot.
        """

    def is_suspect(self, worker_id: str) -> bool:
        """Return whether to use a worker only if no other has free capacity."""


@dataclass(frozen=True)
class Placement:
    """The worker to ask, and the id of the lease that it already holds, if any."""

    worker_id: str
    lease_id: str | None = None


class UnreportedLease(NamedTuple):
    """A lease that may have existed on a worker that was lost before it reported one.

    Attributes:
        id: Stands for the id that its worker gave it; begins as that does, with the worker's run.
        clients: The clients of its session that were sent to the worker. If it is one alone, this
            one knows whether there was a lease.
    """

    id: str
    key: LeaseKey
    worker_id: str
    clients: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Reservation:
    worker_id: str
    until: float
    clients: frozenset[str]

    def renewed(self, now: float, client: str) -> _Reservation:
        until, clients = now + bounds.RESERVATION, self.clients
        if len(clients) < _MAX_CLIENTS:
            clients = clients | {client}
        return _Reservation(self.worker_id, until, clients)


@dataclass
class PlacementTable:
    """Leases and reservations; owned by the coordinator.

    Attributes:
        room: What has changed since waiting requests were tried last.
    """

    leases: dict[str, HeldLease] = field(default_factory=dict)
    room: RoomChanges = field(default_factory=RoomChanges, compare=False)
    _by_key: dict[LeaseKey, list[HeldLease]] = field(default_factory=dict)  # oldest first
    _reserved: dict[LeaseKey, _Reservation] = field(default_factory=dict)
    _held: dict[str, dict[str, HeldLease]] = field(default_factory=dict)  # by worker and lease id
    _booked: dict[str, dict[LeaseKey, None]] = field(default_factory=dict)  # by worker
    _servers: dict[tuple[str, str], int] = field(default_factory=dict)  # by worker and server
    _of_server: dict[str, int] = field(default_factory=dict)  # on all workers
    _sessions: dict[tuple[str, str], dict[tuple[str, str], int]] = field(default_factory=dict)
    _tenants: dict[str, int] = field(default_factory=dict)
    _unused: dict[str, int] = field(default_factory=dict)  # reservations, by tenant
    _unanswered: dict[str, float] = field(default_factory=dict)
    _available: LoadOrder = field(default_factory=LoadOrder)
    _fenced: Newest[str, LeaseKey] = field(default_factory=partial(Newest, _MAX_FENCED))
    _ending: dict[LeaseKey, list[HeldLease]] = field(default_factory=dict)  # fenced and reported
    _lost: list[HeldLease] = field(default_factory=list)  # with their workers, for the owner
    _unreported: list[UnreportedLease] = field(default_factory=list)  # for the owner, too
    _doubts: int = 0
    _placed: set[str] = field(default_factory=set)  # ids of leases for which room was reserved

    def has_lease(self, key: LeaseKey) -> bool:
        return key in self._by_key

    def leases_of(self, key: LeaseKey) -> tuple[HeldLease, ...]:
        """Return the leases with a key, oldest first."""
        return tuple(self._by_key.get(key, ()))

    def keys_of_session(self, tenant: str, session: str) -> set[LeaseKey]:
        """Return the keys for which a session has a lease or a reservation."""
        held = self._sessions.get((tenant, session), ())
        return {LeaseKey(tenant, session, server_id) for _worker, server_id in held}

    def workers_of(self, key: LeaseKey) -> list[str]:
        """Return the workers with leases or a reservation for a key, oldest first."""
        held = [lease.worker_id for lease in self._by_key.get(key, ())]
        booked = self._reserved.get(key)
        return held if booked is None else [*held, booked.worker_id]

    def find_active(self, key: LeaseKey, keeps_leases: Callable[[str], bool]) -> HeldLease | None:
        """Return the oldest lease with a key whose worker keeps its leases, or None."""
        leases = self._by_key.get(key, ())
        return next((lease for lease in leases if keeps_leases(lease.worker_id)), None)

    def fence(self, lease_id: str, key: LeaseKey) -> None:
        """Remove a lease whose holder was told that it is lost.

        An unknown lease is fenced when it is reported later.
        """
        self._fenced[lease_id] = key
        lease = self.leases.get(lease_id)
        if lease is None or lease.key != key or lease in self._ending.get(key, ()):
            return
        self._hide(lease)
        self._ending.setdefault(key, []).append(lease)

    def is_fenced(self, lease: HeldLease) -> bool:
        """Return whether the holder of a lease was told that it is lost."""
        return self._fenced.get(lease.id) == lease.key

    def workers_ending(self, key: LeaseKey) -> list[str]:
        """Return the workers that have not ended a fenced lease with a key yet."""
        return [lease.worker_id for lease in self._ending.get(key, ())]

    def is_superseded(self, lease: HeldLease, since: float) -> bool:
        """Return whether a lease's key was placed on another worker after a time."""
        booked = self._reserved.get(lease.key)
        if booked is not None and booked.worker_id != lease.worker_id:
            return True
        return any(
            other.worker_id != lease.worker_id and other.granted_at > since
            for other in self._by_key.get(lease.key, ())
        )

    def load(self, worker_id: str) -> int:
        return self.held_count(worker_id) + len(self._booked.get(worker_id, ()))

    def capacity(self, worker_id: str) -> int:
        return self._available.capacity(worker_id)

    def server_load(self, worker_id: str, server_id: str) -> int:
        """Return the number of leases and reservations of one server on a worker."""
        return self._servers.get((worker_id, server_id), 0)

    def load_of_server(self, server_id: str) -> int:
        """Return the number of leases and reservations of a server on all workers."""
        return self._of_server.get(server_id, 0)

    def tenant_load(self, tenant: str) -> int:
        """Return a tenant's number of leases and reservations."""
        return self._tenants.get(tenant, 0)

    @property
    def tenant_loads(self) -> Mapping[str, int]:
        """The number of leases and reservations of each tenant that has some."""
        return self._tenants

    def is_tenant_full(self, tenant: str, limit: int | None = None) -> bool:
        """Return whether a tenant has reached its limit of leases and reservations.

        Args:
            limit: The limit in the configuration, or None.
        """
        return self._tenants.get(tenant, 0) >= tenant_limit(limit)

    def is_server_full(self, server_id: str, limit: int | None) -> bool:
        """Return whether a server has reached its limit of leases and reservations."""
        return limit is not None and self._of_server.get(server_id, 0) >= limit

    def held_count(self, worker_id: str) -> int:
        """Return how many leases a worker has reported."""
        return len(self._held.get(worker_id, ()))

    def unanswered_since(self, worker_id: str) -> float | None:
        """Return when a worker was first chosen after its last message, or None."""
        return self._unanswered.get(worker_id)

    def record_contact(self, worker_id: str) -> None:
        self._unanswered.pop(worker_id, None)

    def add_worker(self, worker_id: str, capacity: int) -> None:
        """Register a worker with its lease capacity."""
        self.record_contact(worker_id)
        self._available.set_capacity(worker_id, capacity, self.load(worker_id))

    def place(
        self,
        key: LeaseKey,
        eligible: Eligible,
        excluded: Collection[str],
        now: float,
        of_tenant: int | None = None,
        of_server: int | None = None,
        caller: PlacementCaller = ANY_CALLER,
    ) -> Placement | None:
        """Choose a worker and reserve capacity on it.

        Returns None if every worker is full or the tenant or the server is at its limit. An unused
        reservation of a tenant with more of them may be cancelled for this request: its worker
        still grants if it has capacity, so the other request only loses its turn.

        Args:
            key: The requested lease.
            eligible: Which workers could hold it.
            excluded: Workers that refused or were unreachable.
            now: The time on the control plane's monotonic clock.
            of_tenant: The tenant's limit of leases in the configuration, or None.
            of_server: The server's, or None.
            caller: Who asks.
        """
        self.expire(now)
        for lease in self._by_key.get(key, ()):
            if lease.worker_id not in excluded and eligible.keeps_leases(lease.worker_id):
                return Placement(lease.worker_id, lease.id)
        booked = self._reserved.get(key)
        if booked is not None:
            if booked.worker_id not in excluded and eligible.accepts(booked.worker_id):
                self._reserved[key] = self._reserved.pop(key).renewed(now, caller.client)
                return Placement(booked.worker_id)
            self._cancel(key)
        if self.is_tenant_full(key.tenant, of_tenant) or self.is_server_full(
            key.server_id, of_server
        ):
            return None
        chosen = self._choose(key, eligible, excluded, caller.worker_id)
        chosen = chosen or self._displace(key, eligible, excluded)
        if chosen is None:
            return None
        # The worker alone grants, because only it knows its instances; its report of the lease
        # comes later than this answer. Without a reservation, all callers of that time would be
        # sent to the same free place, and all but one be rejected. A caller that gives up says
        # nothing, so it ends by itself.
        clients = frozenset((caller.client,))
        self._reserved[key] = _Reservation(chosen, now + bounds.RESERVATION, clients)
        self._booked.setdefault(chosen, {})[key] = None
        _add(self._unused, key.tenant, 1)
        self.room.is_greedy = self.room.is_greedy or self._unused[key.tenant] > 1
        self._unanswered.setdefault(chosen, now)
        self._count(key, chosen, 1)
        return Placement(chosen)

    def add_lease(self, lease: HeldLease) -> tuple[HeldLease, ...]:
        """Record a reported lease; if it is a duplicate, return all with its key, oldest first.

        An id that another worker holds stays with that worker. A lease that was not placed counts
        as younger than placed leases with its key, whatever age its worker reports.
        """
        before = self.load(lease.worker_id)
        duplicates = self._record(lease)
        self._settle_load(lease.worker_id, before)
        return duplicates

    def _record(self, lease: HeldLease) -> tuple[HeldLease, ...]:
        """Record a lease as `add_lease` does, except for its worker's place in the order."""
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
        self._count_key(lease.key, lease.worker_id, 1)
        if self.is_fenced(lease):
            self._ending.setdefault(lease.key, []).append(lease)
            return ()
        held = self._by_key.setdefault(lease.key, [])
        held.append(lease)
        if len(held) == 1:
            return ()
        held.sort(key=_AGE)
        return tuple(held)

    def _after_placed(self, lease: HeldLease) -> HeldLease:
        others = self._by_key.get(lease.key)
        if others is None:
            return lease
        latest = max(
            (other.granted_at for other in others if other.id in self._placed), default=None
        )
        if latest is None or lease.granted_at > latest:
            return lease
        return lease._replace(granted_at=nextafter(latest, inf))

    def remove_lease(self, lease_id: str, worker_id: str | None = None) -> None:
        """Remove an ended lease if it is known, and on that worker if one is given."""
        lease = self.leases.get(lease_id)
        if lease is None or worker_id not in (None, lease.worker_id):
            return
        del self.leases[lease_id]
        self._placed.discard(lease_id)
        on_worker = self._held[lease.worker_id]
        del on_worker[lease_id]
        if not on_worker:
            del self._held[lease.worker_id]
        self._count(lease.key, lease.worker_id, -1)
        self._hide(lease)

    def _hide(self, lease: HeldLease) -> None:
        self.room.keys.add(lease.key)
        for known in (self._by_key, self._ending):
            held = known.get(lease.key, [])
            if lease in held:
                held.remove(lease)
                if not held:
                    del known[lease.key]

    def remove_worker(self, worker_id: str, run: str = "") -> None:
        """Remove a lost worker with its leases and reservations.

        Args:
            worker_id: The worker.
            run: Its run, if it may have granted leases that it has not reported; else empty.
        """
        self._lose(worker_id, list(self._held.get(worker_id, ())))
        for key in list(self._booked.get(worker_id, ())):
            if run:
                self._unreported.append(self.unreported_lease(key, run))
            self._cancel(key)
        self._available.remove(worker_id)
        self.record_contact(worker_id)

    def keep_reservations(self, worker_id: str, until: float) -> None:
        """Keep all reservations on a disconnected worker until it has returned or is lost.

        It may have granted their leases and not reported them. They come last in the order of
        expiry, so that later ones wait for them, no longer than `until` exceeds their own time.
        """
        for key in self._booked.get(worker_id, ()):
            booked = self._reserved.pop(key)
            self._reserved[key] = replace(booked, until=max(until, booked.until))

    def unreported_lease(self, key: LeaseKey, run: str) -> UnreportedLease:
        """Return the lease that a run of a worker may have granted for its reservation of a key."""
        booked = self._reserved[key]
        self._doubts += 1
        name = f"{run}-unreported-{self._doubts}"
        return UnreportedLease(name, key, booked.worker_id, booked.clients)

    def replace_leases(
        self, worker_id: str, leases: Iterable[HeldLease]
    ) -> list[tuple[HeldLease, ...]]:
        """Record all leases of a worker; return the duplicates, as `add_lease` does."""
        reported = {lease.id: lease for lease in leases}
        missing = [known for known in self._held.get(worker_id, ()) if known not in reported]
        before = self.load(worker_id)
        self._lose(worker_id, missing)
        found = [self._record(lease) for lease in reported.values()]
        self._settle_load(worker_id, before)  # once: the order of a fleet is costly to change
        return [duplicates for duplicates in found if duplicates]

    def pop_lost(self) -> list[HeldLease]:
        """Return the leases lost with their workers since the last call.

        Without those of which the holder was told that they are lost.
        """
        lost, self._lost = self._lost, []
        return lost

    def pop_unreported(self) -> list[UnreportedLease]:
        """Return the leases that may have been lost unreported since the last call."""
        unreported, self._unreported = self._unreported, []
        return unreported

    def reserved_worker(self, key: LeaseKey) -> str:
        """Return the worker with a reservation for a key, or empty."""
        booked = self._reserved.get(key)
        return "" if booked is None else booked.worker_id

    def _lose(self, worker_id: str, lease_ids: Iterable[str]) -> None:
        for lease_id in lease_ids:
            lease = self._held[worker_id][lease_id]
            if not self.is_fenced(lease):
                self._lost.append(lease)
            self.remove_lease(lease_id)

    def drop_reservation(self, key: LeaseKey, worker_id: str) -> None:
        """Keep no room on a worker for a lease that did not come to be there."""
        booked = self._reserved.get(key)
        if booked is not None and booked.worker_id == worker_id:
            self._cancel(key)

    def expire(self, now: float) -> None:
        """Drop unused reservations that have expired."""
        while self._reserved:
            key = next(iter(self._reserved))  # the dict is ordered by expiry
            if self._reserved[key].until > now:
                break
            self._cancel(key)

    def next_expiry(self) -> float | None:
        """Return when the next reservation expires, or None."""
        first = next(iter(self._reserved.values()), None)
        return None if first is None else first.until

    def _choose(
        self, key: LeaseKey, eligible: Eligible, excluded: Collection[str], preferred: str
    ) -> str | None:
        """Return the session's worker, else the caller's, else the least loaded one.

        Among equally loaded workers, one with a spare instance is preferred. The caller's worker
        may have a little more load, but no other may have a spare that it lacks. Suspect workers
        come last.
        """

        def qualifies(worker_id: str) -> bool:
            if worker_id in excluded or not eligible.accepts(worker_id):
                return False
            return self.server_load(worker_id, key.server_id) < eligible.max_leases

        of_session = list(self._session_workers(key))
        suspect = None
        for worker_id in chain(of_session, self._available):
            if not qualifies(worker_id):
                continue
            if eligible.is_suspect(worker_id):
                suspect = suspect or worker_id
                continue
            if worker_id in of_session:
                return worker_id
            least = self.load(worker_id)
            ready = (
                other
                for other in eligible.spares
                if other in self._available
                and self.load(other) == least
                and qualifies(other)
                and not eligible.is_suspect(other)
            )
            chosen = worker_id if worker_id in eligible.spares else min(ready, default=worker_id)
            if (
                preferred in self._available
                and self.load(preferred) <= least + max(_MARGIN, least // _MARGIN_SHARE)
                # A start takes longer than the connections of many calls.
                and (preferred in eligible.spares or chosen not in eligible.spares)
                and qualifies(preferred)
                and not eligible.is_suspect(preferred)
            ):
                return preferred
            return chosen
        return suspect

    def _displace(self, key: LeaseKey, eligible: Eligible, excluded: Collection[str]) -> str | None:
        """Cancel a reservation of a tenant that has more of them; return its worker, or None."""
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

    def _session_workers(self, key: LeaseKey) -> Iterator[str]:
        """Yield the session's workers that have free capacity, least loaded first."""
        workers = {worker for worker, _ in self._sessions.get((key.tenant, key.session), ())}
        available = [(self.load(worker), worker) for worker in workers if worker in self._available]
        return (worker_id for _, worker_id in sorted(available))

    def _cancel(self, key: LeaseKey) -> None:
        booked = self._reserved.pop(key)
        on_worker = self._booked[booked.worker_id]
        del on_worker[key]
        if not on_worker:
            del self._booked[booked.worker_id]
        _add(self._unused, key.tenant, -1)
        self._count(key, booked.worker_id, -1)

    def _count(self, key: LeaseKey, worker_id: str, step: int) -> None:
        self._count_key(key, worker_id, step)
        self._settle_load(worker_id, self.load(worker_id) - step)

    def _settle_load(self, worker_id: str, before: int) -> None:
        """Put a worker into its place in the order, and record how its load has changed."""
        load = self.load(worker_id)
        self._available.set_load(worker_id, load)
        self.room.count(worker_id, before, load)

    def _count_key(self, key: LeaseKey, worker_id: str, step: int) -> None:
        """Count a lease or reservation for all limits but the worker's."""
        room, tenant, server_id = self.room, key.tenant, key.server_id
        room.keys.add(key)
        on_worker = worker_id, server_id
        room.count(on_worker, *_add(self._servers, on_worker, step))
        room.count(("server", server_id), *_add(self._of_server, server_id, step))
        room.count(("tenant", tenant), *_add(self._tenants, tenant, step))
        session = (key.tenant, key.session)
        held = self._sessions.setdefault(session, {})
        _add(held, on_worker, step)
        if not held:
            del self._sessions[session]


def tenant_limit(configured: int | None) -> int:
    """Return how many leases a tenant may have on all workers together."""
    most = bounds.MAX_TENANT_LEASES
    return most if configured is None else min(configured, most)


def _add(counts: dict[_Key, int], key: _Key, step: int) -> tuple[int, int]:
    """Change a count, and remove it at zero; return it as it was and as it is."""
    before = counts.get(key, 0)
    count = before + step
    if count:
        counts[key] = count
    else:
        counts.pop(key, None)
    return before, count
