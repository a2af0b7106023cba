"""Routes calls of `mcp_release` to the worker that holds the lease (DESIGN §5).

The client's book has the worker of its own leases. The worker of a lease that another client of the
session acquired is requested from the control plane, once. If the control plane does not answer,
the call is sent to any worker, which reports what it knows.
"""

from __future__ import annotations

from typing import NamedTuple

from leaseway.sdk.catalog.targets import Target
from leaseway.sdk.leases.book import SessionLeaseKey
from leaseway.sdk.leases.manager import LeaseManager
from leaseway.sdk.transport.workers import WorkerLink, WorkerPool, WorkerRun
from leaseway.wire.messages.admin import release_target


class Release(NamedTuple):
    """What a call of `mcp_release` releases; `lease_id` is empty if another client holds it."""

    key: SessionLeaseKey
    lease_id: str


class ReleaseRouter:
    """Finds the workers for one client's releases."""

    def __init__(self, pool: WorkerPool, leases: LeaseManager) -> None:
        self._pool = pool
        self._leases = leases

    async def route(
        self,
        session: str,
        arguments: bytes,
        target: Target,
        avoid: frozenset[WorkerRun],
        at: float,
    ) -> tuple[WorkerLink, Release | None]:
        """Return the worker of the lease, and what to release there.

        Args:
            session: The session of the call.
            arguments: Its arguments as JSON; invalid ones are rejected by the worker.
            target: The resolved tool, which every worker serves.
            avoid: Workers that failed.
            at: The current time of the event loop.

        Raises:
            Fault: No worker is available.
        """
        server_id = release_target(arguments)
        if server_id is None:
            return self._pool.pick(target.workers, avoid), None
        key = SessionLeaseKey(session, server_id)
        lease = self._leases.book.find_held(key, at)
        if lease is not None:
            return self._pool.link(lease.worker), Release(key, lease.lease_id)
        worker = await self._leases.find_worker(key)
        # Without an id, the lease that the session has when the call runs is released.
        if worker is not None:
            return self._pool.link(worker), Release(key, "")
        return self._pool.pick(target.workers, avoid), Release(key, "")
