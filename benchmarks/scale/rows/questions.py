"""What clients ask a control plane with a large fleet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import grpc

from benchmarks.scale.content import server_id
from benchmarks.scale.row import ScaleRow, Size
from benchmarks.scale.simulated import worker_id
from benchmarks.scale.system import ControlPlane, control_plane, fleet
from leaseway.v1 import admin_pb2, admin_pb2_grpc, catalog_pb2, catalog_pb2_grpc

__all__ = ["QUESTIONS"]

_NAMES: Final = 20
_RESOLVED: Final = 500
_LOOKUPS: Final = 500
_STATUSES: Final = 3


async def _questions(size: Size) -> Mapping[str, float]:
    """Resolve 20 names as after a reload, look for a failed worker, and ask for the status."""
    async with (
        control_plane(size.servers) as plane,
        fleet(plane.address, size.workers, size.servers, 200) as workers,
        grpc.aio.insecure_channel(plane.address) as channel,
    ):
        await workers.do("join")
        catalog: Any = catalog_pb2_grpc.CatalogServiceStub(channel)
        admin: Any = admin_pb2_grpc.AdminServiceStub(channel)
        names = [f"{server_id(number)}_0" for number in range(min(_NAMES, size.servers))]
        request = catalog_pb2.ResolveToolsRequest(names=names, **_by_sets())
        first = await catalog.ResolveTools(request)
        if hasattr(first, "worker_sets"):
            request.known_worker_sets.extend(worker_set.id for worker_set in first.worker_sets)
        resolving = await _cpu(plane, catalog.ResolveTools, request, _RESOLVED)
        asked = admin_pb2.ListWorkersRequest(**_of_one())
        return {
            "cpu_us_a_name": resolving / len(names) * 1e6,
            "response_bytes": first.ByteSize(),
            "cpu_us_a_lookup": await _cpu(plane, admin.ListWorkers, asked, _LOOKUPS) * 1e6,
            "cpu_ms_a_status": 1e3
            * await _cpu(plane, admin.GetStatus, admin_pb2.GetStatusRequest(), _STATUSES),
        }


async def _cpu(plane: ControlPlane, rpc: Any, request: Any, count: int) -> float:
    """Return the CPU seconds of the control plane for one of some requests, one after another."""
    before = plane.cpu
    for _ in range(count):
        await rpc(request)
    return (plane.cpu - before) / count


def _by_sets() -> dict[str, Any]:
    """Ask as clients do; earlier revisions, which can be measured, too, do not know this."""
    known = catalog_pb2.ResolveToolsRequest.DESCRIPTOR.fields_by_name
    return {"takes_worker_sets": True} if "takes_worker_sets" in known else {}


def _of_one() -> dict[str, Any]:
    known = admin_pb2.ListWorkersRequest.DESCRIPTOR.fields_by_name
    return {"worker_ids": [worker_id(3)]} if "worker_ids" in known else {}


QUESTIONS = ScaleRow("questions", "questions of clients", _questions)
