"""Finds leases that other clients of a session use; the control plane knows them."""

from __future__ import annotations

import asyncio
from typing import Final

from leaseway.sdk.leases.lease import ClientLease
from leaseway.sdk.transport.control import ControlPlane
from leaseway.sdk.transport.workers import WorkerRun, worker_from_proto
from leaseway.wire.bounds import SETTLING
from leaseway.wire.errors import Fault
from leaseway.wire.names import LeaseKey

_TIMEOUT: Final = SETTLING + 1.0
"""Seconds to wait; longer than a control plane that has just started waits for its workers."""


class LeaseLookup:
    """Asks the control plane for leases. It renews none."""

    def __init__(self, control: ControlPlane) -> None:
        self._control = control

    async def find(self, key: LeaseKey, deadline: float) -> ClientLease | None:
        """Return the lease of a key that a worker has reported, or None.

        Raises:
            Fault: The control plane rejected the request, or could not be reached.
        """
        answer = await self._control.find_lease(key.session, key.server_id, deadline)
        if not answer.lease_id:
            return None
        return ClientLease(key, answer.lease_id, worker_from_proto(answer.worker), owned=False)

    async def find_worker(self, key: LeaseKey) -> WorkerRun | None:
        """Ask once which worker holds the lease of a key.

        Returns None if no worker does, or if the control plane does not answer.
        """
        try:
            answer = await self._control.find_lease(key.session, key.server_id, _soon())
        except Fault:
            return None
        return worker_from_proto(answer.worker) if answer.HasField("worker") else None

    async def of_session(self, session: str) -> list[ClientLease]:
        """Return the leases of a session; none if the control plane is older or out of reach."""
        if not self._control.connected:
            return []  # whoever asks has other leases to look at
        try:
            answer = await self._control.find_lease(session, "", _soon())
        except Fault:
            return []
        tenant = self._control.identity.tenant
        return [
            ClientLease(
                LeaseKey(tenant, session, found.server_id),
                found.lease_id,
                worker_from_proto(found.worker),
                owned=False,
            )
            for found in answer.leases
        ]


def _soon() -> float:
    return asyncio.get_running_loop().time() + _TIMEOUT
