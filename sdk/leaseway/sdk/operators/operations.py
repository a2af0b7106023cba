"""Requests of operators to the control plane and the workers. They are not on the call path."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, nullcontext, suppress
from typing import Any, TypeVar

from leaseway.sdk.errors import ConfirmationRequired, InvalidRequest, error_from_fault
from leaseway.sdk.operators import views
from leaseway.sdk.runtime import GetScope, Runtime
from leaseway.sdk.transport.control import Rpc
from leaseway.sdk.transport.workers import WorkerRun
from leaseway.sdk.validation import check_seconds, check_text
from leaseway.v1 import admin_pb2, catalog_pb2, execution_pb2
from leaseway.wire.bounds import STARTUP_TIMEOUT
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.listing.pages import PageT, every_page
from leaseway.wire.names import ALL_TENANTS

_LOGS_TIMEOUT = 5.0
"""Seconds that each worker has to send its logs."""

ResultT = TypeVar("ResultT")


async def perform(
    get_scope: GetScope,
    operation: Callable[[Runtime, float], Awaitable[ResultT]],
    timeout: float | None,
) -> ResultT:
    """Run an operation on a client's runtime and return its result.

    Args:
        operation: Called with the runtime and the deadline on the loop's clock.
        timeout: Seconds; None means 30.
        get_scope: Returns the runtime.

    Raises:
        LeasewayError: The operation failed.
        TypeError: The timeout is not a number.
    """
    if timeout is not None:
        check_seconds("timeout", timeout)
    runtime, _ = get_scope()
    deadline = runtime.loop.time() + (STARTUP_TIMEOUT if timeout is None else timeout)
    try:
        return await operation(runtime, deadline)
    except Fault as fault:
        raise error_from_fault(fault) from None


def list_pages(
    runtime: Runtime, rpc: Rpc[PageT], request: Any, deadline: float
) -> AsyncGenerator[PageT]:
    """Yield the pages of a list. The request's page token is set for each page."""
    request.client.CopyFrom(runtime.identity.client_info)

    async def read(token: str) -> PageT:
        request.page_token = token
        return await runtime.control.request(rpc, request, deadline)

    return every_page(read)


async def fetch_servers(
    runtime: Runtime, deadline: float, *, load: bool = False, all_tenants: bool = False
) -> list[views.ServerInfo]:
    """List the configured servers; `load` also asks the workers for their calls in flight."""
    tenant = runtime.identity.tenant or (ALL_TENANTS if all_tenants else "")
    request = catalog_pb2.ListServersRequest(tenant=tenant, load=load)
    servers: dict[tuple[str, str], catalog_pb2.ServerStatus] = {}
    async for page in list_pages(runtime, runtime.control.catalog.ListServers, request, deadline):
        for part in page.servers:
            server = servers.setdefault((part.server_id, part.tenant), part)
            if server is not part:  # its instances did not fit on the previous page
                server.instances.extend(part.instances)
    return [views.server_from_proto(server) for server in servers.values()]


async def fetch_problems(runtime: Runtime, deadline: float) -> list[views.ProblemInfo]:
    """List the open problems, the newest first."""
    request = admin_pb2.ListProblemsRequest()
    pages = list_pages(runtime, runtime.control.admin.ListProblems, request, deadline)
    problems = [problem async for page in pages for problem in page.problems]
    # Only the problems of one page are sorted. Those of the same time keep the order received.
    problems.sort(key=lambda problem: problem.last_seen.ToNanoseconds(), reverse=True)
    return [views.problem_from_proto(problem) for problem in problems]


async def fetch_workers(
    runtime: Runtime, deadline: float, *, load: bool = False
) -> list[views.WorkerInfo]:
    """List the workers; `load` also asks them for their calls in flight."""
    request = admin_pb2.ListWorkersRequest(load=load)
    pages = list_pages(runtime, runtime.control.admin.ListWorkers, request, deadline)
    return [views.worker_from_proto(worker) async for page in pages for worker in page.workers]


async def fetch_limits(runtime: Runtime, deadline: float) -> list[views.LimitInfo]:
    """List what is left of the limits that hold over all workers."""
    request = admin_pb2.ListLimitsRequest(tenant=runtime.identity.tenant)
    pages = list_pages(runtime, runtime.control.admin.ListLimits, request, deadline)
    return [views.limit_from_proto(limit) async for page in pages for limit in page.limits]


async def fetch_leases(
    runtime: Runtime, deadline: float, *, idle: bool = False
) -> list[views.LeaseInfo]:
    """List the tenant's leases that workers have reported."""
    request = admin_pb2.ListHeldLeasesRequest(tenant=runtime.identity.tenant, idle=idle)
    pages = list_pages(runtime, runtime.control.admin.ListHeldLeases, request, deadline)
    return [views.lease_from_proto(lease) async for page in pages for lease in page.leases]


async def fetch_lease_ends(runtime: Runtime, deadline: float) -> dict[str, str]:
    """Return how the tenant's recent leases ended, by lease id."""
    request = admin_pb2.ListHeldLeasesRequest(tenant=runtime.identity.tenant)
    pages = list_pages(runtime, runtime.control.admin.ListHeldLeases, request, deadline)
    ends: dict[str, str] = {}
    async with aclosing(pages):
        async for page in pages:
            ends.update((end.lease_id, end.how) for end in page.ended)
            if page.leases:  # held leases follow all ended ones
                break
    return ends


