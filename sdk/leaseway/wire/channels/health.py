"""gRPC's standard health and reflection services, as each plane serves them.

`grpc_health` and `grpc_reflection` belong to the `serving` extra, so the SDK must not import this
module. They are not imported on first use, because that would block the event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

LIVE: Final = "leaseway.live"
"""The service name of liveness checks: whether the process responds, even if not ready."""


class HealthService:
    """The standard gRPC health service of one server.

    A service without a status is unknown to clients; the empty name stands for the process.
    """

    def __init__(self, server: grpc.aio.Server) -> None:
        self._statuses = health_pb2.HealthCheckResponse.ServingStatus
        self._servicer = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def set_serving(self, *services: str) -> None:
        """Report that services accept calls; the empty name is the process."""
        await self._set(services, self._statuses.Value("SERVING"))

    async def set_not_serving(self, *services: str) -> None:
        """Report that services accept no calls; the empty name is the process."""
        await self._set(services, self._statuses.Value("NOT_SERVING"))

    async def shut_down(self) -> None:
        """Report NOT_SERVING for all services, and ignore later changes."""
        await self._servicer.enter_graceful_shutdown()

    async def _set(self, services: Sequence[str], status: Any) -> None:
        for service in services:
            await self._servicer.set(service, status)


def enable_reflection(server: grpc.aio.Server, service_names: Sequence[str]) -> None:
    """Enable reflection, by which tools such as grpcurl list a server's services.

    Args:
        server: A server that has not started.
        service_names: Full names such as `leaseway.v1.CatalogService`; health and reflection are
            added.
    """
    names = (*service_names, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)
