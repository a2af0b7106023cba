"""The planes of a fake: a real control plane and worker in one event loop, over loopback gRPC."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from functools import partial
from operator import attrgetter
from typing import Any, Final

import grpc

from leaseway.control_plane.core.catalog.listing import ServerListing
from leaseway.control_plane.core.coordinator import Coordinator
from leaseway.control_plane.core.moment import Moment
from leaseway.control_plane.plane import Plane
from leaseway.control_plane.services import messages
from leaseway.control_plane.services.admin import AdminService
from leaseway.control_plane.services.catalog import CatalogService
from leaseway.control_plane.services.placement import PlacementService
from leaseway.control_plane.sync.seal import Seal
from leaseway.control_plane.sync.service import SyncService
from leaseway.control_plane.sync.toolsets import listing_from_proto
from leaseway.data_plane.background import Background
from leaseway.data_plane.sync.convert import LeaseMessages
from leaseway.data_plane.worker import Shutdown, Surroundings, Worker, WorkerOptions
from leaseway.identity.authenticator import authenticator_for
from leaseway.identity.interceptor import identity_interceptors
from leaseway.sdk.runtime import leave_loop, users_of
from leaseway.sdk.testing.instance import PROTOCOL, FunctionServers
from leaseway.sdk.testing.registry import FakeRegistry, Offers
from leaseway.spec.model import ServerSpec, VariantKey
from leaseway.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    catalog_pb2,
    catalog_pb2_grpc,
    leases_pb2,
    leases_pb2_grpc,
    sync_pb2,
    sync_pb2_grpc,
)
from leaseway.wire.channels.endpoint import Endpoint, Endpoints
from leaseway.wire.channels.serving import bind, make_server
from leaseway.wire.names import DEFAULT_TENANT

_logger = logging.getLogger(__name__)
_WORKER: Final = "fake-worker"
_SYNC_SERVICE: Final = "/leaseway.v1.SyncService/"
_LOOPBACK: Final = Endpoint("127.0.0.1", 0)
_RECONCILE_TIMEOUT: Final = 60.0
"""Seconds until a change that is not served is reported; usually it takes milliseconds."""
_RECHECK_INTERVAL: Final = 1.0
"""Seconds between two checks of the planes' state if no event reports a change."""
_MAX_CLOCK_STEP: Final = 0.5
"""Limit, in seconds, of what the lease clock advances between two readings."""
_GRACE: Final = 0.2
"""Seconds that the streams of closed clients get to end by themselves."""


