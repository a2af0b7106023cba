"""The placement service: chooses the worker for a lease (design.md#leases)."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import grpc

from leaseway.control_plane.core.catalog.subjects import Reader
from leaseway.control_plane.core.coordinator import Coordinator
from leaseway.control_plane.core.denial import Denial, PendingServers
from leaseway.control_plane.core.placement.caller import PlacementCaller
from leaseway.control_plane.core.placement.lease_ends import ReportedLeaseEnd, end_denial
from leaseway.control_plane.core.placement.table import Placement
from leaseway.control_plane.core.placement.wait_queue import Waiter
from leaseway.control_plane.core.queries.place import (
    await_worker,
    find_lease,
    find_leases,
    give_up_leases,
    holders,
    place_or_wait,
)
from leaseway.control_plane.plane import Plane
from leaseway.control_plane.services import messages
from leaseway.control_plane.services.requests import (
    check_client,
    counted,
    placements,
    tenant_of,
    time_left,
    watchers,
)
from leaseway.v1 import leases_pb2, leases_pb2_grpc
from leaseway.wire import bounds
from leaseway.wire.clients.greeting import Greeting
from leaseway.wire.clients.mcp_clients import McpClients
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.names import KEY_RULE, MAX_KEY_LENGTH, LeaseKey, is_valid_key
from leaseway.wire.status import abort
from leaseway.wire.timing.durations import seconds

FoundT = TypeVar("FoundT")
_Context = grpc.aio.ServicerContext[Any, Any]
_MAX_SESSIONS = 1_000
_MAX_FOUND = 1_000
"""Leases of one session that one answer has."""
_MAX_HEARING = 60.0
"""Seconds that a request may wait for the end of a session."""
_ANSWER_MARGIN = 0.1
"""Seconds before the caller's deadline at which it gets a denial."""


