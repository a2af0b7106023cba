"""What a plane tells of itself: gRPC's health service, and reflection.

`grpc_health` and `grpc_reflection` belong to the `serving` extra, so nothing that the SDK imports
may import this. They are imported here and not on use, which would be on the event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

LIVE: Final = "leaseway.live"
"""What health checks ask for to learn whether a process answers at all, ready or not."""


class HealthService:
    """The standard gRPC health service of one server.

    A service that was never set is unknown to checkers; the empty name stands for the process.
    """

    def __init__(self, server: grpc.aio.Server) -> None:
        self._statuses = health_pb2.HealthCheckResponse.ServingStatus
        self._servicer = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def set_serving(self, *services: str) -> None:
        """Say that services take calls; the empty name is the process."""
        await self._set(services, self._statuses.Value("SERVING"))

    async def set_not_serving(self, *services: str) -> None:
        """Say that services take no calls; the empty name is the process."""
        await self._set(services, self._statuses.Value("NOT_SERVING"))

    async def shut_down(self) -> None:
        """Say NOT_SERVING for all services and ignore whatever is set later."""
        await self._servicer.enter_graceful_shutdown()

    async def _set(self, services: Sequence[str], status: Any) -> None:
        for service in services:
            await self._servicer.set(service, status)


def enable_reflection(server: grpc.aio.Server, service_names: Sequence[str]) -> None:
    """Let tools such as grpcurl ask a server what it offers.

    Args:
        server: Not started yet.
        service_names: Full names such as `leaseway.v1.CatalogService`; health, which every plane
            serves, and reflection itself are added.
    """
    every = (*service_names, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(every, server)
