"""Serves a worker until it is asked to stop, and ends it in order.

The end: not serving, the worker leaves (`worker`), the server stops.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import grpc

from leaseway.data_plane.artifacts.http import serve_artifacts
from leaseway.data_plane.background import Background
from leaseway.data_plane.services.execution import add_execution_service
from leaseway.data_plane.sync.client import SyncClient
from leaseway.data_plane.worker import Stop, Worker
from leaseway.v1 import leases_pb2_grpc
from leaseway.wire.channels.health import LIVE, HealthService, enable_reflection

_logger = logging.getLogger(__name__)
_SERVICES: Final = ("leaseway.v1.ExecutionService", "leaseway.v1.LeaseService")
_STOP_GRACE: Final = 5.0
"""Seconds that callers are given to read the ends of their streams."""


async def serve(
    server: grpc.aio.Server,
    worker: Worker,
    background: Background,
    stop: Stop,
    ready: Callable[[], None],
) -> None:
    """Serve until asked to stop, then leave in order.

    Args:
        server: Bound, not started.
        worker: What is served.
        background: Runs what nobody waits for.
        stop: Says when.
        ready: Called once the server listens.
    """
    add_execution_service(worker.execution, server)
    leases_pb2_grpc.add_LeaseServiceServicer_to_server(worker.lease_service, server)
    health = HealthService(server)
    await health.set_not_serving("", *_SERVICES)
    await health.set_serving(LIVE)
    enable_reflection(server, _SERVICES)
    await server.start()
    try:
        async with serve_artifacts(worker.artifacts_http, worker.artifacts):
            ready()
            background.supervise(worker.sync.run, "keep joined to the control plane")
            background.supervise(worker.references.run, "follow changes of secrets and files")
            background.spawn(_say_when_serving(worker.sync, health), "health")
            await stop.asked.wait()
            _logger.info("Worker %s ends: %s.", worker.id, stop.reason)
            await health.shut_down()
            await worker.leave(stop)
    finally:
        await server.stop(_STOP_GRACE)


async def _say_when_serving(sync: SyncClient, health: HealthService) -> None:
    await sync.caught_up.wait()
    await health.set_serving("", *_SERVICES)