class PlacementService(leases_pb2_grpc.PlacementServiceServicer):
    """Reserves capacity on a worker; the worker grants the lease."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._placing = placements()
        self._hearing = watchers()
        self._clients = McpClients()
        self._run = secrets.token_hex(8)
        # By tenant; each exists as long as a request waits for it.
        self._next_ends: WeakValueDictionary[str, asyncio.Event] = WeakValueDictionary()

    async def Place(  # noqa: N802
        self, request: leases_pb2.PlaceRequest, context: _Context
    ) -> leases_pb2.PlaceResponse:
        """Return one worker for a (tenant, session, server)."""
        key = await self._key(request, context)
        if len(request.known_ends) > bounds.MAX_KNOWN_ENDS:
            message = f"A request names at most {bounds.MAX_KNOWN_ENDS} known ends of leases."
            await abort(context, Fault(Reason.INVALID_REQUEST, message))
        if 0 < len(request.lost_lease) <= MAX_KEY_LENGTH:
            with self._plane.transition() as (state, _):
                state.roster.fence(request.lost_lease, key)
        wait = min(seconds(request.wait), bounds.MAX_PLACEMENT_WAIT)
        # Drops unknown names, which a waiting request would keep.
        workers = self._plane.state.workers
        excluded = workers.keys() & set(request.exclude_workers)
        # A disconnected worker that the caller cannot reach either is not waited for.
        unreached = workers.keys() & set(request.unreached_workers)
        excluded |= {worker_id for worker_id in unreached if not workers[worker_id].connected}
        # Beside a lease that may live, its state would be missing: the caller tries it again.
        excluded -= holders(self._plane.state, key)
        if request.report_end:
            awaited = await_worker(
                self._plane.state, self._plane.end_notices.find(key), self._plane.clock()
            )
            if awaited is not None:
                await abort(context, messages.denial(awaited))
        known = (lease for lease in request.known_ends if 0 < len(lease) <= MAX_KEY_LENGTH)
        self._plane.end_notices.know(key, known, self._plane.clock().mono)
        client = request.acquirer[:MAX_KEY_LENGTH]
        end = self._settle_end(key, excluded, client if request.report_end else "")
        if end is not None and request.report_end:
            await abort(context, messages.denial(end_denial(end)))
        caller = PlacementCaller(
            worker_id=request.prefers if request.prefers in workers else "",
            spares=await self._usable_spares(request, context),
            client=client,
        )
        async with counted(self._placing, key.tenant, context, self._plane):
            outcome = await self._place(key, frozenset(excluded), caller, wait, context)
        if self._plane.meters is not None:
            self._plane.meters.record_placement(outcome)
        if isinstance(outcome, Denial):
            await abort(context, messages.denial(outcome))
        state = self._plane.state
        return leases_pb2.PlaceResponse(
            worker=messages.worker_ref(state.workers[outcome.worker_id]),
            registry_version=state.visible.version,
            lease_id=outcome.lease_id or "",
            known_end=self._plane.end_notices.last_told(key),
        )

    def _settle_end(
        self, key: LeaseKey, excluded: Collection[str], client: str
    ) -> ReportedLeaseEnd | None:
        """Return the end of which the session of a key is to be told; count it as told.

        Args:
            excluded: The workers that the caller does not reach.
            client: As for `EndNotices.settle`.
        """
        notices, now = self._plane.end_notices, self._plane.clock().mono
        with self._plane.transition() as (state, _):
            for given_up in give_up_leases(state, key, excluded):
                notices.record(given_up, now)
            if state.placements.has_lease(key):
                return None
            end = notices.settle(key, now, client)
            if end is not None and end.how == "lost":
                state.roster.fence(end.lease_id, key)  # its worker may come back with it
        return end

    async def FindLease(  # noqa: N802
        self, request: leases_pb2.FindLeaseRequest, context: _Context
    ) -> leases_pb2.FindLeaseResponse:
        """Find the lease of a (tenant, session, server); wait for workers after a start.

        Without a server, find those of the session.
        """
        if not request.server_id:
            return await self._find_all(request, context)
        key = await self._key(request, context)
        async with counted(self._placing, key.tenant, context, self._plane):
            found = await self._find(partial(find_lease, key=key), context)
        if found is None:
            return leases_pb2.FindLeaseResponse()
        state = self._plane.state
        return leases_pb2.FindLeaseResponse(
            worker=messages.worker_ref(state.workers[found.worker_id]),
            lease_id=found.lease_id or "",
        )

    async def _find_all(
        self, request: leases_pb2.FindLeaseRequest, context: _Context
    ) -> leases_pb2.FindLeaseResponse:
        await check_client(request.client, context, request.tenant, request.session)
        if not request.session:
            await abort(context, Fault(Reason.INVALID_REQUEST, "A lease needs a session; set it."))
        reader = Reader(tenant_of(request.tenant), request.client.agent)
        find = partial(find_leases, reader=reader, session=request.session)
        async with counted(self._placing, reader.tenant, context, self._plane):
            found = await self._find(find, context)
        state = self._plane.state
        leases = [
            leases_pb2.SessionLease(
                server_id=lease.key.server_id,
                lease_id=lease.id,
                worker=messages.worker_ref(state.workers[lease.worker_id]),
            )
            for lease in found[:_MAX_FOUND]
        ]
        return leases_pb2.FindLeaseResponse(leases=leases)

    async def ShareSessionEnds(  # noqa: N802
        self, request: leases_pb2.ShareSessionEndsRequest, context: _Context
    ) -> leases_pb2.ShareSessionEndsResponse:
        """Record ended sessions and states of others; return those of the asked sessions.

        A request may wait for further ones.
        """
        await check_client(request.client, context, request.tenant)
        if max(map(len, (request.ended, request.asked, request.states))) > _MAX_SESSIONS:
            message = f"One request names at most {_MAX_SESSIONS} sessions of each kind."
            await abort(context, Fault(Reason.INVALID_REQUEST, message))
        if any(len(item.state) > bounds.MAX_SESSION_STATE for item in request.states):
            message = f"The state of a session has at most {bounds.MAX_SESSION_STATE} bytes."
            await abort(context, Fault(Reason.INVALID_REQUEST, message))
        named = (*request.ended, *request.asked, *(item.session for item in request.states))
        if not all(map(is_valid_key, named)):
            message = f"A session key has {KEY_RULE}; one of these breaks that."
            await abort(context, Fault(Reason.INVALID_REQUEST, message))
        tenant, now = tenant_of(request.tenant), self._plane.clock().mono
        ended = self._plane.ended_sessions
        for session in request.ended:
            ended.add(tenant, session, now)
        if request.ended and (waited_for := self._next_ends.pop(tenant, None)) is not None:
            waited_for.set()
        found = [session for session in request.asked if ended.has(tenant, session, now)]
        if request.HasField("wait") and request.run == self._run:
            if ended.last(tenant) <= request.known:
                async with counted(self._hearing, tenant, context, self._plane):
                    await self._await_end(tenant, seconds(request.wait), context)
            found += ended.since(tenant, request.known, _MAX_SESSIONS)
        states = self._plane.session_states
        for session in request.ended:
            states.put(tenant, session, b"")
        for item in request.states:
            states.put(tenant, item.session, item.state)
        known = [
            leases_pb2.SessionState(session=session, state=state)
            for session in request.asked
            if (state := states.get(tenant, session))
        ]
        return leases_pb2.ShareSessionEndsResponse(
            ended=found, run=self._run, states=known, last=ended.last(tenant)
        )

    async def _await_end(self, tenant: str, wait: float, context: _Context) -> None:
        """Wait until a session of a tenant ends, or the request's time is over."""
        event = self._next_ends.setdefault(tenant, asyncio.Event())
        limit = min(wait, time_left(context, _MAX_HEARING) - _ANSWER_MARGIN)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(limit, 0.0)):
                await event.wait()

    async def _usable_spares(
        self, request: leases_pb2.PlaceRequest, context: _Context
    ) -> frozenset[str]:
        """Return whom a spare may serve so that the request's lease can use it."""
        try:
            client = self._clients.find(request.mcp_client)
        except Fault as fault:
            await abort(context, fault)
        return Greeting.of(client).accepted

    async def _key(
        self, request: leases_pb2.PlaceRequest | leases_pb2.FindLeaseRequest, context: _Context
    ) -> LeaseKey:
        await check_client(request.client, context, request.tenant, request.session)
        if not request.session or not request.server_id:
            message = "A lease needs a session and a server id; set both."
            await abort(context, Fault(Reason.INVALID_REQUEST, message))
        if len(request.server_id) > MAX_KEY_LENGTH:
            message = f"The server id has more than {MAX_KEY_LENGTH} characters."
            await abort(context, Fault(Reason.INVALID_REQUEST, message))
        return LeaseKey(tenant_of(request.tenant), request.session, request.server_id)

    async def _find(self, find: Callable[[Coordinator], FoundT], context: _Context) -> FoundT:
        """Return what is found among the reported leases; wait for something after a start."""
        while True:
            found = find(self._plane.state)
            remaining = min(
                self._plane.state.settling_remaining(self._plane.clock()),
                time_left(context, bounds.SETTLING) - _ANSWER_MARGIN,
            )
            if found or remaining <= 0.0:
                return found
            await self._plane.wait_for_change(remaining)

    async def _place(
        self,
        key: LeaseKey,
        excluded: frozenset[str],
        caller: PlacementCaller,
        wait: float,
        context: _Context,
    ) -> Placement | Denial:
        until = self._plane.clock().mono + wait
        while True:
            remaining = until - self._plane.clock().mono
            outcome = self._try_place(key, excluded, caller, wait=wait > 0)
            if isinstance(outcome, Waiter):
                left = time_left(context, bounds.MAX_PLACEMENT_WAIT)
                remaining = min(remaining, left - _ANSWER_MARGIN)
                answer = await self._plane.wait_turn(outcome, remaining)
                if answer is not None:
                    return answer
                wait = 0.0  # timed out: try once more, to return the reason
                continue
            if not isinstance(outcome, PendingServers):
                return outcome
            if not await self._first_result(key, context):
                message = f"Server '{key.server_id}' has no first result yet. Try again."
                return Denial(Reason.SERVER_NOT_READY, message, 0.5, {"server": key.server_id})

    async def _first_result(self, key: LeaseKey, context: _Context) -> bool:
        """Wait for the server's first result; return False at the caller's deadline.

        It must not place again to check: that is an event, which would wake all waiting requests.
        """
        variant = self._plane.state.servers.variants_of(key.tenant).get(key.server_id)
        if variant is not None:
            self._plane.hurry_probes([variant])
        while key.server_id in self._plane.state.pending.of(key.tenant):
            remaining = time_left(context, bounds.STARTUP_TIMEOUT) - _ANSWER_MARGIN
            if remaining <= 0.0:
                return False
            await self._plane.wait_for_first_results(remaining)
        return True

    def _try_place(
        self, key: LeaseKey, excluded: frozenset[str], caller: PlacementCaller, *, wait: bool
    ) -> Placement | PendingServers | Denial | Waiter:
        with self._plane.transition() as (state, now):
            return place_or_wait(state, key, excluded, now, wait=wait, caller=caller)
