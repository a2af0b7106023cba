"""The control plane process: builds the components and owns the one task group."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leaseway.control_plane.awake_clock import AwakeClock
from leaseway.control_plane.config.layers.sources import Source
from leaseway.control_plane.config_feed import follow_config
from leaseway.control_plane.leadership import Elector, LeaderGate, candidate
from leaseway.control_plane.operators.commands import OperatorCommands
from leaseway.control_plane.plane import Plane
from leaseway.control_plane.resource_status import ResourceStatus
from leaseway.control_plane.services.admin import AdminService
from leaseway.control_plane.services.catalog import CatalogService
from leaseway.control_plane.services.placement import PlacementService
from leaseway.control_plane.store.memory import MemoryStore
from leaseway.control_plane.store.port import Room, Store, StoreError, StoreRefused
from leaseway.control_plane.store.references import DsnReference
from leaseway.control_plane.sync.login_steps import LoginSteps
from leaseway.control_plane.sync.seal import Seal
from leaseway.control_plane.sync.service import SyncService
from leaseway.identity.authenticator import Authenticator, authenticator_for
from leaseway.identity.interceptor import identity_interceptors
from leaseway.telemetry.diagnostics import diagnostics_on_signal
from leaseway.telemetry.prometheus_http import MetricsListener
from leaseway.telemetry.setup import run_meter
from leaseway.v1 import admin_pb2_grpc, catalog_pb2_grpc, leases_pb2_grpc, sync_pb2_grpc
from leaseway.wire.channels.auth import check_listen
from leaseway.wire.channels.endpoint import Endpoint
from leaseway.wire.channels.health import LIVE, HealthService, enable_reflection
from leaseway.wire.channels.serving import bind, make_server, rpcs_ended
from leaseway.wire.timing.running_tasks import keep_running
from leaseway.wire.timing.stop_signals import handle_stop_signals

if TYPE_CHECKING:
    from leaseway.control_plane.console.server import ConsoleListener

_logger = logging.getLogger(__name__)
_NAME = "leaseway-control-plane"
_SERVICES = (
    "leaseway.v1.CatalogService",
    "leaseway.v1.PlacementService",
    "leaseway.v1.AdminService",
    "leaseway.v1.SyncService",
)
_GRACE = 1.0
"""Seconds that requests may take to finish at a stop; there are few, as no call passes here."""


@dataclass(frozen=True)
class LeaderLease:
    """The Kubernetes Lease that elects one of several control planes as leader.

    Attributes:
        duration: Seconds without renewal after which another control plane may take the Lease.
        advertise: Where clients reach this control plane; None for its listening address.
    """

    namespace: str
    name: str
    duration: int = 3
    advertise: Endpoint | None = None


@dataclass(frozen=True)
class ControlPlaneOptions:
    """Options of a control plane.

    Attributes:
        config: The file to watch, or the files of all layers.
        listen: Where to listen; port 0 for any free one.
        key: The shared key of callers and workers, or None on loopback.
        authenticator: Checks credentials, or None to check only the shared key.
        expect_workers: Number of workers that will join; 0 means unknown.
        metrics: Listener for Prometheus, or None.
        console: Listener for the console, or None.
        seal: Signs the variants that workers are sent; by default with a key of this process.
        lease: Elects the leader, or None for a single control plane.
        data: The folder of what outlives the process, or None.
        store: Where the connection string of its PostgreSQL database is, or None. With neither it
            is in memory.
    """

    config: tuple[Source, ...]
    listen: Endpoint
    key: str | None = None
    authenticator: Authenticator | None = field(default=None, compare=False)
    expect_workers: int = 0
    metrics: MetricsListener | None = None
    console: ConsoleListener | None = None
    seal: Seal = field(default_factory=Seal.generate, compare=False)
    lease: LeaderLease | None = None
    data: Path | None = None
    store: DsnReference | None = None


async def run(options: ControlPlaneOptions, *, ready: Callable[[str], None]) -> int:
    """Serve until a signal stops it (`handle_stop_signals`); return the process's exit status.

    Args:
        ready: Called with the bound address.

    Raises:
        ValueError: The address requires a key.
        OSError: The address cannot be bound, no Kubernetes API is available for the Lease, or the
            store cannot be used as it is.
    """
    authenticator = options.authenticator or authenticator_for(options.key)
    check_listen(options.listen, None if authenticator.is_open else authenticator)
    with diagnostics_on_signal() as facts:  # first: an unhandled SIGUSR1 would end the process
        stopping = _stop_on_signals()
        async with run_meter(options.metrics, _NAME) as meter, _open_store(options) as store:
            plane = Plane(
                epoch=int(time.time() * 1e6),
                expected_workers=options.expect_workers,
                clock=AwakeClock(),
                meter=meter,
                store=store,
                follows=options.lease is not None,
            )
            facts.append(plane.counts)
            authenticator.refusals.refused.connect(OperatorCommands(plane).record_refusals)
            if plane.meters is not None:
                authenticator.limit_reached.connect(plane.meters.limits.record)
            logins = LoginSteps(plane.streams)
            async with _console(options, plane, logins):
                process = _Process(options, authenticator, plane, logins)
                await process.run(stopping, ready)
    return 0


def _console(
    options: ControlPlaneOptions, plane: Plane, logins: LoginSteps
) -> AbstractAsyncContextManager[None]:
    if options.console is None:
        return nullcontext()
    # Importing aiohttp would make starts without a console a sixth slower.
    from leaseway.control_plane.console.server import serve_console

    return serve_console(options.console, plane, options.key, logins)


class _Process:
    """Serves until a stop; with a leader election, in terms that end when another one leads."""

    def __init__(
        self,
        options: ControlPlaneOptions,
        authenticator: Authenticator,
        plane: Plane,
        logins: LoginSteps,
    ) -> None:
        self._options = options
        self._authenticator = authenticator
        self._plane = plane
        self._logins = logins
        self._listen = options.listen

    async def run(self, stopping: asyncio.Event, ready: Callable[[str], None]) -> None:
        """Serve until `stopping` is set."""
        if self._options.lease is None:
            await self._term(None, stopping, ready)
            return
        if self._listen.port == 0:
            raise OSError(
                "A control plane with a leader election needs a fixed port, so that clients find it"
                " again: set one with --listen."
            )
        me = candidate(str(self._options.lease.advertise or self._listen.reachable))
        announce: Callable[[str], None] | None = ready
        while not stopping.is_set():
            async with _candidate(self._options.lease, me) as elector:
                await self._term(elector, stopping, announce)
            announce = None  # the address stays the same
            self._plane.follow()

    async def _term(
        self,
        elector: Elector | None,
        stopping: asyncio.Event,
        ready: Callable[[str], None] | None,
    ) -> None:
        """Serve until `stopping` is set or this control plane loses the lead."""
        plane = self._plane
        gates = () if elector is None else (LeaderGate(elector),)
        server = make_server(interceptors=(*identity_interceptors(self._authenticator), *gates))
        admin_pb2_grpc.add_AdminServiceServicer_to_server(AdminService(plane), server)
        catalog_pb2_grpc.add_CatalogServiceServicer_to_server(CatalogService(plane), server)
        leases_pb2_grpc.add_PlacementServiceServicer_to_server(PlacementService(plane), server)
        console = self._options.console
        console_url = "" if console is None else console.login_url
        sync = SyncService(plane, self._options.seal, self._logins, console_url)
        sync_pb2_grpc.add_SyncServiceServicer_to_server(sync, server)
        health = HealthService(server)
        enable_reflection(server, _SERVICES)
        self._listen = bind(server, self._listen)
        await server.start()
        await health.set_serving("", LIVE, *_SERVICES)
        _logger.info("listening", extra={"address": str(self._listen)})
        if ready is not None:
            ready(str(self._listen))
        try:
            await self._serve(plane, elector, stopping)
        finally:
            self._authenticator.refusals.flush()
            if stopping.is_set():
                await health.shut_down()
                if elector is not None:
                    await plane.stored_anchors.maintain()  # before another one leads
                    await elector.release()
            # After losing the lead, open requests need no answer from here.
            await server.stop(_GRACE if stopping.is_set() else 0.0)
            await rpcs_ended()
            if stopping.is_set() and elector is None:
                await plane.stored_anchors.maintain()  # with the last heads of workers that leave

    async def _serve(self, plane: Plane, elector: Elector | None, stopping: asyncio.Event) -> None:
        config = self._options.config
        namespace = _namespace(config)
        status = ResourceStatus(plane, elector)
        async with asyncio.TaskGroup() as tasks:
            # A fault in one of these is no reason to end what serves all callers and workers.
            lasting: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
                "follow credentials": self._authenticator.run,
                "follow the configuration": partial(follow_config, plane, config, status.loaded),
            }
            if namespace:
                lasting["write the status of resources"] = partial(status.run, namespace)
            running = [
                tasks.create_task(plane.run()),
                *(tasks.create_task(keep_running(work, name)) for name, work in lasting.items()),
            ]
            ends: list[asyncio.Task[Any]] = [tasks.create_task(stopping.wait())]
            if elector is not None:
                ends.append(tasks.create_task(lead_until_lost(plane, elector)))
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for task in (*running, *ends):
                task.cancel()


async def lead_until_lost(plane: Plane, elector: Elector) -> None:
    """Wait for the lead; return when it is lost, or a newer leader has claimed the store."""
    plane.lead(await elector.lead())
    async with asyncio.TaskGroup() as tasks:
        ends = [
            tasks.create_task(elector.renew_until_lost()),
            tasks.create_task(plane.deposed.wait()),
        ]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for task in ends:
            task.cancel()
    if plane.deposed.is_set():
        elector.step_down("A newer leader has claimed the store.")


def _store(options: ControlPlaneOptions) -> Store:
    if options.store is not None:
        try:
            from leaseway.control_plane.store.postgresql import PostgresStore
        except ImportError:
            raise OSError(
                "A store in PostgreSQL needs its client: pip install 'leaseway[postgresql]', or in"
                " a container the image whose tag ends in -stores."
            ) from None
        return PostgresStore(options.store.read)
    if options.data is not None:
        from leaseway.control_plane.store.sqlite import SqliteStore

        return SqliteStore(options.data, exclusive=options.lease is None)
    return MemoryStore()


@asynccontextmanager
async def _open_store(options: ControlPlaneOptions) -> AsyncIterator[Store]:
    """Open the store. One that fails now may work later; one that is refused may not be used.

    Raises:
        OSError: It is refused.
    """
    store = _store(options)
    try:
        await store.read(Room.APPROVALS, limit=1)
    except StoreRefused as error:
        raise OSError(str(error)) from None
    except StoreError as error:
        _logger.warning("The store cannot be used yet: %s", error)
    if store.place:
        _logger.info("Approvals are kept in %s.", store.place)
    else:
        _logger.info("Approvals are kept in memory, and end with this process; --data keeps them.")
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def _candidate(lease: LeaderLease, me: str) -> AsyncIterator[Elector]:
    try:
        from leaseway.control_plane.config.kubernetes.api import KubernetesLease, open_api
    except ImportError:
        raise OSError(
            "A leader's Lease needs the Kubernetes client: pip install 'leaseway[kubernetes]'."
        ) from None

    async with open_api(lease.namespace) as api:
        held = KubernetesLease(api.client, lease.namespace, lease.name)
        yield Elector(held, me, lease.duration)


def _namespace(sources: tuple[Source, ...]) -> str:
    """Return the Kubernetes namespace among the sources, or an empty text."""
    return next((source.namespace for source in sources if source.namespace), "")


def _stop_on_signals() -> asyncio.Event:
    stopping = asyncio.Event()

    def stop(_reason: str) -> None:
        stopping.set()

    handle_stop_signals(stop)
    return stopping
