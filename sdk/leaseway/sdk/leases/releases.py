"""The releases of one client's leases, also of leases whose ids it does not know.

See design.md#leases.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from leaseway.sdk.leases.attempts import should_reconnect
from leaseway.sdk.leases.lease import ClientLease
from leaseway.sdk.transport.workers import WorkerPool, WorkerRun
from leaseway.v1 import leases_pb2
from leaseway.wire.bounds import MAX_LEASE_TTL
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.listing.pages import every_page
from leaseway.wire.messages.states import LEASE_ENDED
from leaseway.wire.names import LeaseKey
from leaseway.wire.timing.backoff import RECONNECT, RETRY
from leaseway.wire.timing.durations import duration

_RELEASE_TIMEOUT: Final = 5.0
_LOOKUP_TIMEOUT: Final = 2.0

_log = logging.getLogger("leaseway.sdk")


class LeaseReleases:
    """Sends the releases of one client.

    Args:
        pool: Connections to the workers.
        acquirer: The client's random name.
    """

    def __init__(self, pool: WorkerPool, acquirer: str) -> None:
        self._pool = pool
        self._acquirer = acquirer

    async def release(
        self, lease: ClientLease, leave: leases_pb2.ReleaseLeaseRequest | None = None
    ) -> bool:
        """Release a lease, or leave it; return whether this ended it.

        Args:
            leave: The fields of a release for this client only.

        Raises:
            Fault: The worker did not answer; the lease expires after its time to live.
        """
        reconnects = 0
        while True:
            try:
                answer = await self.request(lease, leave=leave)
                return answer.released
            except Fault as fault:
                if should_reconnect(fault, reconnects):
                    reconnects += 1
                    await asyncio.sleep(RECONNECT.delay(reconnects - 1))
                    continue
                if fault.reason in LEASE_ENDED or fault.reason is Reason.WORKER_LOST:
                    # It has ended, perhaps by the request whose connection broke, or it ends with
                    # its worker or its time to live.
                    return bool(reconnects) and fault.reason is Reason.LEASE_RELEASED
                raise

    async def retry(self, lost: list[ClientLease]) -> None:
        """Release leases that were reported as lost, once their worker becomes reachable."""
        expiry = asyncio.get_running_loop().time() + max(lease.ttl for lease in lost)
        tries = 0
        while asyncio.get_running_loop().time() < expiry:
            await asyncio.sleep(RETRY.ceiling(tries))
            tries += 1
            try:
                for lease in lost:
                    try:
                        await self.request(lease)
                    except Fault as fault:
                        if fault.reason not in LEASE_ENDED:
                            raise
                return
            except Fault as fault:
                _log.debug("Lost leases are not released yet: %s", fault)

    async def leave(self, lease: ClientLease, keep: float) -> bool:
        """Tell a worker that this client no longer uses a lease; return whether this ended it.

        An older worker reads only `idle`: it releases leases that this client acquired, and of the
        others those that nobody has called for long.

        Args:
            keep: Seconds without a call after which the lease then ends; 0 ends it at once, unless
                another client has joined it.
        """
        idle = keep or (0.0 if lease.owned else MAX_LEASE_TTL)
        leave = leases_pb2.ReleaseLeaseRequest(
            leaving_client=self._acquirer,
            keep=duration(keep) if keep else None,
            idle=duration(idle) if idle else None,
        )
        return await self.release(lease, leave)

    async def leave_unknown(self, key: LeaseKey, worker: WorkerRun, keep: float) -> bool:
        """Leave the lease that an abandoned first call acquired, if there is one.

        Returns:
            Whether this ended one.
        """
        link = self._pool.link(worker)

        async def page(token: str) -> leases_pb2.ListLeasesResponse:
            request = leases_pb2.ListLeasesRequest(tenant=key.tenant, page_token=token)
            answer: leases_pb2.ListLeasesResponse = await link.request(
                link.leases.ListLeases, request, _LOOKUP_TIMEOUT
            )
            return answer

        ended = False
        try:
            async for response in every_page(page):
                for found in response.leases:
                    if is_acquired_by(self._acquirer, found, key):
                        lease = ClientLease(key, found.id, worker, owned=True)
                        ended |= await self.leave(lease, keep)
        except Fault as fault:
            _log.warning(
                "A call of server %s was given up, and a lease that it may have acquired could "
                "not be released: %s It expires by itself.",
                key.server_id,
                fault,
            )
        return ended

    async def request(
        self,
        lease: ClientLease,
        idle: float | None = None,
        leave: leases_pb2.ReleaseLeaseRequest | None = None,
    ) -> leases_pb2.ReleaseLeaseResponse:
        """Send one release.

        Args:
            idle: Releases it only if no call has run on it for so many seconds.
            leave: The fields of a release for this client only.
        """
        link = self._pool.link(lease.worker)
        request = leases_pb2.ReleaseLeaseRequest(
            lease_id=lease.lease_id,
            tenant=lease.key.tenant,
            session=lease.key.session,
            idle=None if idle is None else duration(idle),
        )
        if leave is not None:
            request.MergeFrom(leave)
        answer: leases_pb2.ReleaseLeaseResponse = await link.request(
            link.leases.ReleaseLease, request, _RELEASE_TIMEOUT
        )
        return answer


def is_acquired_by(acquirer: str, lease: leases_pb2.Lease, key: LeaseKey) -> bool:
    """Return whether a client acquired the lease for a key.

    If another client of the session acquired it, that client releases it.
    """
    owner = (lease.acquirer, lease.session, lease.server_id)
    return owner == (acquirer, key.session, key.server_id)
