"""The lease RPCs of a worker (DESIGN §5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import grpc

from leaseway.data_plane.core.lease_table import Lease, LeaseKey
from leaseway.data_plane.edge.executor import Executor
from leaseway.data_plane.edge.lease_keeper import LeaseKeeper
from leaseway.data_plane.edge.pool import Pool
from leaseway.data_plane.edge.renewals import renew_all
from leaseway.v1 import leases_pb2, leases_pb2_grpc
from leaseway.wire.client_version import check_client_version
from leaseway.wire.durations import seconds
from leaseway.wire.fault import Fault, abort
from leaseway.wire.names import DEFAULT_TENANT, LONGEST_KEY
from leaseway.wire.pages import one_page, page_start
from leaseway.wire.reasons import Reason

__all__ = ["LeaseService"]

_LONGEST_WAIT: Final = 3600.0
Context = grpc.aio.ServicerContext[Any, Any]


class LeaseService(leases_pb2_grpc.LeaseServiceServicer):
    """Grants and ends leases.

    Args:
        pool: What is served.
        leases: Who holds what.
        executor: Whether the worker takes new work.
        lease_message: Describes a lease.

    """

    def __init__(
        self,
        pool: Pool,
        leases: LeaseKeeper,
        executor: Executor,
        lease_message: Callable[[Lease], leases_pb2.Lease],
    ) -> None:
        self._pool = pool
        self._leases = leases
        self._executor = executor
        self._lease_message = lease_message

    async def AcquireLease(  # noqa: N802 - gRPC's name
        self, request: leases_pb2.AcquireLeaseRequest, context: Context
    ) -> leases_pb2.AcquireLeaseResponse:
        """Grant the lease of a (tenant, session, server), or return the one that is held."""
        try:
            return await self._acquire(request)
        except Fault as fault:
            await abort(context, fault)

    async def _acquire(
        self, request: leases_pb2.AcquireLeaseRequest
    ) -> leases_pb2.AcquireLeaseResponse:
        check_client_version(request.client, "this worker")
        if self._executor.draining:
            raise self._executor.leaving()
        key = LeaseKey(request.tenant or DEFAULT_TENANT, request.session, request.server_id)
        if not key.session:
            raise Fault(Reason.SESSION_REQUIRED, "A lease belongs to a session: name one.")
        await self._pool.wait_version(request.registry_version)
        wait = seconds(request.wait) if request.HasField("wait") else 0.0
        lease, created = await self._leases.acquire(
            key,
            agent=request.client.agent,
            acquirer=request.acquirer[:LONGEST_KEY],
            ttl=seconds(request.ttl) if request.HasField("ttl") else None,
            wait=min(wait, _LONGEST_WAIT),
        )
        return leases_pb2.AcquireLeaseResponse(lease=self._lease_message(lease), created=created)

    async def ReleaseLease(  # noqa: N802 - gRPC's name
        self, request: leases_pb2.ReleaseLeaseRequest, context: Context
    ) -> leases_pb2.ReleaseLeaseResponse:
        """End a lease for its holder."""
        try:
            self._leases.check_holder(request.lease_id, request.tenant, request.session)
            released = self._leases.release(request.lease_id)
        except Fault as fault:
            await abort(context, fault)
        return leases_pb2.ReleaseLeaseResponse(released=released)

    async def KeepAlive(  # noqa: N802 - gRPC's name
        self, request: leases_pb2.KeepAliveRequest, context: Context
    ) -> leases_pb2.KeepAliveResponse:
        """Renew leases."""
        return renew_all(self._leases, request)

    async def ListLeases(  # noqa: N802 - gRPC's name
        self, request: leases_pb2.ListLeasesRequest, context: Context
    ) -> leases_pb2.ListLeasesResponse:
        """List one page of the leases held, ordered by id."""
        try:
            start = page_start("ListLeases", request)
        except Fault as fault:
            await abort(context, fault)
        held = sorted(self._leases.leases, key=lambda lease: lease.id)
        wanted = (
            ((lease.id,), lease) for lease in held if request.tenant in ("", lease.key.tenant)
        )
        leases, token = one_page(start, wanted, self._lease_message)
        return leases_pb2.ListLeasesResponse(leases=leases, next_page_token=token)
