"""The leases that one client knows: pure state, without I/O and without a clock.

A key is (session, server id). It is unknown, placed (its first calls are sent to a worker), held
or ended. An ended lease fails every call until the session acquires or releases it, so that a
fresh MCP client never replaces a lost one silently
(design.md#leases). Times are seconds of a monotonic
clock; `wall` is the same moment as Unix time, for users.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from leaseway.sdk.plain_data import PlainData
from leaseway.sdk.transport.workers import WorkerRun
from leaseway.v1 import leases_pb2
from leaseway.wire.bounds import LEASE_IDLE, RESERVATION
from leaseway.wire.errors import Fault, Reason

_RENEW_AT: Final = 1 / 3
"""A lease is renewed after this fraction of its time to live (design.md#leases)."""
_MAX_ENDED: Final = 16_384
"""Ended leases that are remembered; the oldest are forgotten first."""
_MAX_PENDING: Final = 1024
"""Pending acquisitions that are remembered; a forgotten lease expires at its worker."""


class SessionLeaseKey(NamedTuple):
    """Identifies a lease within one client."""

    session: str
    server_id: str


@dataclass(slots=True, eq=False)
class ClientLease:
    """A held lease, as this client knows it.

    Attributes:
        owned: Whether this client acquired the lease and so releases it.
        ttl: Granted time to live in seconds.
        renewed_at: When the last answered renewal was sent.
        expires_at: When the lease expires unless it is renewed.
        expires_wall: The same as Unix time.
        used_at: When the last known call on the lease ran.
        idle: Seconds without a call after which the lease is released.
    """

    session: str
    server_id: str
    lease_id: str
    worker: WorkerRun
    owned: bool
    reminder: str
    ttl: float = 0.0
    renewed_at: float = 0.0
    expires_at: float = 0.0
    expires_wall: float = 0.0
    used_at: float = 0.0
    idle: float = LEASE_IDLE

    @property
    def key(self) -> SessionLeaseKey:
        """The lease's key in the book."""
        return SessionLeaseKey(self.session, self.server_id)

    @property
    def renew_at(self) -> float:
        """When the next renewal is due."""
        return self.renewed_at + self.ttl * _RENEW_AT

    @property
    def idle_at(self) -> float:
        """When the idle limit is reached unless a call runs first."""
        return self.used_at + self.idle

    def renew(self, ttl: float, at: float, wall: float) -> None:
        """Record a granted time to live; `at` is when the renewal was sent."""
        if at + ttl >= self.expires_at or ttl != self.ttl:
            self.ttl = ttl
            self.renewed_at = at
            self.expires_at = at + ttl
            self.expires_wall = wall + ttl


class _Placement(NamedTuple):
    worker: WorkerRun
    until: float
    lease_id: str | None


class LeaseBook:
    """The leases of one client, by (session, server id)."""

    def __init__(self) -> None:
        self._held: dict[SessionLeaseKey, ClientLease] = {}
        self._ended: dict[SessionLeaseKey, Fault] = {}
        self._placements: dict[SessionLeaseKey, _Placement] = {}
        self._told: dict[SessionLeaseKey, None] = {}

    def find(self, key: SessionLeaseKey, now: float) -> ClientLease | None:
        """Return the held lease of a key, or None if the key has had no lease.

        Raises:
            Fault: The lease ended. It is raised until `forget` or `grant` is called.
        """
        lease = self._held.get(key)
        if lease is not None:
            if now < lease.expires_at:
                return lease
            self._expire(lease)
        if self._ended:
            fault = self._ended.get(key)
            if fault is not None:
                raise replace(fault)
        return None

    def find_held(self, key: SessionLeaseKey, now: float) -> ClientLease | None:
        """Return the held lease of a key, or None, even if an older lease ended."""
        lease = self._held.get(key)
        return lease if lease is not None and now < lease.expires_at else None

    def tracks(self, session: str, server_id: str) -> bool:
        """Return whether the session's lease for a server is held or has ended.

        Every shared call asks this, so a client without leases must not pay for it.
        """
        if not self._held and not self._ended:
            return False
        key = SessionLeaseKey(session, server_id)
        return key in self._held or key in self._ended

    def find_placement(self, key: SessionLeaseKey, now: float) -> WorkerRun | None:
        """Return the worker on which the control plane placed a key, or None."""
        placement = self._placements.get(key)
        if placement is None:
            return None
        if now >= placement.until:
            del self._placements[key]
            return None
        return placement.worker

    def expected_lease(self, key: SessionLeaseKey) -> str | None:
        """Return the lease of a placed key that the control plane believes to be held, or empty.

        Returns None if the key's next call must not report how its last lease ended.
        """
        placement = self._placements.get(key)
        return None if placement is None or key in self._told else placement.lease_id

    def add_placement(
        self, key: SessionLeaseKey, worker: WorkerRun, now: float, lease_id: str | None = None
    ) -> None:
        """Record a placement; it is valid as long as the control plane's reservation."""
        self._placements.pop(key, None)  # keeps the dict ordered by expiry
        while self._placements and next(iter(self._placements.values())).until <= now:
            del self._placements[next(iter(self._placements))]
        self._placements[key] = _Placement(worker, now + RESERVATION, lease_id)

    def remove_placement(self, key: SessionLeaseKey, worker: WorkerRun) -> None:
        """Remove a placement that its worker rejected."""
        placement = self._placements.get(key)
        if placement is not None and placement.worker == worker:
            del self._placements[key]

    def grant(
        self,
        key: SessionLeaseKey,
        lease_id: str,
        worker: WorkerRun,
        *,
        ttl: float,
        at: float,
        wall: float,
        owned: bool,
        reminder: str = "",
    ) -> ClientLease:
        """Record a new or renewed lease; `at` is when the request for it was sent."""
        self._ended.pop(key, None)
        self._told.pop(key, None)
        self._placements.pop(key, None)
        lease = self._held.get(key)
        if lease is None or lease.lease_id != lease_id:
            lease = self._held[key] = ClientLease(*key, lease_id, worker, owned, reminder)
        else:
            lease.owned = lease.owned or owned
            lease.reminder = reminder or lease.reminder
        lease.renew(ttl, at, wall)
        return lease

    def end(self, lease_id: str, fault: Fault) -> None:
        """End a held lease and remember why; an unknown lease id is ignored."""
        for key, lease in self._held.items():
            if lease.lease_id == lease_id:
                del self._held[key]
                metadata = {"lease": lease_id, "server": lease.server_id, **fault.metadata}
                self._ended[key] = replace(fault, metadata=metadata)
                if len(self._ended) > _MAX_ENDED:
                    del self._ended[next(iter(self._ended))]
                return

    def forget(self, key: SessionLeaseKey) -> ClientLease | None:
        """Remove everything about a key; return the lease that was held."""
        if self._ended.pop(key, None) is not None:
            self.mark_told(key)
        self._placements.pop(key, None)
        return self._held.pop(key, None)

    def forget_released(self, key: SessionLeaseKey, lease_id: str) -> None:
        """Remove everything about a key whose lease was released, unless a newer lease is held.

        Args:
            key: The session and the server.
            lease_id: The released lease, or empty if its id was unknown.
        """
        lease = self._held.get(key)
        if lease is None or lease.lease_id == lease_id:
            self.forget(key)

    def forget_end(self, session: str, lease_id: str) -> None:
        """Forget that a lease ended, once its session has been notified."""
        for key, fault in self._ended.items():
            if key.session == session and fault.metadata.get("lease") == lease_id:
                del self._ended[key]
                self.mark_told(key)
                return

    def mark_told(self, key: SessionLeaseKey) -> None:
        """Record that a caller knows how the last lease of a key ended."""
        self._told[key] = None
        if len(self._told) > _MAX_ENDED:
            del self._told[next(iter(self._told))]

    def is_told(self, key: SessionLeaseKey) -> bool:
        """Return whether a caller knows how the last lease of a key ended, if it did."""
        return key in self._told

    def forget_session(self, session: str) -> None:
        """Forget the ended leases and the placements of a session."""
        for entries in (self._ended, self._placements):
            for key in [key for key in entries if key.session == session]:
                del entries[key]
                if entries is self._ended:
                    self.mark_told(key)

    def held_leases(self, session: str | None = None) -> list[ClientLease]:
        """Return the held leases of one session, or of all."""
        return [lease for lease in self._held.values() if session in (None, lease.session)]

    def leases_on(self, worker: WorkerRun, now: float) -> list[ClientLease]:
        """Return the held leases on a worker, after expiring those that are overdue."""
        for lease in list(self._held_on(worker)):
            if now >= lease.expires_at:
                self._expire(lease)
        return list(self._held_on(worker))

    def next_due(self, worker: WorkerRun) -> float | None:
        """Return when the first lease on a worker must be renewed or is idle; None without one."""
        return min(
            (min(lease.renew_at, lease.idle_at) for lease in self._held_on(worker)), default=None
        )

    def next_renewal(self, worker: WorkerRun) -> float | None:
        """Return when the first lease on a worker must be renewed, or None without one."""
        return min((lease.renew_at for lease in self._held_on(worker)), default=None)

    def _held_on(self, worker: WorkerRun) -> Iterator[ClientLease]:
        return (lease for lease in self._held.values() if lease.worker == worker)

    def _expire(self, lease: ClientLease) -> None:
        self.end(
            lease.lease_id,
            Fault(
                Reason.LEASE_EXPIRED,
                f"The lease of session '{lease.session}' for server '{lease.server_id}' could not "
                f"be renewed on worker '{lease.worker.id}' within its {lease.ttl:g} s. "
                "Acquire it again; the server's state is lost.",
            ),
        )


class PendingAcquisitions:
    """First calls of one client that may acquire a lease whose id the client does not know yet.

    A worker reports a new lease in the result of the call that acquired it. If the caller no longer
    waits for that result, the client must look for the lease when its session closes. Leases carry
    the name of the client that acquired them, so that a client releases only its own.

    Attributes:
        acquirer: The client's random name.
    """

    def __init__(self, acquirer: str) -> None:
        self.acquirer = acquirer
        self._abandoned: dict[tuple[SessionLeaseKey, WorkerRun], bool] = {}

    def add(self, key: SessionLeaseKey, worker: WorkerRun) -> None:
        """Record that first calls of a key are sent to a worker."""
        self._abandoned.setdefault((key, worker), False)
        if len(self._abandoned) > _MAX_PENDING:
            del self._abandoned[next(iter(self._abandoned))]

    def abandon(self, key: SessionLeaseKey, worker: WorkerRun) -> None:
        """Record that a caller no longer waits for a call that may have acquired the lease."""
        if (key, worker) in self._abandoned:
            self._abandoned[key, worker] = True

    def reject(self, key: SessionLeaseKey, worker: WorkerRun) -> None:
        """Record that a call acquired no lease; an abandoned call may still have done so."""
        if self._abandoned.get((key, worker)) is False:
            del self._abandoned[key, worker]

    def grant(self, key: SessionLeaseKey, worker: WorkerRun, lease: leases_pb2.Lease) -> bool:
        """Record that the lease is known; return whether this client acquired it."""
        self._abandoned.pop((key, worker), None)
        return self.is_own(lease, key)

    def is_own(self, lease: leases_pb2.Lease, key: SessionLeaseKey) -> bool:
        """Return whether this client acquired the lease for a key.

        If another client of the session acquired it, that client releases it.
        """
        return lease.acquirer == self.acquirer and (lease.session, lease.server_id) == key

    def pop(self, session: str | None = None) -> list[tuple[SessionLeaseKey, WorkerRun]]:
        """Remove and return where leases may exist: the key and the worker of each.

        Args:
            session: Only the abandoned calls of a session, whose other calls continue; None for
                all calls, because the client closes.
        """
        found = [
            (key, worker)
            for (key, worker), abandoned in self._abandoned.items()
            if session is None or (abandoned and session == key.session)
        ]
        for entry in found:
            del self._abandoned[entry]
        return found


class Lease(PlainData):
    """A session's own MCP client for one server, kept alive by the SDK until it is released."""

    __slots__ = ("_lease",)

    def __init__(self, lease: ClientLease) -> None:
        self._lease = lease

    @property
    def id(self) -> str:
        """The lease's id, which never changes."""
        return self._lease.lease_id

    @property
    def server_id(self) -> str:
        """The server that the leased client is connected to."""
        return self._lease.server_id

    @property
    def session(self) -> str:
        """The session that holds the lease."""
        return self._lease.session

    @property
    def worker(self) -> str:
        """The id of the worker that holds the client."""
        return self._lease.worker.id

    @property
    def ttl(self) -> float:
        """The granted time to live in seconds."""
        return self._lease.ttl

    @property
    def expires_at(self) -> datetime:
        """When the lease expires unless it is renewed, in UTC by this machine's clock."""
        return datetime.fromtimestamp(self._lease.expires_wall, UTC)

    @property
    def reminder(self) -> str:
        """A text that tells a model to release the lease."""
        return self._lease.reminder

    def to_dict(self) -> dict[str, Any]:
        """Return the lease's id, server, session, worker and times as a dict of JSON values."""
        return {
            "id": self.id,
            "server_id": self.server_id,
            "session": self.session,
            "worker": self.worker,
            "ttl": self.ttl,
            "expires_at": self.expires_at.isoformat(),
            "reminder": self.reminder,
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Lease) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"Lease({self.id!r}, server_id={self.server_id!r}, worker={self.worker!r})"
