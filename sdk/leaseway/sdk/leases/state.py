"""The leases of one session, as one client knows them: a pure machine, without I/O or a clock.

For each server, the session has a slot. Its lease is unknown, placed (its first calls are sent to a
worker), held or ended. An ended lease fails every call until the session acquires or releases it,
so that a fresh MCP client never replaces a lost one silently (design.md#leases).

Callers that need the same answer share one request. The slot knows which request is in flight and
who waits for it; `manager` sends it and wakes the waiters that the slot names.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import Any, Final, NamedTuple

from leaseway.sdk.leases.lease import ClientLease
from leaseway.sdk.transport.workers import WorkerRun
from leaseway.wire.bounds import LEASE_IDLE, MAX_KNOWN_ENDS, RESERVATION
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.names import LeaseKey
from leaseway.wire.sharing.newest import Newest
from leaseway.wire.signals import Signal

_MAX_GONE: Final = 8
"""Former leases of a server that are told from new ones; a slow call reports one of the last."""

Waiter = Any
"""A caller that waits for an answer; the machine only tells it apart from others."""


class Purpose(Enum):
    """What a shared request is for: to learn a lease's worker, or to acquire the lease there."""

    PLACE = "place"
    ACQUIRE = "acquire"


class Terms(NamedTuple):
    """What a caller requests; the callers of one request have equal terms.

    Attributes:
        worker: The worker of an acquisition; None while one is to be found.
        ttl: The requested time to live.
        version: The registry version at which the server was resolved.
    """

    worker: WorkerRun | None = None
    ttl: float = 0.0
    version: int = 0


@dataclass(slots=True, eq=False)
class Flight:
    """A request in flight.

    Attributes:
        session: The leases of the session that asks; it is not forgotten while they are asked for.
        key: The lease that it is about.
        deadline: When it fails.
        waiters: The callers that get its answer.
        later: The callers with other terms, who ask again when it is answered.
    """

    session: SessionLeases
    key: LeaseKey
    purpose: Purpose
    terms: Terms
    deadline: float
    waiters: list[Waiter] = field(default_factory=list)
    later: list[Waiter] = field(default_factory=list)


class Granted(NamedTuple):
    """A lease that a worker reported.

    Attributes:
        owned: Whether this client acquired it.
        ttl: The granted time to live in seconds.
        reminder: A text that tells a model to release the lease.
    """

    lease_id: str
    worker: WorkerRun
    ttl: float
    owned: bool
    reminder: str = ""


class HeldLeases:
    """The held leases of all sessions of one client, by id and by worker.

    Attributes:
        added: A lease that its session now holds.
        removed: A lease that its session no longer holds, however it ended.
    """

    def __init__(self) -> None:
        self.added = Signal[ClientLease]()
        self.removed = Signal[ClientLease]()
        self._by_id: dict[str, ClientLease] = {}
        self._by_worker: dict[WorkerRun, dict[str, ClientLease]] = {}

    def add(self, lease: ClientLease) -> None:
        """Add a lease that its session now holds."""
        self._by_id[lease.lease_id] = lease
        self._by_worker.setdefault(lease.worker, {})[lease.lease_id] = lease
        self.added.emit(lease)

    def remove(self, lease: ClientLease) -> None:
        """Remove a lease that its session no longer holds."""
        del self._by_id[lease.lease_id]
        on_worker = self._by_worker[lease.worker]
        del on_worker[lease.lease_id]
        if not on_worker:
            del self._by_worker[lease.worker]
        self.removed.emit(lease)

    def find(self, lease_id: str) -> ClientLease | None:
        """Return a held lease by its id."""
        return self._by_id.get(lease_id)

    def on(self, worker: WorkerRun) -> list[ClientLease]:
        """Return the held leases on a worker."""
        return list(self._by_worker.get(worker, {}).values())

    def all(self) -> list[ClientLease]:
        """Return all held leases."""
        return list(self._by_id.values())


class _Placement(NamedTuple):
    worker: WorkerRun
    until: float
    known_ends: tuple[str, ...] | None
    lease_id: str


