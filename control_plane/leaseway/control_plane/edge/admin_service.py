"""What operators ask the control plane."""

from __future__ import annotations

from typing import Any

import grpc

from leaseway.control_plane.edge import answers
from leaseway.control_plane.edge.callers import check_client, tenant_of
from leaseway.control_plane.edge.plane import Plane
from leaseway.control_plane.edge.sync_wire import problem_from_wire
from leaseway.v1 import admin_pb2, admin_pb2_grpc
from leaseway.wire.fault import Fault, Reason, abort
from leaseway.wire.version import PROTOCOL_VERSION, user_agent

__all__ = ["AdminService"]

_Context = grpc.aio.ServicerContext[Any, Any]


class AdminService(admin_pb2_grpc.AdminServiceServicer):
    """Shows and steers a running system."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane

    async def GetStatus(  # noqa: N802
        self, request: admin_pb2.GetStatusRequest, context: _Context
    ) -> admin_pb2.GetStatusResponse:
        """Say how far the system is."""
        await check_client(request.client, context)
        state = self._plane.state
        return admin_pb2.GetStatusResponse(
            ready=state.ready,
            registry_version=state.visible.version,
            config_loaded_at=answers.timestamp(state.config_loaded_at),
            pending=state.pending,
            workers=sum(record.connected for record in state.workers.values()),
            package_version=user_agent(),
            protocol_version=PROTOCOL_VERSION,
            epoch=state.epoch,
            settling=not state.settled,
        )

    async def ListWorkers(  # noqa: N802
        self, request: admin_pb2.ListWorkersRequest, context: _Context
    ) -> admin_pb2.ListWorkersResponse:
        """List workers, ordered by id."""
        await check_client(request.client, context)
        state = self._plane.state
        records = [record for _, record in sorted(state.workers.items())]
        return admin_pb2.ListWorkersResponse(
            workers=[answers.worker(state, record) for record in records]
        )

    async def ListHeldLeases(  # noqa: N802
        self, request: admin_pb2.ListHeldLeasesRequest, context: _Context
    ) -> admin_pb2.ListHeldLeasesResponse:
        """List the leases that workers have reported, ordered by id."""
        await check_client(request.client, context)
        now = self._plane.clock().mono
        held = [
            lease
            for _, lease in sorted(self._plane.state.placements.leases.items())
            if not request.tenant or lease.key.tenant == tenant_of(request.tenant)
        ]
        return admin_pb2.ListHeldLeasesResponse(
            leases=[answers.lease(lease, now) for lease in held]
        )

    async def ListProblems(  # noqa: N802
        self, request: admin_pb2.ListProblemsRequest, context: _Context
    ) -> admin_pb2.ListProblemsResponse:
        """List open problems, the newest first."""
        await check_client(request.client, context)
        problems = self._plane.state.problems.open()
        return admin_pb2.ListProblemsResponse(problems=[answers.problem(one) for one in problems])

    async def ReportProblem(  # noqa: N802
        self, request: admin_pb2.ReportProblemRequest, context: _Context
    ) -> admin_pb2.ReportProblemResponse:
        """Take a problem that a caller met."""
        await check_client(request.client, context)
        if not request.problem.reason or not request.problem.message:
            message = "A reported problem needs a reason and a message."
            await abort(context, Fault(Reason.INVALID_REQUEST, message))
        problem = problem_from_wire(request.problem)
        self._plane.act(lambda state, now: state.problems.report(problem, now.unix))
        return admin_pb2.ReportProblemResponse()

    async def DrainWorker(  # noqa: N802
        self, request: admin_pb2.DrainWorkerRequest, context: _Context
    ) -> admin_pb2.DrainWorkerResponse:
        """Tell a worker to take no more work and to end."""
        worker_id = request.worker_id
        if not self._plane.act(lambda state, now: state.drain_worker(worker_id, now)):
            message = f"No worker '{worker_id}' is connected. Look at `leaseway workers`."
            await abort(context, Fault(Reason.INVALID_REQUEST, message))
        return admin_pb2.DrainWorkerResponse()

    async def RevokeLease(  # noqa: N802
        self, request: admin_pb2.RevokeLeaseRequest, context: _Context
    ) -> admin_pb2.RevokeLeaseResponse:
        """End a lease against its holder's will."""
        lease_id = request.lease_id
        reason = request.reason or "An operator revoked it."
        if not self._plane.act(lambda state, _: state.revoke_lease(lease_id, reason)):
            message = f"No worker holds lease '{lease_id}'. Look at `leaseway leases`."
            await abort(context, Fault(Reason.LEASE_LOST, message, metadata={"lease": lease_id}))
        return admin_pb2.RevokeLeaseResponse()
