"""Where calls of `mcp_release` belong: to the worker that holds the lease (DESIGN §5).

The client's own book says so for what it holds. A lease that another client of the session took
is asked for at the control plane, once; where that does not answer, any worker says what it knows.
"""

from __future__ import annotations

from typing import NamedTuple

from leaseway.sdk.catalog.targets import Target
from leaseway.sdk.leases.book import SessionLeaseKey
from leaseway.sdk.leases.manager import LeaseManager
from leaseway.sdk.transport.workers import WorkerLink, WorkerPool, WorkerRun
from leaseway.wire.messages.admin import release_target


class Release(NamedTuple):
    """What one call of `mcp_release` means: a key, and its lease where this client holds it."""

    key: SessionLeaseKey
    lease_id: str


class Releases:
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
        """Return the worker to ask, and what to release there.

        Args:
            session: The session of the call.
            arguments: Its arguments as JSON; what is wrong with them, the worker says.
            target: Where the name leads: to any worker.
            avoid: Workers that failed.
            at: The time, of the event loop.

        Raises:
            Fault: No worker is left.
        """
        server_id = release_target(arguments)
        if server_id is None:
            return self._pool.pick(target.workers, avoid), None
        key = SessionLeaseKey(session, server_id)
        held = self._leases.book.find_held(key, at)
        if held is not None:
            return self._pool.link(held.worker), Release(key, held.lease_id)
        holder = await self._leases.find_worker(key)
        # Not named by its id: whichever lease the session has by now is meant.
        if holder is not None:
            return self._pool.link(holder), Release(key, "")
        return self._pool.pick(target.workers, avoid), Release(key, "")