@dataclass(slots=True, eq=False)
class _Slot:
    """What a client knows of its session's lease of one server.

    Attributes:
        lease: The held lease.
        ended: How the last lease ended; every call fails with it.
        told: The last leases of whose end a caller was told.
        placement: The worker on which the control plane placed the next lease.
        lost: The lease that was found lost and has not been reported to the control plane.
        gone: The last leases that ended or were released, and when.
        first_calls: The workers that may have granted a lease to a first call, and whether a
            caller gave such a call up: nobody else then learns the lease's id.
        flights: The requests in flight, at most one for each purpose.
    """

    lease: ClientLease | None = None
    ended: Fault | None = None
    told: tuple[str, ...] = ()
    placement: _Placement | None = None
    lost: str = ""
    gone: Newest[str, float] = field(default_factory=partial(Newest, _MAX_GONE))
    first_calls: dict[WorkerRun, bool] = field(default_factory=dict)
    flights: dict[Purpose, Flight] = field(default_factory=dict)

    def tell(self, fault: Fault | None) -> None:
        """Record that a caller gets a fault, which may say that a lease has ended."""
        lease = "" if fault is None else fault.metadata.get("lease", "")
        if lease and lease not in self.told:
            self.told = (*self.told, lease)[-MAX_KNOWN_ENDS:]


