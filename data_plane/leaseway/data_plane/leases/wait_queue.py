"""The queue of callers that wait for room for a lease; tenants take turns (DESIGN §5).

After a place has become free, `serve` hands it to the first waiter that can use it before any
other task runs: a newcomer never overtakes a waiter, and one place wakes one waiter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from leaseway.data_plane.core.leases.table import LeaseLimitReached, WorkerLease
from leaseway.wire import bounds
from leaseway.wire.errors import Fault
from leaseway.wire.names import LeaseKey
from leaseway.wire.turns import fair_order, find_evicted

Granted = tuple[WorkerLease, bool, asyncio.Future[None] | None]
"""A lease, whether it is new, and the future of its instance's start, None once it has started."""


@dataclass(frozen=True, eq=False)
class _Waiter:
    key: LeaseKey
    attempt: Callable[[], Granted]
    limit: LeaseLimitReached
    result: asyncio.Future[Granted] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    @property
    def tenant(self) -> str:
        return self.key.tenant


class LeaseWaitQueue:
    """A queue of at most 1,024 callers.

    When it is full, the newest caller of the tenant with the most callers is dropped for a
    caller of another tenant.

    Args:
        held_by: Returns the number of leases of a tenant.
    """

    def __init__(self, held_by: Callable[[str], int] = lambda _tenant: 0) -> None:
        self._held_by = held_by
        self._waiters: dict[_Waiter, None] = {}

    def __len__(self) -> int:
        return len(self._waiters)

    async def wait(
        self,
        key: LeaseKey,
        attempt: Callable[[], Granted],
        limit: LeaseLimitReached,
        seconds: float,
    ) -> Granted:
        """Return the result of the attempt as soon as there is room.

        Args:
            key: The key of the wanted lease.
            attempt: Acquires the lease; must not wait.
            limit: The limit that the first attempt reached.
            seconds: How long to wait.

        Raises:
            LeaseLimitReached: There was no room in time, or the queue is full.
            Fault: The attempt failed, or `reject_all` ended the wait.
        """
        if seconds <= 0:
            raise limit
        if not self._make_room(key.tenant):
            limit.queue_full = True
            raise limit
        waiter = _Waiter(key, attempt, limit)
        self._waiters[waiter] = None
        try:
            await asyncio.wait([waiter.result], timeout=seconds)
        finally:
            self._waiters.pop(waiter, None)
        if not waiter.result.done():
            raise limit
        return waiter.result.result()

    def serve(self) -> None:
        """Retry the waiters for which there may be room now, tenants in turn."""
        full: set[tuple[str, str]] = set()
        granted: set[LeaseKey] = set()
        worker_full = False
        for waiter in fair_order(self._waiters, lambda waiter: waiter.tenant, self._held_by):
            scope = (waiter.tenant, waiter.key.server_id)
            # A waiter for a lease that was granted just now needs no additional capacity.
            if (worker_full or scope in full) and waiter.key not in granted:
                continue
            try:
                result = waiter.attempt()
            except LeaseLimitReached as limit:
                worker_full = limit.worker_full
                full.add(scope)
            except Fault as fault:
                self._remove(waiter).set_exception(fault)
            else:
                granted.add(waiter.key)
                self._remove(waiter).set_result(result)

    def reject_all(self, fault: Fault) -> None:
        for waiter in tuple(self._waiters):
            self._remove(waiter).set_exception(fault)

    def _make_room(self, tenant: str) -> bool:
        if len(self._waiters) < bounds.MAX_WAITING:
            return True
        newest = find_evicted(self._waiters.keys(), lambda waiter: waiter.tenant, tenant)
        if newest is None:
            return False
        newest.limit.queue_full = True
        self._remove(newest).set_exception(newest.limit)
        return True

    def _remove(self, waiter: _Waiter) -> asyncio.Future[Granted]:
        del self._waiters[waiter]
        waiter.result.add_done_callback(mark_retrieved)
        return waiter.result


def mark_retrieved(future: asyncio.Future[Granted] | asyncio.Future[None]) -> None:
    """Keep asyncio from logging the exception of a future whose waiter was cancelled."""
    if not future.cancelled():
        future.exception()
