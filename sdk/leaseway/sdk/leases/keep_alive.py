"""Keep-alive of leases: one task per worker renews all leases there (design.md#leases).

A lease that reached its idle limit is released instead.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from typing import Final

from leaseway.sdk.leases.book import LeaseBook
from leaseway.sdk.leases.lease import ClientLease
from leaseway.sdk.transport.workers import WorkerPool, WorkerRun
from leaseway.wire.bounds import LEASE_TTL
from leaseway.wire.errors import Fault
from leaseway.wire.status import fault_from_status
from leaseway.wire.timing.backoff import RECONNECT
from leaseway.wire.timing.durations import seconds
from leaseway.wire.timing.running_tasks import start_lasting_task

_MAX_IDS: Final = 512  # fits into one message, even with the longest session keys
_MAX_CONCURRENT_RELEASES: Final = 32

_log = logging.getLogger("leaseway.sdk")


class KeepAliveTasks:
    """The keep-alive tasks of one client; each runs while its worker holds one of its leases.

    Args:
        book: The held leases.
        pool: Connections to the workers.
        release_idle: Releases a lease that reached its idle limit.
    """

    def __init__(
        self,
        book: LeaseBook,
        pool: WorkerPool,
        release_idle: Callable[[ClientLease], Awaitable[None]],
    ) -> None:
        self._book = book
        self._pool = pool
        self._release_idle = release_idle
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[WorkerRun, asyncio.Task[None]] = {}
        self._wakes: dict[WorkerRun, asyncio.Event] = {}
        self._wait_until: dict[WorkerRun, float] = {}  # of the tasks that wait

    def keep(self, lease: ClientLease) -> None:
        """Let the task of a lease's worker keep it: it is new, or may be due earlier than before.

        A task that waits looks at all leases of its worker, so it is woken only for an earlier one.
        """
        worker = lease.worker
        wake = self._wakes.get(worker)
        if wake is not None:
            if lease.due_at < self._wait_until.get(worker, -math.inf):
                wake.set()
            return
        self._pool.link(worker).ensure_stream()
        self._wakes[worker] = asyncio.Event()
        self._tasks[worker] = start_lasting_task(
            self._keep_alive(worker), f"leaseway keep-alive {worker.id}"
        )

    def cancel(self) -> list[asyncio.Task[None]]:
        """Cancel all tasks; return them, so that the caller may await them."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        return tasks

    async def _keep_alive(self, worker: WorkerRun) -> None:
        try:
            failures = 0
            while await self._wait_until_due(worker):
                try:
                    await self._release_all_idle(worker)
                    await self._renew(worker)
                except Fault:
                    pass  # the worker may become reachable again
                except Exception:  # noqa: BLE001 - other leases are still renewed
                    _log.exception("Leases on worker %s could not be renewed.", worker.id)
                # The book expires overdue leases; the others are retried.
                due = self._book.next_renewal(worker)
                if due is not None and due <= self._loop.time():
                    await asyncio.sleep(RECONNECT.delay(failures) + 0.02)
                    failures += 1
                else:
                    failures = 0
        finally:
            del self._wakes[worker]
            del self._tasks[worker]

    async def _wait_until_due(self, worker: WorkerRun) -> bool:
        """Wait until a lease is due; return False if the worker holds no lease."""
        wake = self._wakes[worker]
        while True:
            wake.clear()
            now = self._loop.time()
            if not self._book.leases_on(worker, now):
                return False
            due = self._book.next_due(worker)
            if due is None or now >= due:
                return due is not None
            # A call may renew the lease meanwhile, so its time is read again after the wait.
            self._wait_until[worker] = due
            try:
                async with asyncio.timeout_at(due):
                    await wake.wait()
            except TimeoutError:
                pass
            finally:
                del self._wait_until[worker]

    async def _release_all_idle(self, worker: WorkerRun) -> None:
        now = self._loop.time()
        idle = [lease for lease in self._book.leases_on(worker, now) if now >= lease.idle_at]
        for start in range(0, len(idle), _MAX_CONCURRENT_RELEASES):
            batch = idle[start : start + _MAX_CONCURRENT_RELEASES]
            await asyncio.gather(*map(self._release_idle, batch))

    async def _renew(self, worker: WorkerRun) -> None:
        """Renew all leases on a worker.

        A keep-alive without a response is not repeated: on a stalled connection a second one would
        wait behind the first. It ends with the connection, or when the last lease expires.
        """
        leases = self._book.leases_on(worker, self._loop.time())
        for start in range(0, len(leases), _MAX_IDS):
            batch = {lease.lease_id: lease for lease in leases[start : start + _MAX_IDS]}
            sent_at, wall = self._loop.time(), time.time()
            exchange = self._pool.link(worker).exchange
            try:
                async with asyncio.timeout_at(max(lease.expires_at for lease in batch.values())):
                    answer = await exchange.keep_alive(
                        list(batch), [lease.key.session for lease in batch.values()]
                    )
            except TimeoutError:
                return
            for renewal in answer.renewals:
                if renewal.HasField("error"):
                    fault = fault_from_status(renewal.error)
                    self._book.end(renewal.lease_id, fault, self._loop.time())
                elif renewal.lease_id in batch:
                    ttl = seconds(renewal.ttl) or LEASE_TTL
                    batch[renewal.lease_id].renew(ttl, sent_at, wall)
