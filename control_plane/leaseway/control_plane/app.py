"""The control plane as a process: chooses the concrete pieces and owns the one task group."""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from leaseway.control_plane.config.layers.sources import Source
from leaseway.control_plane.config_feed import follow_config
from leaseway.control_plane.console.server import ConsoleListener, serve_console
from leaseway.control_plane.metrics import PlaneMeters
from leaseway.control_plane.plane import Plane
from leaseway.control_plane.resource_status import ResourceStatus
from leaseway.control_plane.services.admin import AdminService
from leaseway.control_plane.services.catalog import CatalogService
from leaseway.control_plane.services.placement import PlacementService
from leaseway.control_plane.sync.seal import Seal
from leaseway.control_plane.sync.service import SyncService
from leaseway.identity.authenticator import Authenticator, authenticator_for
from leaseway.identity.interceptor import identity_interceptors
from leaseway.telemetry.diagnostics import census_on_signal
from leaseway.telemetry.prometheus_http import MetricsListener
from leaseway.telemetry.setup import measuring
from leaseway.telemetry.tracing import configure_telemetry
from leaseway.v1 import admin_pb2_grpc, catalog_pb2_grpc, leases_pb2_grpc, sync_pb2_grpc
from leaseway.wire.auth import check_listen
from leaseway.wire.endpoint import Endpoint
from leaseway.wire.serving import LIVE, HealthService, bind, enable_reflection, make_server

_logger = logging.getLogger(__name__)
_NAME = "leaseway-control-plane"
_SERVICES = (
    "leaseway.v1.CatalogService",
    "leaseway.v1.PlacementService",
    "leaseway.v1.AdminService",
    "leaseway.v1.SyncService",
)
_GRACE = 1.0
"""Seconds that requests get to end at a stop; no call goes through here, so few are under way."""


@dataclass(frozen=True)
class ControlPlaneOptions:
    """How a control plane is started.

    Attributes:
        config: The file to watch, or the files of all layers.
        listen: Where to listen; port 0 for any free one.
        key: The shared key that callers and workers must send, or None on loopback.
        authenticator: What they are checked by, or None for the shared key alone.
        expect_workers: How many workers will join; 0 means unknown.
        metrics: Where Prometheus asks for metrics, or None for nowhere.
        console: Where operators look at it, or None for nowhere.
        seal: Signs what workers are sent; one of this process alone unless it is given.
    """

    config: Path | tuple[Source, ...]
    listen: Endpoint
    key: str | None = None
    authenticator: Authenticator | None = field(default=None, compare=False)
    expect_workers: int = 0
    metrics: MetricsListener | None = None
    console: ConsoleListener | None = None
    seal: Seal = field(default_factory=lambda: Seal(secrets.token_bytes(32)), compare=False)


async def run(options: ControlPlaneOptions, *, ready: Callable[[str], None]) -> int:
    """Serve until SIGTERM or SIGINT; return the process's exit status.

    Args:
        options: How to run.
        ready: Called with the bound address once it listens.

    Raises:
        ValueError: Listening there needs a key.
        OSError: The address cannot be used.
    """
    authenticator = options.authenticator or authenticator_for(options.key)
    check_listen(options.listen, None if authenticator.is_open else authenticator)
    telemetry = configure_telemetry(_NAME)
    plane = Plane(epoch=int(time.time() * 1e6), expected_workers=options.expect_workers)
    with census_on_signal(plane.counts):  # first: an unhandled SIGUSR1 would end the process
        try:
            await _run(plane, options, authenticator, ready)
        finally:
            telemetry.shutdown()
    return 0


async def _run(
    plane: Plane,
    options: ControlPlaneOptions,
    authenticator: Authenticator,
    ready: Callable[[str], None],
) -> None:
    server = make_server(interceptors=identity_interceptors(authenticator))
    admin_pb2_grpc.add_AdminServiceServicer_to_server(AdminService(plane), server)
    catalog_pb2_grpc.add_CatalogServiceServicer_to_server(CatalogService(plane), server)
    leases_pb2_grpc.add_PlacementServiceServicer_to_server(PlacementService(plane), server)
    sync_pb2_grpc.add_SyncServiceServicer_to_server(SyncService(plane, options.seal), server)
    health = HealthService(server)
    enable_reflection(server, _SERVICES)
    address = bind(server, options.listen)
    stopping = _stop_on_signals()
    await server.start()
    await health.set_serving("", LIVE, *_SERVICES)
    _logger.info("listening", extra={"address": str(address)})
    ready(str(address))
    try:
        async with measuring(options.metrics, _NAME) as meter:
            if meter is not None:
                plane.meters = PlaneMeters(meter, plane.state)
            async with serve_console(options.console, plane, options.key):
                await _serve(plane, options, authenticator, stopping)
    finally:
        await health.shut_down()
        await server.stop(_GRACE)


async def _serve(
    plane: Plane,
    options: ControlPlaneOptions,
    authenticator: Authenticator,
    stopping: asyncio.Event,
) -> None:
    namespace = _namespace(options.config)
    status = ResourceStatus(plane, lambda: True)
    async with asyncio.TaskGroup() as tasks:
        running = [
            tasks.create_task(plane.run()),
            tasks.create_task(authenticator.run()),
            tasks.create_task(follow_config(plane, options.config, status.loaded)),
        ]
        if namespace:
            running.append(tasks.create_task(status.run(namespace)))
        await stopping.wait()
        for task in running:
            task.cancel()


def _namespace(config: Path | tuple[Source, ...]) -> str:
    """Return the namespace whose resources are a source of layers, or an empty text."""
    sources = () if isinstance(config, Path) else config
    return next((each.namespace for each in sources if each.namespace), "")


def _stop_on_signals() -> asyncio.Event:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    return stopping
