"""A held lease: as its client keeps it, and as users see it.

Times are seconds of a monotonic clock; `wall` is the same moment as Unix time, for users.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from leaseway.sdk.plain_data import PlainData
from leaseway.sdk.transport.workers import WorkerRun
from leaseway.wire.bounds import LEASE_IDLE
from leaseway.wire.names import LeaseKey

_RENEW_AT: Final = 1 / 3
"""A lease is renewed after this fraction of its time to live (design.md#leases)."""


@dataclass(slots=True, eq=False, weakref_slot=True)
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

    key: LeaseKey
    lease_id: str
    worker: WorkerRun
    owned: bool
    reminder: str = ""
    ttl: float = 0.0
    renewed_at: float = 0.0
    expires_at: float = 0.0
    expires_wall: float = 0.0
    used_at: float = 0.0
    idle: float = LEASE_IDLE

    @property
    def renew_at(self) -> float:
        """When the next renewal is due."""
        return self.renewed_at + self.ttl * _RENEW_AT

    @property
    def idle_at(self) -> float:
        """When the idle limit is reached unless a call runs first."""
        return self.used_at + self.idle

    @property
    def due_at(self) -> float:
        """When the lease must be renewed, or is to be released because it is idle."""
        return min(self.renew_at, self.idle_at)

    def renew(self, ttl: float, at: float, wall: float) -> None:
        """Record a granted time to live; `at` is when the renewal was sent."""
        if at + ttl >= self.expires_at or ttl != self.ttl:
            self.ttl = ttl
            self.renewed_at = at
            self.expires_at = at + ttl
            self.expires_wall = wall + ttl

    def renew_by_call(self, ttl: float, sent_at: float, now: float, wall: float) -> None:
        """Record the time to live that an answered request, such as a call, granted.

        It counts from when the worker handled the request, which may have taken longer than the
        time to live itself. So it is counted from a third of it ago, to allow for the response's
        travel time; the next renewal corrects this.

        Args:
            ttl: Granted time to live in seconds.
            sent_at: When the request was sent.
            now: When it was answered.
            wall: The same as Unix time.
        """
        since = max(sent_at, now - ttl * _RENEW_AT)
        self.renew(ttl, since, wall - (now - since))


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
        return self._lease.key.server_id

    @property
    def session(self) -> str:
        """The session that holds the lease."""
        return self._lease.key.session

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