class Planes:
    """A control plane and a worker that has joined it. Lives in one event loop.

    Attributes:
        address: The control plane's HOST:PORT.
    """

    def __init__(self, registry: FakeRegistry, servers: FunctionServers, capacity: int) -> None:
        self._registry = registry
        self._servers = servers
        self._capacity = capacity
        self._clock_offset = 0.0
        self._clock_read_at = self._lease_time = time.monotonic()
        self._configured: dict[VariantKey, ServerSpec] = {}
        self._desired: dict[VariantKey, tuple[ServerSpec, ServerListing]] = {}
        self._desired_version = 0
        self._stopping = asyncio.Event()
        self._shutdown = Shutdown()
        self._reconciling: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self.address = ""
        self.plane = Plane(epoch=int(time.time() * 1e6), expected_workers=1, clock=self._moment)
        self.worker: Worker

    async def start(self) -> None:
        """Start both planes; return once they serve everything in the registry."""
        listening = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(listening), name="leaseway fake planes")
        await asyncio.wait([self._task, listening], return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            await self._task
        users_of(asyncio.get_running_loop()).add(self)
        await self.reconcile()

    async def stop(self) -> None:
        """Stop both planes."""
        self._stopping.set()
        if self._task is not None:
            await self._task
        await leave_loop(self)

    async def _run(self, listening: asyncio.Future[None]) -> None:
        control = self._control_plane()
        joined = bind(control, _LOOPBACK)
        self.address = str(joined)
        await control.start()
        authenticator = authenticator_for(None)
        server = make_server(interceptors=identity_interceptors(authenticator))
        bound = bind(server, _LOOPBACK)
        options = WorkerOptions(Endpoints(joined), bound, id=_WORKER, capacity=self._capacity)
        async with asyncio.TaskGroup() as group:
            background, shutdown, ready = Background(group), self._shutdown, asyncio.Event()
            self.worker = Worker(
                options,
                bound,
                Surroundings(
                    self._servers, background, shutdown, authenticator, clock=self._lease_clock
                ),
            )
            deadlines = group.create_task(self.plane.run())
            serving = group.create_task(self.worker.serve(server, shutdown, ready.set))
            try:
                await ready.wait()
                listening.set_result(None)
                await self._stopping.wait()
            finally:
                shutdown.request("the test is over")
                shutdown.request("do not wait for calls")  # as a second signal
                await asyncio.wait([serving])
                deadlines.cancel()
                background.cancel_all()
        await control.stop(_GRACE)

    def _control_plane(self) -> grpc.aio.Server:
        identity = identity_interceptors(authenticator_for(None))
        server = make_server(interceptors=(*identity, _ReconcileFirst(self.reconcile)))
        admin_pb2_grpc.add_AdminServiceServicer_to_server(AdminService(self.plane), server)
        catalog_pb2_grpc.add_CatalogServiceServicer_to_server(CatalogService(self.plane), server)
        leases_pb2_grpc.add_PlacementServiceServicer_to_server(PlacementService(self.plane), server)
        sync = SyncService(self.plane, Seal(secrets.token_bytes(32)))
        sync_pb2_grpc.add_SyncServiceServicer_to_server(sync, server)
        return server

    async def reconcile(self) -> None:
        """Wait until both planes serve every change that a test or a call has made."""
        if self._is_reconciled():
            return
        if self._reconciling is None or self._reconciling.done():
            self._reconciling = asyncio.create_task(self._reconcile())
        await asyncio.shield(self._reconciling)

    async def _reconcile(self) -> None:
        try:
            async with asyncio.timeout(_RECONCILE_TIMEOUT):
                while not self._is_reconciled():
                    self._publish()
                    if not self._leases_are_known():
                        await self.worker.sync.flush()
                    if not self._is_reconciled():  # no await between this check and the next line
                        await self.plane.wait_for_change(_RECHECK_INTERVAL)
        except TimeoutError:
            _logger.warning(
                "A change that the test made is not served after %g s: %s",
                _RECONCILE_TIMEOUT,
                "; ".join(entry.problem.message for entry in self.plane.state.problems.open()),
            )

    def _publish(self) -> None:
        specs = self._specs()
        if specs != self._configured:
            self._configured = specs
            self.plane.configure(
                partial(Coordinator.apply_config, servers=specs, rejected=frozenset(), problems=())
            )
        last_known_good = self.plane.state.servers.last_known_good
        for key, (_, listing) in self._desired_state().items():
            good = last_known_good.get(key)
            if good is not None and good.listing.digest != listing.digest:
                with self.plane.transition() as (state, now):
                    state.handle_relisting(_WORKER, key, good.launch_hash, listing, now)

    def _is_reconciled(self) -> bool:
        if self._shutdown.requested.is_set():  # a drained worker serves nothing
            return True
        state = self.plane.state
        last_known_good = state.servers.last_known_good
        if self._specs() != self._configured:
            return False
        listed = all(
            key in last_known_good and last_known_good[key].listing.digest == listing.digest
            for key, (_, listing) in self._desired_state().items()
        )
        served = state.ready and state.registry.commit_at is None and state.registry.complete
        return listed and served and self._leases_are_known()

    def _leases_are_known(self) -> bool:
        held = {lease.id for lease in self.worker.leases.leases}
        return held == {*self.plane.state.placements.leases}

    def _specs(self) -> dict[VariantKey, ServerSpec]:
        return {key: spec for key, (spec, _) in self._desired_state().items()}

    def _desired_state(self) -> dict[VariantKey, tuple[ServerSpec, ServerListing]]:
        """Return the servers that the planes must serve, with what each one lists."""
        version = self._registry.version
        if version != self._desired_version:
            self._desired = {
                (spec := server.spec()).key: (spec, _listing(server))
                for server in self._registry.servers.values()
            }
            self._desired_version = version
        return self._desired

    def advance(self, seconds: float) -> None:
        """Advance the clocks of both planes."""
        self._clock_offset += seconds
        while seconds > 0:
            self._lease_time += min(seconds, _MAX_CLOCK_STEP)
            seconds -= _MAX_CLOCK_STEP
            self.worker.leases.reconcile()
        with self.plane.transition() as (state, now):
            state.tick(now)

    def leases(self) -> list[leases_pb2.Lease]:
        """Return the held leases, the oldest first."""
        describe = LeaseMessages(_WORKER, self.worker.leases, self._lease_clock)
        return [describe(lease) for lease in self.worker.leases.leases]

    def tools(self) -> list[catalog_pb2.Tool]:
        """Return the tools that clients see, ordered by name."""
        named = self.plane.state.visible.view(DEFAULT_TENANT, "").tools
        return [messages.tool(name, named[name]) for name in sorted(named)]

    def problems(self) -> list[admin_pb2.Problem]:
        """Return the problems that clients have reported, the least recently seen first."""
        reported = [
            entry for entry in self.plane.state.problems.open() if entry.problem.scope == "client"
        ]
        return [messages.problem(entry) for entry in sorted(reported, key=attrgetter("last_seen"))]

    def _lease_clock(self) -> float:
        """Return a monotonic time that never jumps.

        A worker extends leases after a jump, since it may have missed renewals meanwhile. In a
        test, which may stop at a breakpoint, no renewals are missed.
        """
        read_at, self._clock_read_at = self._clock_read_at, time.monotonic()
        self._lease_time += min(self._clock_read_at - read_at, _MAX_CLOCK_STEP)
        return self._lease_time

    def _moment(self) -> Moment:
        return Moment(time.monotonic() + self._clock_offset, time.time() + self._clock_offset)


def _listing(server: Offers) -> ServerListing:
    prompts_resources = server.prompts_resources()
    return listing_from_proto(
        sync_pb2.ProbeResult(
            tools=[
                sync_pb2.RecordedTool(definition=tool) for tool in server.definitions().values()
            ],
            prompts=prompts_resources.prompts,
            resources=prompts_resources.resources,
            resource_templates=prompts_resources.templates,
            protocol_version=PROTOCOL,
            introduction=catalog_pb2.Introduction(
                instructions=server.instructions,
                extensions=server.extensions,
                capabilities=server.capabilities(),
            ),
        )
    )


class _ReconcileFirst(grpc.aio.ServerInterceptor):
    """Delays each client's request to the control plane until all changes are served."""

    def __init__(self, reconcile: Callable[[], Awaitable[None]]) -> None:
        self._reconcile = reconcile

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        if not handler_call_details.method.startswith(_SYNC_SERVICE):
            await self._reconcile()
        return await continuation(handler_call_details)
