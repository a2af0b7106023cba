"""What operators ask: servers, workers, leases, problems, logs. Not on the path of calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar

from leaseway.sdk.errors import error_from_fault
from leaseway.sdk.operators import views
from leaseway.sdk.runtime import Runtime
from leaseway.sdk.transport.control import every_page
from leaseway.sdk.transport.workers import WorkerRun
from leaseway.sdk.validation import check_seconds
from leaseway.v1 import admin_pb2, catalog_pb2, execution_pb2
from leaseway.wire.bounds import STARTUP_TIMEOUT
from leaseway.wire.errors import Fault, Reason

_LOGS_BOUND = 5.0

AnswerT = TypeVar("AnswerT")


async def perform(
    at: Callable[[], tuple[Runtime, str]],
    operation: Callable[[Runtime, float], Awaitable[AnswerT]],
    timeout: float | None,
) -> AnswerT:
    """Do something with a client's working parts and return what it says.

    Args:
        at: Returns the working parts, and a session.
        operation: What to do, with its deadline on the loop's clock.
        timeout: Seconds until it is given up; None means 30.

    Raises:
        LeasewayError: It failed.
        TypeError: The timeout is no number.
    """
    if timeout is not None:
        check_seconds("timeout", timeout)
    runtime, _ = at()
    deadline = runtime.loop.time() + (STARTUP_TIMEOUT if timeout is None else timeout)
    try:
        return await operation(runtime, deadline)
    except Fault as fault:
        raise error_from_fault(fault) from None


async def fetch_servers(runtime: Runtime, deadline: float) -> list[views.ServerInfo]:
    """List the configured servers."""
    control, identity = runtime.control, runtime.identity

    async def page(token: str) -> catalog_pb2.ListServersResponse:
        request = catalog_pb2.ListServersRequest(
            client=identity.client_info, tenant=identity.tenant, page_token=token
        )
        return await control.ask(control.catalog.ListServers, request, deadline)

    whole: dict[tuple[str, str], catalog_pb2.ServerStatus] = {}
    async for each in every_page(page):
        for part in each.servers:
            known = whole.setdefault((part.server_id, part.tenant), part)
            if known is not part:  # its instances did not fit into the page before
                known.instances.extend(part.instances)
    return [views.server_from_wire(server) for server in whole.values()]


async def fetch_problems(runtime: Runtime, deadline: float) -> list[views.ProblemInfo]:
    """List the open problems, the newest first."""
    control, client = runtime.control, runtime.identity.client_info

    async def page(token: str) -> admin_pb2.ListProblemsResponse:
        request = admin_pb2.ListProblemsRequest(client=client, page_token=token)
        return await control.ask(control.admin.ListProblems, request, deadline)

    found = [problem async for each in every_page(page) for problem in each.problems]
    # Each page begins anew with its newest; those of one moment stay as they were told.
    found.sort(key=lambda problem: problem.last_seen.ToNanoseconds(), reverse=True)
    return [views.problem_from_wire(problem) for problem in found]


async def fetch_workers(runtime: Runtime, deadline: float) -> list[views.WorkerInfo]:
    """List the workers."""
    control, client = runtime.control, runtime.identity.client_info

    async def page(token: str) -> admin_pb2.ListWorkersResponse:
        request = admin_pb2.ListWorkersRequest(client=client, page_token=token)
        return await control.ask(control.admin.ListWorkers, request, deadline)

    return [
        views.worker_info_from_wire(worker)
        async for each in every_page(page)
        for worker in each.workers
    ]


async def fetch_leases(
    runtime: Runtime, deadline: float, *, idle: bool = False
) -> list[views.LeaseInfo]:
    """List the leases of the tenant that workers have reported."""
    return [
        views.lease_from_wire(lease)
        async for each in _lease_pages(runtime, deadline, idle=idle)
        for lease in each.leases
    ]


async def fetch_lease_ends(runtime: Runtime, deadline: float) -> dict[str, str]:
    """Ask how leases of the tenant ended that are gone since a short while, by lease id."""
    ends: dict[str, str] = {}
    async with aclosing(_lease_pages(runtime, deadline)) as pages:
        async for each in pages:
            ends.update((end.lease_id, end.how) for end in each.ended)
            if each.leases:  # which come after all ends
                break
    return ends


def _lease_pages(
    runtime: Runtime, deadline: float, *, idle: bool = False
) -> AsyncGenerator[admin_pb2.ListHeldLeasesResponse]:
    control, identity = runtime.control, runtime.identity

    async def page(token: str) -> admin_pb2.ListHeldLeasesResponse:
        request = admin_pb2.ListHeldLeasesRequest(
            client=identity.client_info, tenant=identity.tenant, page_token=token, idle=idle
        )
        return await control.ask(control.admin.ListHeldLeases, request, deadline)

    return every_page(page)


async def fetch_status(runtime: Runtime, deadline: float) -> views.Status:
    """Ask how far the system is."""
    control = runtime.control
    request = admin_pb2.GetStatusRequest(client=runtime.identity.client_info)
    return views.status_from_wire(await control.ask(control.admin.GetStatus, request, deadline))


async def fetch_logs(
    runtime: Runtime, deadline: float, *, server_id: str, lines: int
) -> list[views.InstanceLog]:
    """Ask every connected worker for the stderr of a server's instances."""
    workers = await fetch_workers(runtime, deadline)
    asked = [worker for worker in workers if worker.state != "lost" and worker.address]
    tenant = runtime.identity.tenant
    request = execution_pb2.ReadLogsRequest(server_id=server_id, lines=lines, tenant=tenant)
    logs = await asyncio.gather(*(_logs_of(runtime, worker, request, deadline) for worker in asked))
    return [log for found in logs for log in found]


