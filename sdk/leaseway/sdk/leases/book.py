"""The leases of all sessions of one client: pure state, without I/O and without a clock.

The book finds the session of an event, and the leases on a worker. `state` decides what an event
changes.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from leaseway.sdk.leases.lease import ClientLease
from leaseway.sdk.leases.state import HeldLeases, SessionLeases
from leaseway.sdk.transport.workers import WorkerRun
from leaseway.wire.errors import Fault
from leaseway.wire.names import LeaseKey

_MAX_QUIET: Final = 16_384
"""Sessions that are remembered although they hold no lease and wait for none.

The oldest are forgotten first: how their leases ended, their idle limits, and calls that were given
up, whose leases then expire at their workers.
"""


class LeaseBook:
    """The leases of one client, by session.

    Args:
        tenant: The client's tenant.

    Attributes:
        sessions: The leases of each session that has or had any; only the book changes it.
        is_closing: Whether the client has left all sessions, and must acquire no more leases.
    """

    def __init__(self, tenant: str) -> None:
        self.held = HeldLeases()
        self._tenant = tenant
        self.sessions: dict[str, SessionLeases] = {}
        self.is_closing = False
        self._max = _MAX_QUIET

    def session(self, session: str) -> SessionLeases:
        """Return the leases of a session, also of a new one."""
        found = self.sessions.get(session)
        if found is None:
            found = self.sessions[session] = SessionLeases(self._tenant, session, self.held)
            if len(self.sessions) > self._max:
                self._forget_quiet()
        return found

    def leave(
        self, session: str, now: float, *, is_closing: bool = False
    ) -> tuple[list[ClientLease], list[tuple[LeaseKey, WorkerRun]]]:
        """Forget a session; return the leases that it held, and where others may exist.

        See `SessionLeases.leave`.
        """
        known = self.sessions.get(session)
        if known is None:
            return [], []
        left = known.leave(now, is_closing=is_closing)
        if known.is_blank:
            del self.sessions[session]
        return left

    def session_keys(self) -> list[str]:
        """Return the keys of all sessions that something is known of."""
        return list(self.sessions)

    def find(self, session: str, server_id: str, now: float) -> ClientLease | None:
        """Return the session's held lease of a server, or None if it has had none.

        Raises:
            Fault: The lease ended. It is raised until the lease is released or acquired again.
        """
        known = self.sessions.get(session)
        return None if known is None else known.find(server_id, now)

    def find_end(self, session: str, servers: Collection[str] | None) -> Fault | None:
        """Return how a lease of a session ended of which calls are told (see `SessionLeases`)."""
        known = self.sessions.get(session)
        return None if known is None else known.find_end(servers)

    def find_held(self, session: str, server_id: str, now: float) -> ClientLease | None:
        """Return the session's held lease of a server, or None, even if an older one ended."""
        known = self.sessions.get(session)
        return None if known is None else known.find_held(server_id, now)

    def tracks(self, session: str, server_id: str) -> bool:
        """Return whether the session's lease for a server is held or has ended."""
        known = self.sessions.get(session)
        return known is not None and known.tracks(server_id)

    def end(self, lease_id: str, fault: Fault, now: float, *, is_lost: bool = False) -> None:
        """End a held lease and remember why; an unknown lease id is ignored."""
        lease = self.held.find(lease_id)
        if lease is not None:
            session = self.sessions[lease.key.session]
            session.end(lease.key.server_id, fault, now, is_lost=is_lost)

    def forget_released(self, key: LeaseKey, lease_id: str, now: float) -> None:
        """Forget everything about a key whose lease was released, unless a newer lease is held.

        Args:
            lease_id: The released lease, or empty if its id was unknown.
            now: The current time.
        """
        session = self.sessions.get(key.session)
        if session is not None:
            held = session.find_held(key.server_id, now)
            if held is None or held.lease_id == lease_id:
                session.release(key.server_id, now)

    def forget_end(self, session: str, lease_id: str) -> None:
        """Forget that a lease ended, once its session has been notified."""
        if session in self.sessions:
            self.sessions[session].forget_end(lease_id)

    def held_leases(self, session: str | None = None) -> list[ClientLease]:
        """Return the held leases of one session, or of all."""
        if session is None:
            return self.held.all()
        known = self.sessions.get(session)
        return [] if known is None else known.leases()

    def leases_on(self, worker: WorkerRun, now: float) -> list[ClientLease]:
        """Return the held leases on a worker, after expiring those that are overdue."""
        for lease in self.held.on(worker):
            if now >= lease.expires_at:
                self.sessions[lease.key.session].expire(lease.key.server_id, now)
        return self.held.on(worker)

    def next_due(self, worker: WorkerRun) -> float | None:
        """Return when the first lease on a worker must be renewed or is idle; None without one."""
        return min((lease.due_at for lease in self.held.on(worker)), default=None)

    def next_renewal(self, worker: WorkerRun) -> float | None:
        """Return when the first lease on a worker must be renewed, or None without one."""
        return min((lease.renew_at for lease in self.held.on(worker)), default=None)

    def _forget_quiet(self) -> None:
        """Forget the oldest sessions that hold no lease and wait for none.

        Busy ones go to the end. Two steps for each new session are enough: a busy session is passed
        once, and then the quiet ones behind it are the oldest.
        """
        for _ in range(2):
            if len(self.sessions) <= self._max:
                return
            name, oldest = next(iter(self.sessions.items()))
            del self.sessions[name]
            if oldest.is_busy:
                self.sessions[name] = oldest
