"""The leases of a fake: who holds what until when, and how the others ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from leaseway.v1 import admin_pb2, leases_pb2
from leaseway.wire.admin import reminder
from leaseway.wire.bounds import LEASE_TTL
from leaseway.wire.durations import duration
from leaseway.wire.errors import Fault, Reason

_WORDS: Final = {
    Reason.LEASE_EXPIRED: ("expired", "has expired"),
    Reason.LEASE_REVOKED: ("revoked", "was revoked"),
    Reason.LEASE_RELEASED: ("released", "was released"),
    Reason.LEASE_LOST: ("lost", "was lost"),
}
"""How leases end: in the word of `lease_ends`, and in a sentence."""
_TOLD_FOR: Final = 60.0
"""Seconds for which it is told how a lease has ended."""

_MAX_ENDED: Final = 4_096
"""Leases of which it is remembered how they ended."""


@dataclass(eq=False)
class FakeLease:
    """One lease that is held.

    Attributes:
        state: What its server remembers for its holder.
        calls: What runs on it at the moment.
    """

    id: str
    server_id: str
    tenant: str
    session: str
    agent: str
    acquirer: str
    ttl: float
    begun_at: float
    expires_at: float
    state: dict[str, Any] = field(default_factory=dict)
    calls: set[asyncio.Task[None]] = field(default_factory=set)


@dataclass(frozen=True)
class _Ended:
    """How one lease ended, and at what time of the clock."""

    tenant: str
    fault: Fault
    at: float


class LeaseTable:
    """All leases of a fake worker.

    Args:
        incarnation: What lease ids begin with.
        worker_id: The worker.
        clock: Seconds, monotonic, that a test can put forward.

    Attributes:
        changed: Set whenever a lease ends: there may be room.
    """

    def __init__(self, incarnation: str, worker_id: str, clock: Callable[[], float]) -> None:
        self._incarnation = incarnation
        self._worker_id = worker_id
        self._clock = clock
        self._held: dict[str, FakeLease] = {}
        self._ended: dict[str, _Ended] = {}
        self._count = 0
        self.changed = asyncio.Event()

    @property
    def held(self) -> list[FakeLease]:
        """The leases that are held now, the oldest first."""
        now = self._clock()
        for lease in list(self._held.values()):
            if now >= lease.expires_at and not lease.calls:
                self.end(lease.id, Reason.LEASE_EXPIRED, "it was not renewed in time")
        return list(self._held.values())

    def find(self, tenant: str, session: str, server_id: str) -> FakeLease | None:
        """Return the lease of a key, or None."""
        key = (tenant, session, server_id)
        return next((o for o in self.held if (o.tenant, o.session, o.server_id) == key), None)

    def grant(
        self,
        tenant: str,
        session: str,
        server_id: str,
        *,
        agent: str,
        acquirer: str,
        ttl: float = LEASE_TTL,
    ) -> tuple[FakeLease, bool]:
        """Return the lease of a key, renewed, and whether it is new."""
        lease = self.find(tenant, session, server_id)
        now = self._clock()
        if lease is not None:
            lease.ttl, lease.expires_at = ttl, now + ttl
            return lease, False
        self._count += 1
        name = f"{self._incarnation}-{self._count}"
        lease = FakeLease(name, server_id, tenant, session, agent, acquirer, ttl, now, now + ttl)
        self._held[name] = lease
        return lease, True

    def get(self, lease_id: str, tenant: str = "", session: str = "") -> FakeLease:
        """Return a lease that is held, renewed.

        Args:
            lease_id: The lease.
            tenant: Whose it has to be; empty for anybody's.
            session: The same of its session.

        Raises:
            Fault: How it ended; LEASE_LOST where it is another's.

        """
        lease = next((one for one in self.held if one.id == lease_id), None)
        if lease is None:
            raise self.how_ended(lease_id)
        if tenant not in ("", lease.tenant) or session not in ("", lease.session):
            message = f"Lease {lease_id} is not one of this tenant and session; acquire one."
            raise Fault(Reason.LEASE_LOST, message, metadata={"lease": lease_id})
        self.renew(lease)
        return lease

    def holds(self, lease_id: str) -> bool:
        """Say whether a lease has not ended."""
        return lease_id in self._held

    def renew(self, lease: FakeLease) -> None:
        """Let a lease live for its whole time from now on."""
        lease.expires_at = self._clock() + lease.ttl

    def how_ended(self, lease_id: str) -> Fault:
        """Return why a lease is not held."""
        ended = self._ended.get(lease_id)
        if ended is not None:
            return ended.fault
        return _ended(lease_id, Reason.LEASE_LOST, "this worker does not know it")

    def recent_ends(self, tenant: str) -> list[admin_pb2.LeaseEnd]:
        """Return how leases of a tenant have ended within the last minute."""
        since = self._clock() - _TOLD_FOR
        return [
            admin_pb2.LeaseEnd(
                lease_id=lease_id, tenant=ended.tenant, how=_WORDS[ended.fault.reason][0]
            )
            for lease_id, ended in self._ended.items()
            if ended.tenant == tenant and ended.at >= since
        ]

    def end(self, lease_id: str, reason: Reason, why: str) -> None:
        """End a lease and what runs on it; one that is not held is left as it ended."""
        lease = self._held.pop(lease_id, None)
        if lease is None:
            return
        fault = _ended(lease_id, reason, why)
        self._ended[lease_id] = _Ended(lease.tenant, fault, self._clock())
        if len(self._ended) > _MAX_ENDED:
            del self._ended[next(iter(self._ended))]
        for call in list(lease.calls):
            call.cancel()
        self.changed.set()

    def message(self, lease: FakeLease) -> leases_pb2.Lease:
        """Return a lease for the wire."""
        return leases_pb2.Lease(
            id=lease.id,
            server_id=lease.server_id,
            worker_id=self._worker_id,
            tenant=lease.tenant,
            session=lease.session,
            agent=lease.agent,
            ttl=duration(lease.ttl),
            reminder=reminder(lease.server_id),
            instance_id=f"{lease.server_id}-{lease.id}",
            age=duration(self._clock() - lease.begun_at),
            acquirer=lease.acquirer,
        )


def _ended(lease_id: str, reason: Reason, why: str) -> Fault:
    because = f": {why.rstrip('.')}" if why else ""
    return Fault(
        reason,
        f"Lease {lease_id} {_WORDS[reason][1]}{because}. Acquire a new one to go on; what "
        "the old one's server kept is gone.",
        metadata={"lease": lease_id},
    )
