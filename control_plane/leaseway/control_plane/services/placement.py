"""Which worker is to hold a lease (DESIGN §5)."""

from __future__ import annotations

from typing import Any

import grpc

from leaseway.control_plane.core.denial import Denial, PendingServers
from leaseway.control_plane.core.placement.table import Placement, PlacementKey
from leaseway.control_plane.core.placement.wait_queue import Waiter
from leaseway.control_plane.core.queries.place import find_lease, pending_for, place_or_wait
from leaseway.control_plane.plane import Plane
from leaseway.control_plane.services import messages as answers
from leaseway.control_plane.services.requests import (
    check_client,
    counted,
    placements,
    tenant_of,
    time_left,
)
from leaseway.v1 import leases_pb2, leases_pb2_grpc
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.names import LONGEST_KEY
from leaseway.wire.status import abort
from leaseway.wire.timing.durations import seconds

_Context = grpc.aio.ServicerContext[Any, Any]
_MAX_WAIT = 24 * 3600.0
_FOR_ANSWER = 0.1
"""Seconds before its deadline at which a caller is told why there is nothing for it."""


class PlacementService(leases_pb2_grpc.PlacementServiceServicer):
    """Reserves; the worker grants."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._placing = placements()

    async def Place(  # noqa: N802
        self, request: leases_pb2.PlaceRequest, context: _Context
    ) -> leases_pb2.PlaceResponse:
        """Return one worker for a (tenant, session, server)."""
        key = await self._key(request, context)
        if 0 < len(request.lost_lease) <= LONGEST_KEY:
            lost = request.lost_lease
            self._plane.act(lambda state, _now: state.roster.fence(lost, key))
        wait = min(seconds(request.wait), _MAX_WAIT)
        # Names of no worker exclude none, and a request that waits would keep them.
        workers = self._plane.state.workers
        excluded = workers.keys() & set(request.exclude_workers)
        # Nobody waits for a worker to be back that its caller could not reach either.
        unreached = workers.keys() & set(request.unreached_workers)
        excluded |= {each for each in unreached if not workers[each].connected}
        async with counted(self._placing, key.tenant, context, self._plane):
            outcome = await self._place(key, frozenset(excluded), wait, context)
        if self._plane.meters is not None:
            self._plane.meters.record_placement(outcome)
        if isinstance(outcome, Denial):
            await abort(context, answers.denial(outcome))
        state = self._plane.state
        return leases_pb2.PlaceResponse(
            worker=answers.worker_ref(state.workers[outcome.worker_id]),
            registry_version=state.visible.version,
            lease_id=outcome.lease_id or "",
        )

    async def FindLease(  # noqa: N802
        self, request: leases_pb2.FindLeaseRequest, context: _Context
    ) -> leases_pb2.FindLeaseResponse:
        """Find the lease of a (tenant, session, server).

        A control plane that has just started waits for workers to say what they hold.
        """
        key = await self._key(request, context)
        async with counted(self._placing, key.tenant, context, self._plane):
            found = await self._find(key, context)
        if found is None:
            return leases_pb2.FindLeaseResponse()
        state = self._plane.state
        return leases_pb2.FindLeaseResponse(
            worker=answers.worker_ref(state.workers[found.worker_id]), lease_id=found.lease_id or ""
        )

    async def _key(
        self, request: leases_pb2.PlaceRequest | leases_pb2.FindLeaseRequest, context: _Context
    ) -> PlacementKey:
        await check_client(request.client, context, request.tenant, request.session)
        if not request.session or not request.server_id:
            message = "A lease is found by a session and a server id; name both."
            await abort(context, Fault(Reason.INVALID_REQUEST, message))
        if len(request.server_id) > LONGEST_KEY:
            message = f"No server id is longer than {LONGEST_KEY} characters."
            await abort(context, Fault(Reason.INVALID_REQUEST, message))
        return PlacementKey(tenant_of(request.tenant), request.session, request.server_id)

    async def _find(self, key: PlacementKey, context: _Context) -> Placement | None:
        while True:
            found = find_lease(self._plane.state, key)
            left = min(
                self._plane.state.settling_remaining(self._plane.clock()),
                time_left(context, bounds.SETTLING) - _FOR_ANSWER,
            )
            if found is not None or left <= 0.0:
                return found
            await self._plane.wait_for_change(left)

    async def _place(
        self, key: PlacementKey, excluded: frozenset[str], wait: float, context: _Context
    ) -> Placement | Denial:
        until = self._plane.clock().mono + wait
        while True:
            left = until - self._plane.clock().mono
            outcome = self._ask(key, excluded, wait=wait > 0)
            if isinstance(outcome, Waiter):
                left = min(left, time_left(context, _MAX_WAIT) - _FOR_ANSWER)
                answer = await self._plane.wait_turn(outcome, left)
                if answer is not None:
                    return answer
                wait = 0.0  # it is over: asked once more, to say why there is no room
                continue
            if not isinstance(outcome, PendingServers):
                return outcome
            if not await self._first_result(key, context):
                message = f"Server '{key.server_id}' has no first result yet. Try again."
                return Denial(Reason.SERVER_NOT_READY, message, 0.5, {"server": key.server_id})

    async def _first_result(self, key: PlacementKey, context: _Context) -> bool:
        """Wait for it; False where the caller does not wait so long.

        It only looks: to ask anew is an event, which would wake all who wait, without end.
        """
        while key.server_id in pending_for(self._plane.state, key.tenant):
            left = time_left(context, bounds.STARTUP_TIMEOUT) - _FOR_ANSWER
            if left <= 0.0:
                return False
            await self._plane.wait_for_change(left)
        return True

    def _ask(
        self, key: PlacementKey, excluded: frozenset[str], *, wait: bool
    ) -> Placement | PendingServers | Denial | Waiter:
        return self._plane.act(
            lambda state, now: place_or_wait(state, key, excluded, now, wait=wait)
        )
