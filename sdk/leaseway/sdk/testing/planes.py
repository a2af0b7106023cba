"""The two planes of a fake: the real ones, in one event loop, over gRPC on the loopback."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import grpc

from leaseway.control_plane.core.catalog.listing import Listing
from leaseway.control_plane.core.coordinator import Coordinator
from leaseway.control_plane.core.moment import Moment
from leaseway.control_plane.plane import Plane
from leaseway.control_plane.services import messages
from leaseway.control_plane.services.admin import AdminService
from leaseway.control_plane.services.catalog import CatalogService
from leaseway.control_plane.services.placement import PlacementService
from leaseway.control_plane.sync.seal import Seal
from leaseway.control_plane.sync.service import SyncService
from leaseway.control_plane.sync.toolsets import listing_from_wire
from leaseway.data_plane.background import Background
from leaseway.data_plane.serving import serve
from leaseway.data_plane.sync.convert import LeaseMessages
from leaseway.data_plane.worker import Stop, Worker, WorkerOptions
from leaseway.identity.authenticator import authenticator_for
from leaseway.identity.interceptor import identity_interceptors
from leaseway.sdk.testing.instance import PROTOCOL, FunctionServers
from leaseway.sdk.testing.registry import FakeRegistry
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
from leaseway.wire.channels.endpoint import Endpoint
from leaseway.wire.channels.serving import bind, make_server
from leaseway.wire.names import DEFAULT_TENANT

_logger = logging.getLogger(__name__)
_WORKER: Final = "fake-worker"
_SYNC: Final = "/leaseway.v1.SyncService/"
_LOOPBACK: Final = Endpoint("127.0.0.1", 0)
_SETTLES_WITHIN: Final = 60.0
"""Seconds for which a change may wait until it is served, which mostly takes milliseconds."""
_LOOKS_AGAIN: Final = 1.0
"""Seconds after which it is looked again what is left, where no event said that something was."""
_STEP: Final = 0.5
"""Seconds by which the clock of leases goes forward at most between two looks at it."""
_GRACE: Final = 0.2
"""Seconds in which streams of clients that were closed end by themselves."""


class Planes:
    """A control plane and a worker that has joined it; lives in one event loop.

    Args:
        registry: What is offered.
        servers: Open its servers.
        capacity: How many leases there is room for.

    Attributes:
        address: The control plane's.
        plane: The control plane.
        worker: The worker.
    """

    def __init__(self, registry: FakeRegistry, servers: FunctionServers, capacity: int) -> None:
        self._registry = registry
        self._servers = servers
        self._capacity = capacity
        self._ahead = 0.0
        self._looked = self._shown = time.monotonic()
        self._configured: dict[VariantKey, ServerSpec] = {}
        self._at_version = 0
        self._wanted: dict[VariantKey, tuple[ServerSpec, Listing]] = {}
        self._stopping = asyncio.Event()
        self._stop = Stop()
        self._settling: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self.address = ""
        self.plane = Plane(epoch=int(time.time() * 1e6), expected_workers=1, clock=self._moment)
        self.worker: Worker

    async def start(self) -> None:
        """Serve what the registry has; return once all of it is served."""
        listening = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(listening), name="leaseway fake planes")
        await asyncio.wait([self._task, listening], return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            await self._task
        await self.settle()

    async def stop(self) -> None:
        """End both."""
        self._stopping.set()
        if self._task is not None:
            await self._task

    async def _run(self, listening: asyncio.Future[None]) -> None:
        control = self._control_plane()
        joined = bind(control, _LOOPBACK)
        self.address = str(joined)
        await control.start()
        server = make_server(interceptors=identity_interceptors(authenticator_for(None)))
        bound = bind(server, _LOOPBACK)
        options = WorkerOptions(joined, bound, id=_WORKER, capacity=self._capacity)
        async with asyncio.TaskGroup() as group:
            background, stop, ready = Background(group), self._stop, asyncio.Event()
            self.worker = Worker(
                options, bound, self._servers, background, stop, clock=self._lease_clock
            )
            deadlines = group.create_task(self.plane.run())
            serving = group.create_task(serve(server, self.worker, background, stop, ready.set))
            try:
                await ready.wait()
                listening.set_result(None)
                await self._stopping.wait()
            finally:
                stop.ask("the test is over")
                stop.ask("and in a hurry")
                await asyncio.wait([serving])
                deadlines.cancel()
                background.cancel_all()
        await control.stop(_GRACE)

    def _control_plane(self) -> grpc.aio.Server:
        open_to_all = identity_interceptors(authenticator_for(None))
        server = make_server(interceptors=(*open_to_all, _Settled(self.settle)))
        admin_pb2_grpc.add_AdminServiceServicer_to_server(AdminService(self.plane), server)
        catalog_pb2_grpc.add_CatalogServiceServicer_to_server(CatalogService(self.plane), server)
        leases_pb2_grpc.add_PlacementServiceServicer_to_server(PlacementService(self.plane), server)
        sync = SyncService(self.plane, Seal(secrets.token_bytes(32)))
        sync_pb2_grpc.add_SyncServiceServicer_to_server(sync, server)
        return server

    # Changes: a test that goes on after one finds it served, as if both planes were one.

    async def settle(self) -> None:
        """Wait until both planes know of everything that a test or a call has changed."""
        if self._is_settled():
            return
        if self._settling is None or self._settling.done():
            self._settling = asyncio.create_task(self._settle())
        await asyncio.shield(self._settling)

    async def _settle(self) -> None:
        try:
            async with asyncio.timeout(_SETTLES_WITHIN):
                while not self._is_settled():
                    self._publish()
                    if not self._leases_are_known():
                        await self.worker.sync.flush()
                    if not self._is_settled():  # nothing may happen between this look and the wait
                        await self.plane.changed(_LOOKS_AGAIN)
        except TimeoutError:
            _logger.warning(
                "What this test has changed is not served after %g s: %s",
                _SETTLES_WITHIN,
                "; ".join(each.problem.message for each in self.plane.state.problems.open()),
            )

    def _publish(self) -> None:
        specs = self._specs()
        if specs != self._configured:
            self._configured = specs
            self.plane.configure(
                lambda state, now: state.config_loaded(specs, frozenset(), (), now)
            )
        for key, listing in self._listings().items():
            good = self.plane.state.servers.last_known_good.get(key)
            if good is not None and good.listing.digest != listing.digest:
                self.plane.act(partial(_relisted, key, good.launch_hash, listing))

    def _is_settled(self) -> bool:
        if self._stop.asked.is_set():  # it was drained, and serves nothing any more
            return True
        state = self.plane.state
        last_known_good = state.servers.last_known_good
        if self._specs() != self._configured:
            return False
        listed = all(
            key in last_known_good and last_known_good[key].listing.digest == listing.digest
            for key, listing in self._listings().items()
        )
        served = state.ready and state.registry.commit_at is None and state.registry.complete
        return listed and served and self._leases_are_known()

    def _leases_are_known(self) -> bool:
        held = {lease.id for lease in self.worker.leases.leases}
        return held == {*self.plane.state.placements.leases}

    def _specs(self) -> dict[VariantKey, ServerSpec]:
        return {key: spec for key, (spec, _) in self._look().items()}

    def _listings(self) -> dict[VariantKey, Listing]:
        return {key: listing for key, (_, listing) in self._look().items()}

    def _look(self) -> dict[VariantKey, tuple[ServerSpec, Listing]]:
        """Return what is to be served."""
        version = self._registry.version
        if version != self._at_version:
            specs = self._registry.specs()
            self._wanted = {spec.key: (spec, self._listing(spec.key.server_id)) for spec in specs}
            self._at_version = version
        return self._wanted

    def _listing(self, server_id: str) -> Listing:
        prompts_resources = self._registry.prompts_resources(server_id)
        definitions = self._registry.definitions(server_id).values()
        return listing_from_wire(
            sync_pb2.ProbeResult(
                tools=[sync_pb2.RecordedTool(definition=each) for each in definitions],
                prompts=prompts_resources.prompts,
                resources=prompts_resources.resources,
                resource_templates=prompts_resources.templates,
                protocol_version=PROTOCOL,
            )
        )

    # What tests see and do.

    def advance(self, seconds: float) -> None:
        """Put the clock of both planes forward."""
        self._ahead += seconds
        while seconds > 0:
            self._shown += min(seconds, _STEP)
            seconds -= _STEP
            self.worker.leases.reconcile()
        self.plane.act(lambda state, now: state.tick(now))

    def leases(self) -> list[leases_pb2.Lease]:
        """Return the leases that are held now, the oldest first."""
        describe = LeaseMessages(_WORKER, self.worker.leases, self._lease_clock)
        return [describe(lease) for lease in self.worker.leases.leases]

    def tools(self) -> list[catalog_pb2.Tool]:
        """Return what callers see listed, ordered by name."""
        named = self.plane.state.visible.view(DEFAULT_TENANT, "").tools
        return [messages.tool(name, named[name]) for name in sorted(named)]

    def problems(self) -> list[admin_pb2.Problem]:
        """Return what clients have reported, the one longest not met first."""
        found = [one for one in self.plane.state.problems.open() if one.problem.scope == "client"]
        return [messages.problem(one) for one in sorted(found, key=lambda one: one.last_seen)]

    def _lease_clock(self) -> float:
        """Return the time without leaps: after one, a worker lets leases live longer.

        It cannot know what was said to it meanwhile. A test that stands still says nothing.
        """
        looked, self._looked = self._looked, time.monotonic()
        self._shown += min(self._looked - looked, _STEP)
        return self._shown

    def _moment(self) -> Moment:
        return Moment(time.monotonic() + self._ahead, time.time() + self._ahead)


def _relisted(
    key: VariantKey, launch_hash: str, listing: Listing, state: Coordinator, now: Moment
) -> None:
    state.relisted(_WORKER, key, launch_hash, listing, now)


class _Settled(grpc.aio.ServerInterceptor):
    """Lets clients ask the control plane once it knows of all changes."""

    def __init__(self, settle: Callable[[], Awaitable[None]]) -> None:
        self._settle = settle

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        if not handler_call_details.method.startswith(_SYNC):
            await self._settle()
        return await continuation(handler_call_details)
