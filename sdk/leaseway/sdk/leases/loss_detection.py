"""What a failure on a lease's worker means for the lease: whether it can still be alive.

A client alone cannot tell a worker that has died from one that nothing leads to at the moment.
The control plane sees each worker by another way: what neither of them reaches is taken as gone,
and its leases as lost. While the control plane is unreachable too, the lease stands until its
time is over.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from leaseway.sdk.leases.book import Held, LeaseBook, LeaseKey
from leaseway.sdk.transport.control import ControlPlane
from leaseway.sdk.transport.workers import WorkerAddress
from leaseway.v1 import admin_pb2
from leaseway.wire.bounds import WORKER_LOST_AFTER
from leaseway.wire.errors import Fault, Reason

_ASK_BOUND: Final = 2.0
_MOST_LOST: Final = 16_384
"""Lost leases that the control plane is told of when their sessions begin anew."""
_STANDS_FOR: Final = 0.2
"""Seconds that a worker counts as alive after the control plane has said so."""


class LossJudge:
    """Says of leases whose worker fails whether they are over, for one client.

    Args:
        control: Sees the workers by another way.
        book: What is held.
        on_lost: Called with the leases that were just taken as lost.
    """

    def __init__(
        self,
        control: ControlPlane,
        book: LeaseBook,
        on_lost: Callable[[list[Held]], None] = lambda leases: None,
    ) -> None:
        self._control = control
        self._on_lost = on_lost
        self._lost: dict[LeaseKey, str] = {}
        self._book = book
        self._loop = asyncio.get_running_loop()
        self._asking = asyncio.Lock()
        self._stands: tuple[WorkerAddress | None, float] = (None, 0.0)
        self._unreached: dict[str, float] = {}

    async def judge(self, held: Held, fault: Fault, deadline: float, *, leaving: bool) -> Fault:
        """Return what a failed call on a lease tells its caller, and end what is over.

        Args:
            held: The lease that the call was made on.
            fault: How the call failed.
            deadline: When the call's caller gives up, in the event loop's time.
            leaving: Whether the worker has said that it takes no more calls.
        """
        if fault.reason is Reason.DRAINING or (leaving and fault.reason is Reason.WORKER_LOST):
            ended = replace(
                fault,
                reason=Reason.LEASE_REVOKED,
                message=f"Worker '{held.worker.id}' ends, and lease {held.lease_id} of server "
                f"'{held.server_id}' ends with it. Acquire it again; what its server kept is "
                "lost.",
                retry_delay=None,
            )
            self._book.end(held.lease_id, ended)
            return ended
        if fault.reason is Reason.WORKER_LOST:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    if await self._gone(held):
                        return replace(_lost(held), started=fault.started)
        return fault

    def unreached(self, now: float) -> list[str]:
        """Return the ids of the workers that were found gone in the time that makes one lost."""
        for worker_id in [each for each, until in self._unreached.items() if until <= now]:
            del self._unreached[worker_id]
        return list(self._unreached)

    def lost(self, key: LeaseKey) -> str:
        """Return the id of the lease that the holder of a key was told is lost; empty without."""
        return self._lost.get(key, "")

    def forget(self, key: LeaseKey) -> None:
        """Forget which lease of a key was lost: the control plane knows."""
        self._lost.pop(key, None)

    async def _gone(self, held: Held) -> bool:
        async with self._asking:  # calls of many leases fail at once; one asks for all
            now = self._loop.time()
            worker, until = self._stands
            if worker == held.worker and now < until:
                return False
            leases = self._book.on_worker(held.worker, now)
            if not any(lease is held for lease in leases):
                return True  # another call has asked and was told
            if not await self._is_gone(held.worker, now + _ASK_BOUND):
                self._stands = (held.worker, self._loop.time() + _STANDS_FOR)
                return False
            self._unreached[held.worker.id] = self._loop.time() + WORKER_LOST_AFTER
            for lease in leases:
                self._book.end(lease.lease_id, _lost(lease))
                self._lost[lease.key] = lease.lease_id
                if len(self._lost) > _MOST_LOST:
                    del self._lost[next(iter(self._lost))]
            self._on_lost(leases)
            return True

    async def _is_gone(self, worker: WorkerAddress, deadline: float) -> bool:
        control = self._control
        client = control.identity.client_info
        try:
            answer = await control.ask(
                control.admin.ListWorkers, admin_pb2.ListWorkersRequest(client=client), deadline
            )
            for known in answer.workers:
                if known.worker.id == worker.id:
                    same = known.worker.incarnation == worker.incarnation
                    return not same or known.state == "lost"
            status = await control.ask(
                control.admin.GetStatus, admin_pb2.GetStatusRequest(client=client), deadline
            )
        except Fault:
            return False
        return not status.settling  # else it may only not have joined yet


def _lost(held: Held) -> Fault:
    return Fault(
        Reason.LEASE_LOST,
        f"Worker '{held.worker.id}' is gone, and lease {held.lease_id} of server "
        f"'{held.server_id}' with it. Acquire it again; what its server kept is lost.",
        metadata={"lease": held.lease_id, "server": held.server_id, "worker": held.worker.id},
    )