async def fetch_status(runtime: Runtime, deadline: float) -> views.Status:
    """Return the state of the control plane."""
    request = admin_pb2.GetStatusRequest(client=runtime.identity.client_info)
    status = await runtime.control.request(runtime.control.admin.GetStatus, request, deadline)
    return views.status_from_proto(status)


async def fetch_logs(
    runtime: Runtime, deadline: float, *, server_id: str, lines: int
) -> list[views.InstanceLog]:
    """Read the stderr lines of a server's instances from all workers."""
    workers = [
        worker
        for worker in await fetch_workers(runtime, deadline)
        if worker.state != "lost" and worker.address
    ]
    tenant = runtime.identity.tenant
    request = execution_pb2.ReadLogsRequest(server_id=server_id, lines=lines, tenant=tenant)
    logs = await asyncio.gather(
        *(_fetch_worker_logs(runtime, worker, request, deadline) for worker in workers)
    )
    return [log for worker_logs in logs for log in worker_logs]


async def _fetch_worker_logs(
    runtime: Runtime,
    worker: views.WorkerInfo,
    request: execution_pb2.ReadLogsRequest,
    deadline: float,
) -> list[views.InstanceLog]:
    link = runtime.pool.link(WorkerRun(worker.id, worker.incarnation, worker.address))
    deadline = min(runtime.loop.time() + _LOGS_TIMEOUT, deadline)

    async def read(token: str) -> execution_pb2.ReadLogsResponse:
        page_request = execution_pb2.ReadLogsRequest(page_token=token)
        page_request.MergeFrom(request)
        page: execution_pb2.ReadLogsResponse = await link.request(
            link.execution.ReadLogs, page_request, deadline - runtime.loop.time()
        )
        return page

    try:
        return [
            views.InstanceLog(
                worker=worker.id,
                instance_id=log.instance_id,
                state=log.state,
                pid=log.pid or None,
                lines=tuple(log.lines),
            )
            async for page in every_page(read)
            for log in page.instances
        ]
    except Fault as fault:
        if fault.reason in (Reason.WORKER_LOST, Reason.DEADLINE_EXCEEDED):
            return [
                views.InstanceLog(
                    worker=worker.id,
                    instance_id="",
                    state="unreachable",
                    pid=None,
                    lines=(fault.message,),
                )
            ]
        if fault.reason is Reason.TOOL_NOT_FOUND:
            return []  # this worker does not run the server; another one may
        raise


async def send_problem(runtime: Runtime, deadline: float, *, problem: admin_pb2.Problem) -> None:
    """Report a problem of the client to the control plane."""
    control = runtime.control
    request = admin_pb2.ReportProblemRequest(client=runtime.identity.client_info, problem=problem)
    await control.request(control.admin.ReportProblem, request, deadline)


async def find_lease(runtime: Runtime, deadline: float, *, session: str, server_id: str) -> str:
    """Return the id of a session's lease of a server, or an empty string."""
    return (await runtime.control.find_lease(session, server_id, deadline)).lease_id


async def revoke_lease(runtime: Runtime, deadline: float, *, lease_id: str, reason: str) -> bool:
    """Revoke a lease; return whether its worker has confirmed the end."""
    control = runtime.control
    request = admin_pb2.RevokeLeaseRequest(lease_id=lease_id, reason=reason)
    return bool((await control.request(control.admin.RevokeLease, request, deadline)).ended)


async def drain_worker(runtime: Runtime, deadline: float, *, worker_id: str) -> None:
    """Start to drain a worker."""
    control = runtime.control
    request = admin_pb2.DrainWorkerRequest(worker_id=worker_id)
    await control.request(control.admin.DrainWorker, request, deadline)


async def fetch_approvals(runtime: Runtime, deadline: float) -> list[views.Approval]:
    """List the calls that need a person's approval, the newest first."""
    request = admin_pb2.ListApprovalsRequest(tenant=runtime.identity.tenant)
    pages = list_pages(runtime, runtime.control.admin.ListApprovals, request, deadline)
    return [
        views.approval_from_proto(approval) async for page in pages for approval in page.approvals
    ]


async def get_approval(get_scope: GetScope, error: ConfirmationRequired) -> views.Approval:
    """Return the approval that a call needs.

    Raises:
        ConfirmationRequired: The approval no longer exists; repeating the call creates another.
    """
    for approval in await perform(get_scope, fetch_approvals, None):
        if approval.id == error.confirmation_id:
            return approval
    raise error


async def answer_approval(
    get_scope: GetScope, error: ConfirmationRequired, *, approve: bool
) -> None:
    """Approve or deny a call; if that is decided or has expired already, the call tells which.

    Raises:
        InvalidRequest: It is denied after that: the call, which others may have approved, must not
            be made again.
    """
    with suppress(InvalidRequest) if approve else nullcontext():
        await decide_approval(get_scope, error.confirmation_id, "", approve=approve)


async def decide_approval(
    get_scope: GetScope, approval_id: str, note: str, *, approve: bool
) -> views.Approval:
    """Approve or deny a call.

    Raises:
        InvalidRequest: There is no such approval, or it is already decided.
    """
    check_text("approval", approval_id)
    check_text("note", note)

    async def decide(runtime: Runtime, deadline: float) -> views.Approval:
        request = admin_pb2.DecideApprovalRequest(
            client=runtime.identity.client_info,
            tenant=runtime.identity.tenant,
            id=approval_id,
            approve=approve,
            note=note,
        )
        control = runtime.control
        response = await control.request(control.admin.DecideApproval, request, deadline)
        return views.approval_from_proto(response.approval)

    return await perform(get_scope, decide, None)
