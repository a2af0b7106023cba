"""Callers that wait for room for a lease: tenants take turns, each in its own order (DESIGN §5).

Whoever frees a place calls `serve`, which hands it to the first who can use it before anybody
else runs: a newcomer never overtakes those who wait, and one place wakes one caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from leaseway.data_plane.core.leases.table import LeaseLimitReached, WorkerLease, WorkerLeaseKey
from leaseway.wire import bounds
from leaseway.wire.errors import Fault
from leaseway.wire.turns import fair_order, find_evicted

Granted = tuple[WorkerLease, bool, asyncio.Future[None] | None]
"""A lease, whether it is new, and what is done when its instance is up; None where it is."""


@dataclass(frozen=True, eq=False)
class _Waiter:
    key: WorkerLeaseKey
    attempt: Callable[[], Granted]
    full: LeaseLimitReached
    turn: asyncio.Future[Granted] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class LeaseWaitQueue:
    """A line of at most 1,024 callers.

    In a full one, the newest caller of the tenant with the most makes place for another tenant.

    Args:
        held_by: How many leases a tenant has.
    """

    def __init__(self, held_by: Callable[[str], int] = lambda _tenant: 0) -> None:
        self._held_by = held_by
        self._waiters: dict[_Waiter, None] = {}

    def __len__(self) -> int:
        return len(self._waiters)

    async def wait(
        self,
        key: WorkerLeaseKey,
        attempt: Callable[[], Granted],
        full: LeaseLimitReached,
        seconds: float,
    ) -> Granted:
        """Return what the attempt returns as soon as there is room.

        Args:
            key: Whose lease for what.
            attempt: Takes the room; must not wait.
            full: Why there is none.
            seconds: How long to wait.

        Raises:
            LeaseLimitReached: There was none in time, or too many wait already.
            Fault: The attempt was refused, or `fail` ended the wait.
        """
        if seconds <= 0:
            raise full
        if not self._has_place(key.tenant):
            full.of_line = True
            raise full
        waiter = _Waiter(key, attempt, full)
        self._waiters[waiter] = None
        try:
            await asyncio.wait([waiter.turn], timeout=seconds)
        finally:
            self._waiters.pop(waiter, None)
        if not waiter.turn.done():
            raise full
        return waiter.turn.result()

    def serve(self) -> None:
        """Retry the waiters for whom the room that there is now may suffice, in turn."""
        full: set[tuple[str, str]] = set()
        granted: set[WorkerLeaseKey] = set()
        nowhere = False
        for waiter in fair_order(self._waiters, lambda one: one.key.tenant, self._held_by):
            wanted = (waiter.key.tenant, waiter.key.server_id)
            # Who shares a lease that was granted just now needs no room of its own.
            if (nowhere or wanted in full) and waiter.key not in granted:
                continue
            try:
                taken = waiter.attempt()
            except LeaseLimitReached as none:
                nowhere = none.everywhere
                full.add(wanted)
            except Fault as fault:
                self._end(waiter).set_exception(fault)
            else:
                granted.add(waiter.key)
                self._end(waiter).set_result(taken)

    def fail(self, fault: Fault) -> None:
        for waiter in tuple(self._waiters):
            self._end(waiter).set_exception(fault)

    def _has_place(self, tenant: str) -> bool:
        if len(self._waiters) < bounds.MAX_WAITING:
            return True
        newest = find_evicted(self._waiters.keys(), lambda one: one.key.tenant, tenant)
        if newest is None:
            return False
        newest.full.of_line = True
        self._end(newest).set_exception(newest.full)
        return True

    def _end(self, waiter: _Waiter) -> asyncio.Future[Granted]:
        del self._waiters[waiter]
        waiter.turn.add_done_callback(_seen)
        return waiter.turn


def _seen(turn: asyncio.Future[Granted]) -> None:
    # A caller that was cancelled at this moment does not look at it any more.
    if not turn.cancelled():
        turn.exception()
