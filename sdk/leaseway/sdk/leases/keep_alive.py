"""Keeps leases alive: one task a worker, one keep-alive for all leases there (DESIGN §5).

Those that nobody has called for long are given back instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

from leaseway.sdk.leases.book import Held, LeaseBook
from leaseway.sdk.transport.workers import WorkerAddress, WorkerPool
from leaseway.wire.bounds import LEASE_TTL
from leaseway.wire.errors import Fault
from leaseway.wire.status import fault_from_status
from leaseway.wire.timing.backoff import Backoff
from leaseway.wire.timing.durations import seconds

_MAX_IDS: Final = 512  # with the longest sessions, what one message holds
_AT_ONCE: Final = 32
"""Idle leases that are given back at the same time."""
_RETRY: Final = Backoff(initial=0.1, maximum=2.0)

_log = logging.getLogger("leaseway.sdk")


class Keepers:
    """The keep-alive tasks of one client; each lives while its worker holds a lease of it.

    Args:
        book: What is held.
        pool: The workers.
        end_idle: Gives back a lease that has been idle for too long.
    """

    def __init__(
        self, book: LeaseBook, pool: WorkerPool, end_idle: Callable[[Held], Awaitable[None]]
    ) -> None:
        self._book = book
        self._pool = pool
        self._end_idle = end_idle
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[WorkerAddress, asyncio.Task[None]] = {}
        self._wakes: dict[WorkerAddress, asyncio.Event] = {}

    def watch(self, worker: WorkerAddress) -> None:
        """Note a new or shorter lease on a worker."""
        wake = self._wakes.get(worker)
        if wake is not None:
            wake.set()
            return
        self._pool.link(worker).listen()
        self._wakes[worker] = asyncio.Event()
        self._tasks[worker] = self._loop.create_task(
            self._keep(worker), name=f"leaseway keep-alive {worker.id}"
        )

    def abort(self) -> None:
        """Begin to end, without waiting."""
        for task in self._tasks.values():
            task.cancel()

    async def close(self) -> None:
        """Stop renewing."""
        tasks = list(self._tasks.values())
        self.abort()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep(self, worker: WorkerAddress) -> None:
        try:
            failures = 0
            while await self._until_due(worker):
                try:
                    await self._end_all_idle(worker)
                    await self._renew(worker)
                except Fault:
                    pass  # the worker may come back
                except Exception:
                    _log.exception("Leases on worker %s could not be renewed.", worker.id)
                # What is past its time ends by the book; until then it is tried again.
                due = self._book.next_renewal(worker)
                if due is not None and due <= self._loop.time():
                    await asyncio.sleep(_RETRY.delay(failures) + 0.02)
                    failures += 1
                else:
                    failures = 0
        finally:
            del self._wakes[worker]
            del self._tasks[worker]

    async def _until_due(self, worker: WorkerAddress) -> bool:
        """Wait until a lease is to be renewed; False where none is left."""
        wake = self._wakes[worker]
        while True:
            wake.clear()
            now = self._loop.time()
            if not self._book.on_worker(worker, now):
                return False
            due = self._book.next_due(worker)
            if due is None or now >= due:
                return due is not None
            # A call may renew meanwhile: what is due is looked at again afterwards.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await wake.wait()

    async def _end_all_idle(self, worker: WorkerAddress) -> None:
        now = self._loop.time()
        idle = [held for held in self._book.on_worker(worker, now) if now >= held.idle_at]
        for start in range(0, len(idle), _AT_ONCE):
            await asyncio.gather(*map(self._end_idle, idle[start : start + _AT_ONCE]))

    async def _renew(self, worker: WorkerAddress) -> None:
        """Renew all leases on a worker.

        A keep-alive that is never answered is not repeated: on a silent connection a second one
        would wait behind the first. It ends with the connection or with the last lease.
        """
        held = self._book.on_worker(worker, self._loop.time())
        for start in range(0, len(held), _MAX_IDS):
            leases = held[start : start + _MAX_IDS]
            at, wall = self._loop.time(), time.time()
            last = max(lease.expires_at for lease in leases)
            exchange = self._pool.link(worker).exchange
            try:
                async with asyncio.timeout_at(last):
                    answer = await exchange.keep_alive(
                        [lease.lease_id for lease in leases], [lease.session for lease in leases]
                    )
            except TimeoutError:
                return
            known = {lease.lease_id: lease for lease in leases}
            for renewal in answer.renewals:
                if renewal.HasField("error"):
                    self._book.end(renewal.lease_id, fault_from_status(renewal.error))
                elif renewal.lease_id in known:
                    ttl = seconds(renewal.ttl) or LEASE_TTL
                    known[renewal.lease_id].renew(ttl, at, wall)
