"""What operators ask the control plane of a fake."""

from __future__ import annotations

import time
from typing import Any, Final

from leaseway.sdk.testing.approvals import FakeApprovals
from leaseway.sdk.testing.lease_table import LeaseTable
from leaseway.sdk.testing.paging import page_of
from leaseway.sdk.testing.registry import Registry
from leaseway.v1 import admin_pb2, admin_pb2_grpc, catalog_pb2
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.names import DEFAULT_TENANT
from leaseway.wire.status import abort
from leaseway.wire.version import PROTOCOL_VERSION, user_agent

_MAX_PROBLEMS: Final = 1_000


class FakeAdmin(admin_pb2_grpc.AdminServiceServicer):
    """Shows what a fake does; lives in one event loop.

    Args:
        registry: What is offered.
        leases: What is held.
        capacity: How many leases there is room for.
        approvals: Calls that need a person.

    Attributes:
        worker: Where the worker is.
        problems: What callers have reported, the one longest not met first.
    """

    def __init__(
        self, registry: Registry, leases: LeaseTable, capacity: int, approvals: FakeApprovals
    ) -> None:
        self._registry = registry
        self._leases = leases
        self._capacity = capacity
        self._approvals = approvals
        self._epoch = int(time.time() * 1e6)
        self.worker = catalog_pb2.WorkerRef()
        self.problems: list[admin_pb2.Problem] = []

    async def GetStatus(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Say that everything is ready."""
        answer = admin_pb2.GetStatusResponse(
            ready=True,
            registry_version=self._registry.version,
            workers=1,
            package_version=user_agent(),
            protocol_version=PROTOCOL_VERSION,
            epoch=self._epoch,
            servers_up=len(self._registry.servers),
            servers=len(self._registry.servers),
        )
        answer.config_loaded_at.GetCurrentTime()
        return answer

    async def WatchEvents(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Say that nothing has happened: a fake keeps no history."""
        yield admin_pb2.WatchEventsResponse(up_to_date=True)

    async def ListCalls(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Remember no calls."""
        return admin_pb2.ListCallsResponse()

    async def GetTraffic(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Count no calls."""
        return admin_pb2.GetTrafficResponse()

    async def ListWorkers(self, request: Any, context: Any) -> Any:  # noqa: N802
        """List the one worker."""
        held = len(self._leases.held)
        shared = sum(not server.stateful for server in self._registry.servers.values())
        status = admin_pb2.WorkerStatus(
            worker=self.worker,
            state="connected",
            capacity=self._capacity,
            leases=held,
            instances=held + shared,
            sent_version=self._registry.version,
            acked_version=self._registry.version,
            package_version=user_agent(),
        )
        workers = [((self.worker.id,), status)]
        page, token = await page_of("ListWorkers", workers, request, context)
        return admin_pb2.ListWorkersResponse(workers=page, next_page_token=token)

    async def ListHeldLeases(self, request: Any, context: Any) -> Any:  # noqa: N802
        """List one page of the tenant's leases; in the first one, how others ended."""
        tenant = request.tenant or DEFAULT_TENANT
        held = {one.id: one for one in self._leases.held if one.tenant == tenant}
        leases = [((name,), self._leases.message(one)) for name, one in sorted(held.items())]
        page, token = await page_of("ListHeldLeases", leases, request, context)
        ended = [] if request.page_token else self._leases.recent_ends(tenant)
        return admin_pb2.ListHeldLeasesResponse(leases=page, ended=ended, next_page_token=token)

    async def ListProblems(self, request: Any, context: Any) -> Any:  # noqa: N802
        """List one page of what callers have reported, the newest first."""
        places = ((f"{_MAX_PROBLEMS - number:04}",) for number in range(len(self.problems)))
        problems = [*zip(places, self.problems, strict=True)][::-1]
        page, token = await page_of("ListProblems", problems, request, context)
        return admin_pb2.ListProblemsResponse(problems=page, next_page_token=token)

    async def ReportProblem(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Take a problem, or count it once more."""
        problem = request.problem
        if not problem.reason or not problem.message:
            message = "A reported problem needs a reason and a message."
            await abort(context, Fault(Reason.INVALID_REQUEST, message))
        problem.last_seen.GetCurrentTime()
        problem.first_seen.CopyFrom(problem.last_seen)
        problem.count = 1
        for known in self.problems:
            if _identity(known) == _identity(problem):
                problem.first_seen.CopyFrom(known.first_seen)
                problem.count += known.count
                self.problems.remove(known)
                break
        if len(self.problems) < _MAX_PROBLEMS:
            self.problems.append(problem)
        return admin_pb2.ReportProblemResponse()

    async def ListApprovals(self, request: Any, context: Any) -> Any:  # noqa: N802
        """List one page of calls that need a person, the newest first."""
        found = self._approvals.listed(request.tenant)
        page, token = await page_of("ListApprovals", found, request, context)
        return admin_pb2.ListApprovalsResponse(approvals=page, next_page_token=token)

    async def DecideApproval(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Agree to a call that waits for a person, or refuse it."""
        try:
            approval = self._approvals.decide(request)
        except Fault as fault:
            await abort(context, fault)
        return admin_pb2.DecideApprovalResponse(approval=approval)

    async def RevokeLease(self, request: Any, context: Any) -> Any:  # noqa: N802
        """End a lease."""
        if not any(lease.id == request.lease_id for lease in self._leases.held):
            message = f"No worker holds lease '{request.lease_id[:128]}'. Look at `leases()`."
            metadata = {"lease": request.lease_id[:128]}
            await abort(context, Fault(Reason.LEASE_LOST, message, metadata=metadata))
        why = request.reason or "an operator revoked it"
        self._leases.end(request.lease_id, Reason.LEASE_REVOKED, why)
        return admin_pb2.RevokeLeaseResponse(ended=True)

    async def DrainWorker(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Refuse: a fake has one worker, which stays."""
        message = "The worker of leaseway.sdk.testing cannot be drained."
        if request.worker_id != self.worker.id:
            named = request.worker_id[:128]
            message = f"No worker '{named}' is connected. Connected are: {self.worker.id}."
        await abort(context, Fault(Reason.INVALID_REQUEST, message))


def _identity(problem: admin_pb2.Problem) -> tuple[str, ...]:
    return problem.scope, problem.server_id, problem.reason, problem.subject