class SessionLeases:
    """The leases of one session, and what its callers wait for.

    Args:
        tenant: The client's tenant.
        session: The session's key.
        held: The held leases of all sessions of the client.

    Attributes:
        idle: Seconds without a call after which a lease is released.
    """

    def __init__(self, tenant: str, session: str, held: HeldLeases) -> None:
        self.idle = LEASE_IDLE
        self._tenant = tenant
        self._session = session
        self._held = held
        self._slots: dict[str, _Slot] = {}

    @property
    def is_busy(self) -> bool:
        """Whether a lease is held, or a caller waits for one."""
        return any(slot.lease is not None or slot.flights for slot in self._slots.values())

    @property
    def is_blank(self) -> bool:
        """Whether nothing is known of the session."""
        return not self._slots and self.idle == LEASE_IDLE

    # Which lease a call uses

    def find(self, server_id: str, now: float) -> ClientLease | None:
        """Return the held lease of a server, or None if the session has had none.

        Raises:
            Fault: The lease ended. It is raised until the lease is released or acquired again.
        """
        slot = self._slots.get(server_id)
        if slot is None:
            return None
        if slot.lease is not None:
            if now < slot.lease.expires_at:
                return slot.lease
            self.expire(server_id, now)
        if slot.ended is not None:
            raise replace(slot.ended)
        return None

    def find_held(self, server_id: str, now: float) -> ClientLease | None:
        """Return the held lease of a server, or None, even if an older lease ended."""
        slot = self._slots.get(server_id)
        lease = None if slot is None else slot.lease
        return lease if lease is not None and now < lease.expires_at else None

    def find_holder(self, server_id: str, now: float) -> WorkerRun | None:
        """Return the worker of the held lease of a server, or None.

        How an older lease ended is forgotten: an acquisition replaces it.
        """
        slot = self._slots.get(server_id)
        if slot is None:
            return None
        self.expire(server_id, now)
        if slot.ended is not None:
            self.release(server_id, now)
        return None if slot.lease is None else slot.lease.worker

    def tracks(self, server_id: str) -> bool:
        """Return whether the lease of a server is held or has ended."""
        slot = self._slots.get(server_id)
        return slot is not None and (slot.lease is not None or slot.ended is not None)

    def leases(self) -> list[ClientLease]:
        """Return the held leases."""
        return [slot.lease for slot in self._slots.values() if slot.lease is not None]

    def servers(self) -> list[str]:
        """Return the servers of held leases, and those of which an abandoned call may have one."""
        return [
            server_id
            for server_id, slot in self._slots.items()
            if slot.lease is not None or any(slot.first_calls.values())
        ]

    def find_end(self, servers: Collection[str] | None) -> Fault | None:
        """Return how a lease ended of which calls are told; None without one.

        Args:
            servers: Only leases of these servers; None means all.
        """
        for server_id, slot in self._slots.items():
            if slot.ended is not None and (servers is None or server_id in servers):
                return replace(slot.ended)
        return None

    # Where the next lease is acquired

    def placed_on(self, server_id: str, now: float) -> WorkerRun | None:
        """Return the worker on which the control plane placed the lease of a server, or None."""
        slot = self._slots.get(server_id)
        if slot is None or slot.placement is None or now >= slot.placement.until:
            return None
        return slot.placement.worker

    def known_ends_of_placement(self, server_id: str) -> tuple[str, ...] | None:
        """Return the ended leases that the session of a placed server knows.

        Returns None if the next call must not report how the last lease ended.
        """
        slot = self._slots.get(server_id)
        return None if slot is None or slot.placement is None else slot.placement.known_ends

    def placed_lease(self, server_id: str) -> str:
        """Return the lease that the session has on the worker of its placement, or empty."""
        slot = self._slots.get(server_id)
        return "" if slot is None or slot.placement is None else slot.placement.lease_id

    def lost_lease(self, server_id: str) -> str:
        """Return the id of the lease that was found lost, or an empty string."""
        slot = self._slots.get(server_id)
        return "" if slot is None else slot.lost

    def known_ends(self, server_id: str) -> tuple[str, ...]:
        """Return the last leases of a server of whose end a caller was told."""
        slot = self._slots.get(server_id)
        return () if slot is None else slot.told

    def tell(self, server_id: str, fault: Fault) -> None:
        """Record that the control plane's answer told a caller how a lease has ended, if it did."""
        if fault.metadata.get("lease"):
            self._slot(server_id).tell(fault)

    def place(
        self,
        server_id: str,
        worker: WorkerRun,
        now: float,
        known_ends: tuple[str, ...] | None = None,
        lease_id: str = "",
    ) -> None:
        """Record a placement, to which a lost lease was reported.

        It is valid as long as the control plane's reservation. First calls are then sent to the
        worker, and each of them may acquire a lease.

        Args:
            now: The current time.
            known_ends: The ended leases that the session knows; first calls report the end of
                another one. None if they report none.
            lease_id: The lease that the session has there, or empty.
        """
        slot = self._slot(server_id)
        slot.lost = ""
        slot.placement = _Placement(worker, now + RESERVATION, known_ends, lease_id)
        slot.first_calls.setdefault(worker, False)

    # What callers wait for

    def ask(
        self, server_id: str, purpose: Purpose, terms: Terms, deadline: float, waiter: Waiter
    ) -> Flight | None:
        """Let a caller wait for the answer to a request.

        Returns:
            The request, which is to be sent; None if one is in flight already.
        """
        slot = self._slot(server_id)
        flight = slot.flights.get(purpose)
        if flight is not None:
            (flight.waiters if flight.terms == terms else flight.later).append(waiter)
            return None
        flight = Flight(
            session=self,
            key=self._key(server_id),
            purpose=purpose,
            terms=terms,
            deadline=deadline,
            waiters=[waiter],
        )
        slot.flights[purpose] = flight
        return flight

    def answer(self, flight: Flight) -> tuple[list[Waiter], list[Waiter]]:
        """Record that a request was answered.

        Returns:
            The callers who get the answer, and those who ask again.
        """
        slot = self._slots.get(flight.key.server_id)
        if slot is not None and slot.flights.get(flight.purpose) is flight:
            del slot.flights[flight.purpose]
        answered, later = flight.waiters, flight.later
        flight.waiters, flight.later = [], []
        return answered, later

    def give_up(self, server_id: str, purpose: Purpose, waiter: Waiter) -> Flight | None:
        """Record that a caller no longer waits.

        Returns:
            The request that nobody waits for, which is to be cancelled; those who would have asked
            after it are to be woken with `answer`.
        """
        flights = self._slot(server_id).flights
        flight = flights.get(purpose)
        if flight is None:
            return None
        for waiters in (flight.waiters, flight.later):
            if waiter in waiters:
                waiters.remove(waiter)
        if flight.waiters:
            return None
        if flight.terms.worker is not None:
            self.abandon(server_id, flight.terms.worker)
        del flights[purpose]  # at once, so that nobody joins a request that is being cancelled
        return flight

    # What workers report

    def grant(
        self, server_id: str, granted: Granted, *, sent_at: float, now: float, wall: float
    ) -> ClientLease:
        """Record a new or renewed lease.

        A slow call may report a lease that was released, or ended, after the call was sent. The
        returned lease is then not held: renewing it would bring back its end, which the session
        knows.

        Args:
            sent_at: When the request was sent that the worker answered.
            now: The current time.
            wall: The current Unix time.
        """
        slot = self._slot(server_id)
        slot.first_calls.pop(granted.worker, None)
        lease = slot.lease
        if lease is not None and lease.lease_id == granted.lease_id:
            lease.owned = lease.owned or granted.owned
            lease.reminder = granted.reminder or lease.reminder
        else:
            lease = ClientLease(
                key=self._key(server_id),
                lease_id=granted.lease_id,
                worker=granted.worker,
                owned=granted.owned,
                reminder=granted.reminder,
            )
        lease.renew_by_call(granted.ttl, sent_at, now, wall)
        lease.used_at, lease.idle = now, self.idle
        if sent_at <= slot.gone.get(lease.lease_id, -math.inf):
            return lease
        slot.gone.pop(lease.lease_id, None)
        if slot.lease is not lease:
            if slot.lease is not None:
                self._held.remove(slot.lease)
            slot.lease = lease
            self._held.add(lease)
        slot.ended = slot.placement = None
        return lease

    def fail(self, server_id: str, worker: WorkerRun, fault: Fault) -> None:
        """Record how a worker rejected a first call or an acquisition."""
        slot = self._slot(server_id)
        if slot.placement is not None and slot.placement.worker == worker:
            slot.placement = None
        slot.tell(fault)
        if fault.started != "no" or fault.reason is Reason.DEADLINE_EXCEEDED:
            self.abandon(server_id, worker)
        elif slot.first_calls.get(worker) is False:
            del slot.first_calls[worker]  # unless another caller gave its call up

    def abandon(self, server_id: str, worker: WorkerRun) -> None:
        """Record that a caller no longer waits for a call that may have acquired the lease."""
        slot = self._slot(server_id)
        if worker in slot.first_calls:
            slot.first_calls[worker] = True

    def end(self, server_id: str, fault: Fault, now: float, *, is_lost: bool = False) -> None:
        """End the held lease of a server and remember why.

        Args:
            fault: Why it ended, for its callers.
            now: The current time.
            is_lost: Whether the control plane is to be told, because the lease may be alive.
        """
        slot = self._slots.get(server_id)
        lease = None if slot is None else self._drop(slot, now)
        if slot is not None and lease is not None:
            metadata = {"lease": lease.lease_id, "server": server_id, **fault.metadata}
            slot.ended = replace(fault, metadata=metadata)
            slot.lost = lease.lease_id if is_lost else slot.lost

    def expire(self, server_id: str, now: float) -> None:
        """End the held lease of a server if it was not renewed in time."""
        slot = self._slots.get(server_id)
        if slot is not None and slot.lease is not None and now >= slot.lease.expires_at:
            self.end(server_id, _expired(slot.lease), now)

    # What callers no longer need

    def release(self, server_id: str, now: float) -> ClientLease | None:
        """Forget the lease of a server, or how it ended; return the lease that was held."""
        slot = self._slots.get(server_id)
        if slot is None:
            return None
        lease = self._drop(slot, now)
        slot.tell(slot.ended)
        slot.ended = slot.placement = None
        return lease

    def take_abandoned(self, server_id: str) -> list[WorkerRun]:
        """Return where abandoned calls may have acquired a lease of a server, and forget it."""
        slot = self._slots.get(server_id)
        if slot is None:
            return []
        workers = [worker for worker, is_abandoned in slot.first_calls.items() if is_abandoned]
        for worker in workers:
            del slot.first_calls[worker]
        return workers

    def forget_end(self, lease_id: str) -> None:
        """Forget that a lease ended, once the session has been notified."""
        for slot in self._slots.values():
            if slot.ended is not None and slot.ended.metadata.get("lease") == lease_id:
                slot.tell(slot.ended)
                slot.ended = None

    def leave(
        self, now: float, *, is_closing: bool = False
    ) -> tuple[list[ClientLease], list[tuple[LeaseKey, WorkerRun]]]:
        """Forget all leases, because the client leaves the session.

        Args:
            now: The current time.
            is_closing: Whether all calls of the session end too, because the client closes.

        Returns:
            The leases that were held, and where others may exist that abandoned calls acquired:
            the key and the worker of each.
        """
        held: list[ClientLease] = self.leases()
        unknown: list[tuple[LeaseKey, WorkerRun]] = []
        for server_id, slot in list(self._slots.items()):
            self.release(server_id, now)
            if is_closing:
                slot.first_calls = dict.fromkeys(slot.first_calls, True)
            unknown += [(self._key(server_id), run) for run in self.take_abandoned(server_id)]
            if not (slot.first_calls or slot.flights or slot.told or slot.lost):
                del self._slots[server_id]
        self.idle = LEASE_IDLE
        return held, unknown

    def _key(self, server_id: str) -> LeaseKey:
        return LeaseKey(self._tenant, self._session, server_id)

    def _slot(self, server_id: str) -> _Slot:
        return self._slots.setdefault(server_id, _Slot())

    def _drop(self, slot: _Slot, now: float) -> ClientLease | None:
        lease, slot.lease = slot.lease, None
        if lease is not None:
            self._held.remove(lease)
            slot.gone[lease.lease_id] = now
        return lease


def _expired(lease: ClientLease) -> Fault:
    return Fault(
        Reason.LEASE_EXPIRED,
        f"The lease of session '{lease.key.session}' for server '{lease.key.server_id}' could not "
        f"be renewed on worker '{lease.worker.id}' within its {lease.ttl:g} s. "
        "Acquire it again; the server's state is lost.",
    )
