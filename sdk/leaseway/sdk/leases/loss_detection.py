"""Decides whether the leases on an unreachable worker are lost.

A client alone cannot tell a worker that has died from one that its network does not reach. The
control plane sees each worker by another path: a worker that neither of them reaches is lost, and
so are its leases. If the control plane is unreachable too, a lease stays held until it expires.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from leaseway.sdk.leases.book import LeaseBook
from leaseway.sdk.leases.lease import ClientLease
from leaseway.sdk.transport.control import ControlPlane
from leaseway.sdk.transport.workers import WorkerRun
from leaseway.v1 import admin_pb2
from leaseway.wire.bounds import WORKER_LOST_AFTER
from leaseway.wire.errors import Fault, Reason

_LOOKUP_TIMEOUT: Final = 2.0
_ALIVE_FOR: Final = 0.2
"""Seconds for which the control plane's answer that a worker is alive is reused."""


class LossDetector:
    """Ends the leases of one client that were lost with their workers.

    Args:
        control: Reports which workers are lost.
        book: The held leases.
        on_lost: Called with the leases that were found lost.
    """

    def __init__(
        self,
        control: ControlPlane,
        book: LeaseBook,
        on_lost: Callable[[list[ClientLease]], None],
    ) -> None:
        self._control = control
        self._on_lost = on_lost
        self._book = book
        self._loop = asyncio.get_running_loop()
        self._lookup = asyncio.Lock()
        self._alive: tuple[WorkerRun | None, float] = (None, 0.0)
        self._unreachable: dict[str, float] = {}

    async def handle_failure(
        self, lease: ClientLease, fault: Fault, deadline: float, *, draining: bool
    ) -> Fault:
        """Return the fault that the caller of a failed call gets; end the lease if it is lost.

        Args:
            lease: The lease that the call was made on.
            fault: How the call failed.
            deadline: The call's deadline, in the event loop's time.
            draining: Whether the worker has announced that it is shutting down.
        """
        if fault.reason is Reason.DRAINING or (draining and fault.reason is Reason.WORKER_LOST):
            revoked = replace(
                fault,
                reason=Reason.LEASE_REVOKED,
                message=f"Worker '{lease.worker.id}' is shutting down, which ended lease "
                f"{lease.lease_id} of server '{lease.key.server_id}'. Acquire it again; the "
                "server's state is lost.",
                retry_delay=None,
            )
            self._book.end(lease.lease_id, revoked, self._loop.time())
            return revoked
        if fault.reason is Reason.WORKER_LOST:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    if await self._is_lost(lease):
                        return replace(_lost(lease), started=fault.started)
        return fault

    def unreachable_workers(self, now: float) -> list[str]:
        """Return the ids of the workers found lost within the last `WORKER_LOST_AFTER` seconds."""
        for worker_id in [key for key, until in self._unreachable.items() if until <= now]:
            del self._unreachable[worker_id]
        return list(self._unreachable)

    async def _is_lost(self, lease: ClientLease) -> bool:
        async with self._lookup:  # calls on many leases fail at once; one lookup serves all
            now = self._loop.time()
            worker, until = self._alive
            if worker == lease.worker and now < until:
                return False
            leases = self._book.leases_on(lease.worker, now)
            if lease not in leases:
                return True  # the lookup of another call found it lost
            if not await self._is_worker_lost(lease.worker, now + _LOOKUP_TIMEOUT):
                self._alive = (lease.worker, self._loop.time() + _ALIVE_FOR)
                return False
            self._unreachable[lease.worker.id] = self._loop.time() + WORKER_LOST_AFTER
            for lost in leases:
                self._book.end(lost.lease_id, _lost(lost), self._loop.time(), is_lost=True)
            self._on_lost(leases)
            return True

    async def _is_worker_lost(self, worker: WorkerRun, deadline: float) -> bool:
        control = self._control
        client = control.identity.client_info
        try:
            asked = admin_pb2.ListWorkersRequest(client=client, worker_ids=[worker.id])
            answer = await control.request(control.admin.ListWorkers, asked, deadline)
            for info in answer.workers:
                if info.worker.id == worker.id:
                    return info.worker.incarnation != worker.incarnation or info.state == "lost"
            if answer.settled:
                return True
            status = await control.request(
                control.admin.GetStatus, admin_pb2.GetStatusRequest(client=client), deadline
            )
        except Fault:
            return False
        # A settling control plane may not have seen the worker yet. An older one has listed the
        # first page of all workers, without saying whether it is settled.
        return not status.settling


def _lost(lease: ClientLease) -> Fault:
    return Fault(
        Reason.LEASE_LOST,
        f"Worker '{lease.worker.id}' is lost, and lease {lease.lease_id} of server "
        f"'{lease.key.server_id}' with it. Acquire it again; the server's state is lost.",
        metadata={
            "lease": lease.lease_id,
            "server": lease.key.server_id,
            "worker": lease.worker.id,
        },
    )
