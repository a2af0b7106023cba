"""A control plane's services on a free port of this machine."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from tests.conftest import BOUND
from tests.control_plane.fake_worker import PLANES
from tests.postgres_server import PostgresServer, postgres_server

from leaseway.control_plane.core.coordinator import Coordinator
from leaseway.control_plane.core.problems import Problem
from leaseway.control_plane.plane import Plane
from leaseway.control_plane.services import (
    admin as admin_service,
)
from leaseway.control_plane.services import (
    catalog as catalog_service,
)
from leaseway.control_plane.services import (
    placement as placement_service,
)
from leaseway.control_plane.services.admin import AdminService
from leaseway.control_plane.services.catalog import CatalogService
from leaseway.control_plane.services.placement import PlacementService
from leaseway.control_plane.services.requests import time_left
from leaseway.control_plane.store.port import Store
from leaseway.control_plane.sync.seal import Seal
from leaseway.control_plane.sync.service import SyncService
from leaseway.spec.model import ServerSpec
from leaseway.telemetry.metrics import Meter
from leaseway.v1 import admin_pb2_grpc, catalog_pb2_grpc, leases_pb2_grpc, sync_pb2_grpc
from leaseway.wire.channels.endpoint import Endpoint
from leaseway.wire.channels.serving import bind, make_server


@dataclass
class Running:
    """A plane, its address, and stubs of its services."""

    plane: Plane
    address: str
    catalog: catalog_pb2_grpc.CatalogServiceAsyncStub
    placement: leases_pb2_grpc.PlacementServiceAsyncStub
    admin: admin_pb2_grpc.AdminServiceAsyncStub

    def load(self, *specs: ServerSpec, problems: tuple[Problem, ...] = ()) -> None:
        """Apply a configuration."""
        servers = {spec.key: spec for spec in specs}
        with self.plane.transition() as (s, now):
            s.apply_config(servers, frozenset(), problems, now)

    async def until(self, condition: Callable[[Coordinator], object]) -> None:
        """Wait until the coordinator's state satisfies a condition."""
        async with asyncio.timeout(BOUND):
            while not condition(self.plane.state):
                await self.plane.wait_for_change(1)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """Run a PostgreSQL server."""
    with postgres_server() as server:
        yield server


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> float:
    """Treat callers as if their deadline were half a second after the request.

    They answer a little before that. A caller that really gave up then would miss the answer
    where the machine gives this process no time; these wait for the seconds that are returned.
    """

    def little_time(context: Any, longest: float) -> float:
        return min(longest, time_left(context, 2 * BOUND) - BOUND + 0.5)

    for service in (admin_service, catalog_service, placement_service):
        monkeypatch.setattr(service, "time_left", little_time)
    return BOUND


SEAL = Seal(b"the key of these tests")


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    """Serve a plane that expects one worker."""
    async with serving() as made:
        yield made


@contextlib.asynccontextmanager
async def serving(
    *interceptors: grpc.aio.ServerInterceptor,
    meter: Meter | None = None,
    store: Store | None = None,
) -> AsyncIterator[Running]:
    """Serve a plane that expects one worker, behind some interceptors."""
    plane = Plane(epoch=7, expected_workers=1, meter=meter, store=store)
    server = make_server(interceptors=interceptors)
    admin_pb2_grpc.add_AdminServiceServicer_to_server(AdminService(plane), server)
    catalog_pb2_grpc.add_CatalogServiceServicer_to_server(CatalogService(plane), server)
    leases_pb2_grpc.add_PlacementServiceServicer_to_server(PlacementService(plane), server)
    sync_pb2_grpc.add_SyncServiceServicer_to_server(SyncService(plane, SEAL), server)
    address = str(bind(server, Endpoint("127.0.0.1", 0)))
    await server.start()
    loop = asyncio.create_task(plane.run())
    PLANES[address] = plane
    async with grpc.aio.insecure_channel(address) as channel:
        yield Running(
            plane=plane,
            address=address,
            catalog=catalog_pb2_grpc.CatalogServiceStub(channel),
            placement=leases_pb2_grpc.PlacementServiceStub(channel),
            admin=admin_pb2_grpc.AdminServiceStub(channel),
        )
    del PLANES[address]
    loop.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await loop
    await server.stop(0)
