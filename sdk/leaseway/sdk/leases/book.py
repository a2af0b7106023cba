"""What one client knows of its leases: pure state, and what follows from it at a time.

A key is (session, server id). It is unknown, placed (a first call is on its way to a worker),
held, or ended; an ended one goes on failing until its holder acquires or releases, so that a
fresh client never takes the place of a lost one in silence (DESIGN §5). Times are seconds of a
monotonic clock; `wall` is the same moment as Unix time, kept for people. No I/O, no clock.

First calls under way or given up: each may have acquired a lease that nobody here knows of.

A worker names a new lease in the result of the call that acquired it. Where nobody waits for
that result any more, the lease is to be looked for when its session is left; it bears the name of
the client that acquired it, so that none takes another's. Pure state.

A lease as its holder sees it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final, NamedTuple

from leaseway.sdk.transport.workers import WorkerAddress
from leaseway.v1 import leases_pb2
from leaseway.wire.bounds import LEASE_IDLE, RESERVATION
from leaseway.wire.errors import Fault, Reason

_RENEW_AT: Final = 1 / 3
"""The part of a time to live after which a lease is renewed (DESIGN §5)."""
_MAX_ENDED: Final = 16_384
"""Ended leases that are remembered; beyond it the oldest is forgotten."""


class LeaseKey(NamedTuple):
    """What finds a lease in one client."""

    session: str
    server_id: str


class Held:
    """A lease that is held, as far as this client knows.

    Attributes:
        owned: Whether this client acquired it itself and so releases it.
        ttl: Seconds granted.
        renewed_at: When the last renewal that was answered had been sent.
        expires_at: When it ends unless it is renewed.
        expires_wall: The same as Unix time.
        used_at: When a call on it was last known to run.
        idle: Seconds after that at which it is given back.
    """

    __slots__ = (
        "expires_at",
        "expires_wall",
        "idle",
        "lease_id",
        "owned",
        "reminder",
        "renewed_at",
        "server_id",
        "session",
        "ttl",
        "used_at",
        "worker",
    )

    def __init__(
        self, key: LeaseKey, lease_id: str, worker: WorkerAddress, *, owned: bool, reminder: str
    ) -> None:
        self.session, self.server_id = key
        self.lease_id = lease_id
        self.worker = worker
        self.owned = owned
        self.reminder = reminder
        self.ttl = self.renewed_at = self.expires_at = self.expires_wall = 0.0
        self.used_at, self.idle = 0.0, LEASE_IDLE

    @property
    def key(self) -> LeaseKey:
        """Where it stands in the book."""
        return LeaseKey(self.session, self.server_id)

    @property
    def renew_at(self) -> float:
        """When it is to be renewed."""
        return self.renewed_at + self.ttl * _RENEW_AT

    @property
    def idle_at(self) -> float:
        """When it has been idle for too long."""
        return self.used_at + self.idle

    def renew(self, ttl: float, at: float, wall: float) -> None:
        """Record that a time to live was granted for a request sent at a time."""
        if at + ttl >= self.expires_at or ttl != self.ttl:
            self.ttl = ttl
            self.renewed_at = at
            self.expires_at = at + ttl
            self.expires_wall = wall + ttl


class _Placed(NamedTuple):
    worker: WorkerAddress
    until: float


class LeaseBook:
    """The leases of one client, by (session, server id)."""

    def __init__(self) -> None:
        self._held: dict[LeaseKey, Held] = {}
        self._ended: dict[LeaseKey, Fault] = {}
        self._placed: dict[LeaseKey, _Placed] = {}

    def find(self, key: LeaseKey, now: float) -> Held | None:
        """Return the lease of a key, or None where there has been none yet.

        Raises:
            Fault: The lease ended; the same one until `forget` or `grant`.
        """
        held = self._held.get(key)
        if held is not None:
            if now < held.expires_at:
                return held
            self._expire(held)
        if self._ended:
            fault = self._ended.get(key)
            if fault is not None:
                raise replace(fault)
        return None

    def current(self, key: LeaseKey, now: float) -> Held | None:
        """Return the lease of a key that is held at a time; how an older one ended is no matter."""
        held = self._held.get(key)
        return held if held is not None and now < held.expires_at else None

    def knows(self, key: LeaseKey) -> bool:
        """Return whether a lease of a key is held or has ended."""
        return key in self._held or key in self._ended

    def concerns(self, session: str, server_id: str) -> bool:
        """Say the same, in no time for a client without leases; every shared call asks."""
        return bool(self._held or self._ended) and self.knows(LeaseKey(session, server_id))

    def placed(self, key: LeaseKey, now: float) -> WorkerAddress | None:
        """Return the worker that first calls of a key were sent to, while that still counts."""
        placed = self._placed.get(key)
        if placed is None:
            return None
        if now >= placed.until:
            del self._placed[key]
            return None
        return placed.worker

    def place(self, key: LeaseKey, worker: WorkerAddress, now: float) -> None:
        """Record where the control plane sent a key; counts as long as its reservation."""
        self._placed.pop(key, None)  # so that they stand in the order in which they cease to count
        while self._placed and next(iter(self._placed.values())).until <= now:
            del self._placed[next(iter(self._placed))]
        self._placed[key] = _Placed(worker, now + RESERVATION)

    def unplace(self, key: LeaseKey, worker: WorkerAddress) -> None:
        """Forget a placement that its worker refused."""
        placed = self._placed.get(key)
        if placed is not None and placed.worker == worker:
            del self._placed[key]

    def grant(
        self,
        key: LeaseKey,
        lease_id: str,
        worker: WorkerAddress,
        *,
        ttl: float,
        at: float,
        wall: float,
        owned: bool,
        reminder: str = "",
    ) -> Held:
        """Record a lease that a worker granted, or granted again, for a request sent at a time."""
        self._ended.pop(key, None)
        self._placed.pop(key, None)
        held = self._held.get(key)
        if held is None or held.lease_id != lease_id:
            held = self._held[key] = Held(key, lease_id, worker, owned=owned, reminder=reminder)
        else:
            held.owned = held.owned or owned
            held.reminder = reminder or held.reminder
        held.renew(ttl, at, wall)
        return held

    def end(self, lease_id: str, fault: Fault) -> None:
        """Record why a lease is no longer held; one that is not held here is ignored."""
        for key, held in self._held.items():
            if held.lease_id == lease_id:
                del self._held[key]
                named = {"lease": lease_id, "server": held.server_id, **fault.metadata}
                self._ended[key] = replace(fault, metadata=named)
                if len(self._ended) > _MAX_ENDED:
                    del self._ended[next(iter(self._ended))]
                return

    def forget(self, key: LeaseKey) -> Held | None:
        """Drop all that is known of a key and return the lease that was held."""
        self._ended.pop(key, None)
        self._placed.pop(key, None)
        return self._held.pop(key, None)

    def released(self, key: LeaseKey, lease_id: str) -> None:
        """Drop what is known of a key whose lease was released; a newer lease stays.

        Args:
            key: The session and the server.
            lease_id: What was released; empty where it was not known by its id.
        """
        held = self._held.get(key)
        if held is None or held.lease_id == lease_id:
            self.forget(key)

    def end_known(self, session: str, lease_id: str) -> None:
        """Drop how a lease of a session ended, since its holder knows now."""
        for key, fault in self._ended.items():
            if key.session == session and fault.metadata.get("lease") == lease_id:
                del self._ended[key]
                return

    def leave(self, session: str) -> None:
        """Drop how leases of a session ended, and where it was to get others."""
        for known in (self._ended, self._placed):
            for key in [key for key in known if key.session == session]:
                del known[key]

    def held(self, session: str | None = None) -> list[Held]:
        """Return the leases that are held, of one session or of all."""
        return [held for held in self._held.values() if session is None or held.session == session]

    def on_worker(self, worker: WorkerAddress, now: float) -> list[Held]:
        """Return the leases on a worker; those past their time are ended first."""
        for held in list(self._on(worker)):
            if now >= held.expires_at:
                self._expire(held)
        return list(self._on(worker))

    def next_due(self, worker: WorkerAddress) -> float | None:
        """Return when the first lease on a worker is to be renewed, or has been idle for too long.

        None without a lease.
        """
        return min((min(held.renew_at, held.idle_at) for held in self._on(worker)), default=None)

    def next_renewal(self, worker: WorkerAddress) -> float | None:
        """Return when the first lease on a worker is to be renewed, or None without one."""
        return min((held.renew_at for held in self._on(worker)), default=None)

    def _on(self, worker: WorkerAddress) -> Iterator[Held]:
        return (held for held in self._held.values() if held.worker == worker)

    def _expire(self, held: Held) -> None:
        self.end(
            held.lease_id,
            Fault(
                Reason.LEASE_EXPIRED,
                f"The lease of session '{held.session}' for server '{held.server_id}' could not "
                f"be renewed on worker '{held.worker.id}' within its {held.ttl:g} s. "
                "Acquire it again; what its server kept is lost.",
            ),
        )


_MOST: Final = 1024
"""First calls that are remembered; the lease of one beyond them ends by itself."""


class PendingAcquisition:
    """What was sent to a worker that may acquire the lease of a key.

    Attributes:
        key: The session and the server.
        worker: Where it was sent.
        given_up: Whether its caller has ceased to wait.
    """

    def __init__(self, key: LeaseKey, worker: WorkerAddress) -> None:
        self.key = key
        self.worker = worker
        self.given_up = False


class PendingAcquisitions:
    """The first calls of one client whose lease it does not know.

    Attributes:
        acquirer: The client's random name.
    """

    def __init__(self, acquirer: str) -> None:
        self.acquirer = acquirer
        self._calls: dict[tuple[LeaseKey, WorkerAddress], PendingAcquisition] = {}

    def begin(self, key: LeaseKey, worker: WorkerAddress) -> None:
        """Record that first calls of a key go to a worker from now on."""
        if (key, worker) not in self._calls:
            self._calls[key, worker] = PendingAcquisition(key, worker)
            if len(self._calls) > _MOST:
                del self._calls[next(iter(self._calls))]

    def give_up(self, key: LeaseKey, worker: WorkerAddress) -> None:
        """Record that a caller does not wait any more, whose call may have acquired the lease."""
        call = self._calls.get((key, worker))
        if call is not None:
            call.given_up = True

    def refuse(self, key: LeaseKey, worker: WorkerAddress) -> None:
        """Record that a worker acquired nothing; what was given up before stays."""
        call = self._calls.get((key, worker))
        if call is not None and not call.given_up:
            del self._calls[key, worker]

    def learn(self, key: LeaseKey, worker: WorkerAddress, lease: leases_pb2.Lease) -> bool:
        """Record that a lease is known; say whether this client acquired it."""
        self._calls.pop((key, worker), None)
        return self.acquired(lease, key)

    def acquired(self, lease: leases_pb2.Lease, key: LeaseKey) -> bool:
        """Return whether a lease that its worker reports is one of a key, acquired by this client.

        Another client of the session may have acquired it at the same moment: that one gives it
        back.
        """
        return lease.acquirer == self.acquirer and (lease.session, lease.server_id) == key

    def take(self, session: str | None = None) -> list[PendingAcquisition]:
        """Forget and return those of a session, or of all, whose leases are to be looked for.

        In a session that is left, calls under way go on; with the whole client they end.
        """
        taken = [
            call
            for call in self._calls.values()
            if session in (None, call.key.session) and (call.given_up or session is None)
        ]
        for call in taken:
            del self._calls[call.key, call.worker]
        return taken


class Lease:
    """A session's own MCP client for one server, kept alive by the SDK until it is released."""

    __slots__ = ("_held",)

    def __init__(self, held: Held) -> None:
        self._held = held

    @property
    def id(self) -> str:
        """Names the lease for good."""
        return self._held.lease_id

    @property
    def server_id(self) -> str:
        """The server that the leased client is connected to."""
        return self._held.server_id

    @property
    def session(self) -> str:
        """The session that holds it."""
        return self._held.session

    @property
    def worker(self) -> str:
        """The id of the worker that holds the client."""
        return self._held.worker.id

    @property
    def ttl(self) -> float:
        """The time to live in seconds that the worker granted."""
        return self._held.ttl

    @property
    def expires_at(self) -> datetime:
        """When it ends unless it is renewed, in UTC by this machine's clock; renewals move it."""
        return datetime.fromtimestamp(self._held.expires_wall, UTC)

    @property
    def reminder(self) -> str:
        """What to tell a model that now holds this lease."""
        return self._held.reminder

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Lease) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"Lease({self.id!r}, server_id={self.server_id!r}, worker={self.worker!r})"
