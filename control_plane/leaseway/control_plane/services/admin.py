"""The admin service: shows and controls a running system for operators."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

import grpc

from leaseway.control_plane.core.placement.table import HeldLease
from leaseway.control_plane.core.queries.limits import limits
from leaseway.control_plane.core.queries.status import counted_variants, servers_down
from leaseway.control_plane.operators.commands import CONFIRM_TIMEOUT, OperatorCommands
from leaseway.control_plane.operators.inspector import Inspector
from leaseway.control_plane.plane import Plane
from leaseway.control_plane.services import messages, pages
from leaseway.control_plane.services.requests import (
    check_client,
    counted,
    page_of,
    time_left,
    watchers,
)
from leaseway.control_plane.sync.convert import problem_from_proto
from leaseway.identity.interceptor import caller
from leaseway.identity.principal import SEES_ALL, Principal
from leaseway.runbook import entries
from leaseway.v1 import admin_pb2, admin_pb2_grpc, leases_pb2
from leaseway.wire.advice import for_operators
from leaseway.wire.bounds import MAX_PAST_CALLS
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.events import EventRecord, event_to_proto, matches
from leaseway.wire.names import nearest
from leaseway.wire.status import abort
from leaseway.wire.version import PROTOCOL_VERSION, user_agent

_Context = grpc.aio.ServicerContext[Any, Any]
_EVENTS_PER_MESSAGE: Final = 200
_DEFAULT_CALLS: Final = 50
_COUNTED_AT_ONCE: Final = 256
"""Variants that are counted without a pause: for 2 ms."""
_MAX_WORKER_IDS: Final = 1_000
_MAX_NAMED: Final = 100


class AdminService(admin_pb2_grpc.AdminServiceServicer):
    """Implements the admin RPCs."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._inspector = Inspector(plane)
        self._commands = OperatorCommands(plane)
        self._watchers = watchers()

    async def GetStatus(  # noqa: N802
        self, request: admin_pb2.GetStatusRequest, context: _Context
    ) -> admin_pb2.GetStatusResponse:
        """Return the state of the system in numbers."""
        await check_client(request.client, context)
        who = caller()
        up, servers = await self._count_servers(None if who.has(SEES_ALL) else who.tenant)
        state = self._plane.state
        return admin_pb2.GetStatusResponse(
            ready=state.ready,
            registry_version=state.visible.version,
            config_loaded_at=messages.timestamp(state.config_loaded_at),
            pending=state.pending.servers if who.has(SEES_ALL) else [],
            workers=sum(record.connected for record in state.workers.values()),
            package_version=user_agent(),
            protocol_version=PROTOCOL_VERSION,
            epoch=state.epoch,
            settling=not state.settled,
            servers_up=up,
            servers=servers,
            store=self._plane.store.kind,
        )

    async def _count_servers(self, tenant: str | None) -> tuple[int, int]:
        """Return how many servers are up, and how many there are.

        With 10,000 servers that takes 80 ms, so others have their turn in between. A server that
        changes meanwhile counts as it was or as it is.

        Args:
            tenant: The tenant whose servers are counted; None for all.
        """
        variants = counted_variants(self._plane.state, tenant)
        down: set[str] = set()
        for start in range(0, len(variants), _COUNTED_AT_ONCE):
            if start:
                await asyncio.sleep(0)
            down |= servers_down(self._plane.state, variants[start : start + _COUNTED_AT_ONCE])
        servers = {key.server_id for key in variants}
        return len(servers - down), len(servers)

    async def ListWorkers(  # noqa: N802
        self, request: admin_pb2.ListWorkersRequest, context: _Context
    ) -> admin_pb2.ListWorkersResponse:
        """List one page of workers, ordered by id."""
        await check_client(request.client, context)
        start = await page_of("ListWorkers", request, context)
        if len(request.worker_ids) > _MAX_WORKER_IDS:
            message = f"One request names at most {_MAX_WORKER_IDS:,} workers."
            await abort(context, Fault(Reason.INVALID_REQUEST, message))
        loads = await self._inspector.loads() if request.load else None
        state = self._plane.state
        workers, token = pages.workers(state, start, request.worker_ids)
        for worker in workers:
            if loads is not None and worker.worker.id in loads.workers:
                worker.load.CopyFrom(loads.workers[worker.worker.id])
        if not caller().has(SEES_ALL):
            workers = [
                admin_pb2.WorkerStatus(worker=worker.worker, state=worker.state)
                for worker in workers
            ]
        return admin_pb2.ListWorkersResponse(
            workers=workers, next_page_token=token, settled=state.settled
        )

    async def ListHeldLeases(  # noqa: N802
        self, request: admin_pb2.ListHeldLeasesRequest, context: _Context
    ) -> admin_pb2.ListHeldLeasesResponse:
        """List one page of recent lease ends, then of reported leases.

        A caller sees leases that act for a user only if it speaks for him, and those that act for
        the holder of a token only if it is him: a session key says whose conversation it is.
        """
        await check_client(request.client, context, request.tenant)
        start = await page_of("ListHeldLeases", request, context)
        now, tenant = self._plane.clock().mono, request.tenant
        ends = (end for end in self._plane.lease_ends.recent(now) if tenant in ("", end.tenant))
        leases = self._plane.state.placements.leases
        who = caller()
        sees_all = who.has(SEES_ALL)
        held = (
            lease
            for lease in leases.values()
            if tenant in ("", lease.key.tenant) and (sees_all or _may_list(lease, who))
        )
        page, token = pages.ends_and_leases(ends, held, now, start)
        leases_of_page = [item for item in page if isinstance(item, leases_pb2.Lease)]
        if request.idle:
            await self._add_idle(leases_of_page)
        return admin_pb2.ListHeldLeasesResponse(
            ended=[item for item in page if isinstance(item, admin_pb2.LeaseEnd)],
            leases=leases_of_page,
            next_page_token=token,
        )

    async def _add_idle(self, leases: Iterable[leases_pb2.Lease]) -> None:
        """Ask the workers how long each lease has been idle."""
        by_id = {lease.id: lease for lease in leases}
        for lease_id, use in (await self._inspector.lease_uses(by_id)).items():
            if lease_id in by_id:
                by_id[lease_id].idle.CopyFrom(use.idle)

    async def ListLimits(  # noqa: N802
        self, request: admin_pb2.ListLimitsRequest, context: _Context
    ) -> admin_pb2.ListLimitsResponse:
        """List one page of the limits that hold over all workers."""
        await check_client(request.client, context, request.tenant)
        start = await page_of("ListLimits", request, context)
        plane, tenant = self._plane, request.tenant
        found = limits(plane.state, plane.budgets, plane.clock().mono)
        listed, token = pages.limits(
            (limit for limit in found if tenant in ("", limit.tenant)), start
        )
        return admin_pb2.ListLimitsResponse(limits=listed, next_page_token=token)

    async def ListProblems(  # noqa: N802
        self, request: admin_pb2.ListProblemsRequest, context: _Context
    ) -> admin_pb2.ListProblemsResponse:
        """List one page of open problems, newest first."""
        await check_client(request.client, context)
        start = await page_of("ListProblems", request, context)
        problems, token = pages.problems(self._plane.state.problems.open(), start)
        return admin_pb2.ListProblemsResponse(problems=problems, next_page_token=token)

    async def ReportProblem(  # noqa: N802
        self, request: admin_pb2.ReportProblemRequest, context: _Context
    ) -> admin_pb2.ReportProblemResponse:
        """Record a problem that a caller reports."""
        await check_client(request.client, context)
        if not request.problem.reason or not request.problem.message:
            message = "A reported problem needs a reason and a message."
            await abort(context, Fault(Reason.INVALID_REQUEST, message))
        known = await asyncio.to_thread(entries)  # read from a file the first time
        if request.problem.reason not in known:
            near = nearest(request.problem.reason[:64], known)
            message = (
                "The reason of a reported problem is one of the runbook, such as "
                f"{', '.join(near) or 'PROVIDER_REFUSED'}."
            )
            advice = for_operators("`leaseway runbook` lists them.")
            await abort(context, Fault(Reason.INVALID_REQUEST, message, metadata=advice))
        # Callers cannot set other scopes or workers: those are for problems that planes detect.
        problem = replace(problem_from_proto(request.problem), scope="client", worker_id="")
        tenant = caller().tenant
        if tenant is not None:
            problem = replace(problem, tenant=tenant)
        with self._plane.transition() as (state, now):
            state.report_client_problem(problem, now)
        return admin_pb2.ReportProblemResponse()

    async def DrainWorker(  # noqa: N802
        self, request: admin_pb2.DrainWorkerRequest, context: _Context
    ) -> admin_pb2.DrainWorkerResponse:
        """Make a worker reject new work and exit."""
        try:
            self._commands.drain(request.worker_id, caller().name)
        except Fault as fault:
            await abort(context, fault)
        return admin_pb2.DrainWorkerResponse()

    async def RevokeLease(  # noqa: N802
        self, request: admin_pb2.RevokeLeaseRequest, context: _Context
    ) -> admin_pb2.RevokeLeaseResponse:
        """Revoke a lease and wait until its worker confirms the end."""
        lease_id = request.lease_id
        try:
            self._commands.revoke(lease_id, caller().name, request.reason)
        except Fault as fault:
            await abort(context, fault)
        timeout = time_left(context, CONFIRM_TIMEOUT) * 0.9
        return admin_pb2.RevokeLeaseResponse(
            ended=await self._commands.wait_for_end(lease_id, timeout)
        )

    async def WatchEvents(  # noqa: N802
        self, request: admin_pb2.WatchEventsRequest, context: _Context
    ) -> AsyncIterator[admin_pb2.WatchEventsResponse]:
        """Stream past events and, with `follow`, new ones."""
        await check_client(request.client, context)
        async with counted(self._watchers, caller().tenant, context, self._plane):
            async for message in self._stream_events(request):
                yield message

    async def _stream_events(
        self, request: admin_pb2.WatchEventsRequest
    ) -> AsyncIterator[admin_pb2.WatchEventsResponse]:
        kinds = frozenset(request.kinds)
        recorder = self._plane.events
        history = recorder.history
        seen, server_id = history.last, request.server_id
        past = history.select(
            server_id=server_id, kinds=kinds, after=request.after, last=request.last
        )
        for begin in range(0, len(past), _EVENTS_PER_MESSAGE):
            yield _events(past[begin : begin + _EVENTS_PER_MESSAGE])
        while request.follow:
            await recorder.changed(seen)
            fresh = history.after(seen)
            dropped = max(0, history.last - seen - len(fresh))
            seen = history.last
            wanted = [event for event in fresh if matches(event, server_id=server_id, kinds=kinds)]
            for begin in range(0, len(wanted), _EVENTS_PER_MESSAGE):
                yield _events(wanted[begin : begin + _EVENTS_PER_MESSAGE], dropped)
                dropped = 0

    async def ListCalls(  # noqa: N802
        self, request: admin_pb2.ListCallsRequest, context: _Context
    ) -> admin_pb2.ListCallsResponse:
        """Ask all workers for recorded calls."""
        await check_client(request.client, context)
        limit = min(request.limit or _DEFAULT_CALLS, MAX_PAST_CALLS)
        return await self._inspector.calls(request, limit)

    async def GetTraffic(  # noqa: N802
        self, request: admin_pb2.GetTrafficRequest, context: _Context
    ) -> admin_pb2.GetTrafficResponse:
        """Ask all workers for their call counts."""
        await check_client(request.client, context)
        return await self._inspector.traffic()

    async def ListApprovals(  # noqa: N802
        self, request: admin_pb2.ListApprovalsRequest, context: _Context
    ) -> admin_pb2.ListApprovalsResponse:
        """List one page of calls that need an approval, newest first."""
        await check_client(request.client, context, request.tenant)
        start = await page_of("ListApprovals", request, context)
        approvals = self._plane.approvals
        try:
            await approvals.refresh()
        except Fault as fault:
            await abort(context, fault)
        found = approvals.listed(request.tenant)
        page, token = pages.approvals(found, start)
        return admin_pb2.ListApprovalsResponse(approvals=page, next_page_token=token)

    async def DecideApproval(  # noqa: N802
        self, request: admin_pb2.DecideApprovalRequest, context: _Context
    ) -> admin_pb2.DecideApprovalResponse:
        """Approve or deny a waiting call."""
        await check_client(request.client, context, request.tenant)
        try:
            approval = await self._plane.decide_approval(
                request.id,
                request.tenant,
                caller().name,
                approve=request.approve,
                note=request.note,
            )
        except Fault as fault:
            await abort(context, fault)
        return admin_pb2.DecideApprovalResponse(approval=messages.approval(approval))

    async def ListAuditAnchors(  # noqa: N802
        self, request: admin_pb2.ListAuditAnchorsRequest, context: _Context
    ) -> admin_pb2.ListAuditAnchorsResponse:
        """List one page of how far the audits of workers are, ordered by run."""
        await check_client(request.client, context)
        start = await page_of("ListAuditAnchors", request, context)
        try:
            await self._plane.stored_anchors.refresh()
        except Fault as fault:
            await abort(context, fault)
        known = self._plane.audit_anchors
        anchors, token = pages.anchors(known.listed(), start)
        silent = (worker for worker in self._plane.streams if not known.anchors_now(worker))
        return admin_pb2.ListAuditAnchorsResponse(
            anchors=anchors,
            next_page_token=token,
            time=messages.timestamp(self._plane.clock().unix),
            silent_workers=sorted(silent)[:_MAX_NAMED],
            forgotten=known.forgotten,
            unreadable_runs=self._plane.stored_anchors.unreadable[:_MAX_NAMED],
        )


def _events(events: Sequence[EventRecord], dropped: int = 0) -> admin_pb2.WatchEventsResponse:
    return admin_pb2.WatchEventsResponse(events=map(event_to_proto, events), dropped=dropped)


def _may_list(lease: HeldLease, who: Principal) -> bool:
    """Return whether a lease acts for nobody, for the caller, or for a user that he speaks for."""
    is_own = lease.holder in ("", who.name) or who.names_users
    return is_own and (not lease.user or who.speaks_for(lease.user))
