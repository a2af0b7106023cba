"""The control plane rejects invalid names of callers."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import grpc
import pytest
from tests.control_plane.conftest import Running

from leaseway.v1 import admin_pb2, catalog_pb2, leases_pb2
from leaseway.wire.errors import Reason
from leaseway.wire.status import fault_from_rpc_error


@pytest.mark.parametrize("name", ["x" * 257, "a\nb"])
async def test_invalid_caller_names_are_rejected_everywhere(running: Running, name: str) -> None:
    agent = catalog_pb2.ClientInfo(agent=name)
    asked: list[Awaitable[Any]] = [
        running.catalog.ListTools(catalog_pb2.ListToolsRequest(tenant=name)),
        running.catalog.ListTools(catalog_pb2.ListToolsRequest(client=agent)),
        running.catalog.ResolveTools(catalog_pb2.ResolveToolsRequest(tenant=name)),
        running.catalog.ListServers(catalog_pb2.ListServersRequest(tenant=name)),
        running.admin.ListHeldLeases(admin_pb2.ListHeldLeasesRequest(tenant=name)),
        running.placement.Place(leases_pb2.PlaceRequest(session=name, server_id="a")),
        running.placement.Place(leases_pb2.PlaceRequest(session="s", server_id="a", client=agent)),
        running.placement.FindLease(
            leases_pb2.FindLeaseRequest(session="s", server_id="a", tenant=name)
        ),
    ]
    for request in asked:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await request
        fault = fault_from_rpc_error(caught.value)
        assert fault is not None
        assert fault.reason is Reason.INVALID_REQUEST