async def _logs_of(
    runtime: Runtime,
    worker: views.WorkerInfo,
    request: execution_pb2.ReadLogsRequest,
    deadline: float,
) -> list[views.InstanceLog]:
    link = runtime.pool.link(WorkerRun(worker.id, worker.incarnation, worker.address))
    until = min(runtime.loop.time() + _LOGS_BOUND, deadline)

    async def page(token: str) -> execution_pb2.ReadLogsResponse:
        asked = execution_pb2.ReadLogsRequest(page_token=token)
        asked.MergeFrom(request)
        answer: execution_pb2.ReadLogsResponse = await link.ask(
            link.execution.ReadLogs, asked, until - runtime.loop.time()
        )
        return answer

    try:
        found = [log async for each in every_page(page) for log in each.instances]
    except Fault as fault:
        if fault.reason in (Reason.WORKER_LOST, Reason.DEADLINE_EXCEEDED):
            return [views.InstanceLog(worker.id, "", "unreachable", None, (fault.message,))]
        if fault.reason is Reason.TOOL_NOT_FOUND:
            return []  # this worker does not have the server; another one may
        raise
    return [
        views.InstanceLog(
            worker=worker.id,
            instance_id=log.instance_id,
            state=log.state,
            pid=log.pid or None,
            lines=tuple(log.lines),
        )
        for log in found
    ]


async def send_problem(runtime: Runtime, deadline: float, *, problem: admin_pb2.Problem) -> None:
    """Report a problem that a caller met."""
    control = runtime.control
    request = admin_pb2.ReportProblemRequest(client=runtime.identity.client_info, problem=problem)
    await control.ask(control.admin.ReportProblem, request, deadline)


async def find_lease(runtime: Runtime, deadline: float, *, session: str, server_id: str) -> str:
    """Return the id of the tenant's lease of a session for a server, or an empty one."""
    answer = await runtime.control.find_lease(session, server_id, deadline)
    return answer.lease_id


async def revoke_lease(runtime: Runtime, deadline: float, *, lease_id: str, reason: str) -> bool:
    """End a lease against its holder's will; say whether its worker has confirmed that."""
    control = runtime.control
    request = admin_pb2.RevokeLeaseRequest(lease_id=lease_id, reason=reason)
    answer = await control.ask(control.admin.RevokeLease, request, deadline)
    return bool(answer.ended)


async def drain_worker(runtime: Runtime, deadline: float, *, worker_id: str) -> None:
    """Drain a worker: it takes no more work and ends."""
    control = runtime.control
    request = admin_pb2.DrainWorkerRequest(worker_id=worker_id)
    await control.ask(control.admin.DrainWorker, request, deadline)


async def fetch_approvals(runtime: Runtime, deadline: float) -> list[views.Approval]:
    """List calls that need a person, the newest first."""
    control, identity = runtime.control, runtime.identity

    async def page(token: str) -> admin_pb2.ListApprovalsResponse:
        request = admin_pb2.ListApprovalsRequest(
            client=identity.client_info, tenant=identity.tenant, page_token=token
        )
        return await control.ask(control.admin.ListApprovals, request, deadline)

    return [
        views.approval_from_wire(one) async for each in every_page(page) for one in each.approvals
    ]


async def decide_approval(
    runtime: Runtime, deadline: float, *, approval_id: str, approve: bool, note: str
) -> views.Approval:
    """Agree to a call that waits for a person, or refuse it."""
    control, identity = runtime.control, runtime.identity
    request = admin_pb2.DecideApprovalRequest(
        client=identity.client_info,
        tenant=identity.tenant,
        id=approval_id,
        approve=approve,
        note=note,
    )
    answer = await control.ask(control.admin.DecideApproval, request, deadline)
    return views.approval_from_wire(answer.approval)
