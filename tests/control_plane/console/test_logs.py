"""The console shows the stderr of all instances of a server, also what fills several pages."""

from __future__ import annotations

from typing import Any

import grpc
from tests.control_plane.core.builders import hello, load, spec

from leaseway.control_plane.console.actions import Actions
from leaseway.control_plane.core.workers.records import WorkerIdentity
from leaseway.control_plane.plane import Plane
from leaseway.v1 import execution_pb2, execution_pb2_grpc
from leaseway.wire.listing.pages import one_page, page_start

WRITTEN = [
    execution_pb2.InstanceLog(instance_id=f"w1-{number}", lines=["x" * 600_000])
    for number in range(4)
]


class Worker(execution_pb2_grpc.ExecutionServiceServicer):
    """A worker whose instances have written more than one page holds."""

    pages = 0

    async def ReadLogs(
        self, request: execution_pb2.ReadLogsRequest, _context: Any
    ) -> execution_pb2.ReadLogsResponse:
        self.pages += 1
        logs = (((log.instance_id,), log) for log in WRITTEN)
        page, token = one_page(page_start("ReadLogs", request), logs, lambda log: log)
        return execution_pb2.ReadLogsResponse(instances=page, next_page_token=token)


async def test_logs_of_several_pages_are_all_shown() -> None:
    service = Worker()  # type: ignore[abstract]  # the generated base has the other methods
    server = grpc.aio.server()
    execution_pb2_grpc.add_ExecutionServiceServicer_to_server(service, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    plane = Plane(epoch=1)
    with plane.transition() as (state, now):
        load(state, spec("a"), now=now)
        worker = WorkerIdentity("w1", "run-w1", address)
        state.handle_worker_joined(hello("w1", address=worker), now)
    try:
        shown = await Actions(plane, None).logs("a", "")
    finally:
        await server.stop(None)
    assert [log["instance"] for log in shown["instances"]] == ["w1-0", "w1-1", "w1-2", "w1-3"]
    assert service.pages > 1
