"""Calls in flight and waiting, of servers and workers, as operators list them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from tests.control_plane.conftest import Running
from tests.control_plane.core.builders import spec
from tests.control_plane.fake_worker import FakeWorker, worker

from leaseway.sdk.operators.views import server_from_proto, worker_from_proto
from leaseway.v1 import admin_pb2, catalog_pb2, sync_pb2
from leaseway.wire.timing.durations import duration

ResultT = TypeVar("ResultT")


async def _answered(
    request: Awaitable[ResultT], traffic: dict[FakeWorker, list[admin_pb2.Traffic]]
) -> ResultT:
    """Return the answer of a request for which the workers report their traffic."""
    asked = asyncio.ensure_future(request)
    for fake, reported in traffic.items():
        question = (await fake.receive("inspect")).inspect
        assert question.traffic
        await fake.send(inspected=sync_pb2.Inspected(id=question.id, traffic=reported))
    return await asked


def _traffic(server_id: str, in_flight: int, waiting: int, wait: float) -> admin_pb2.Traffic:
    message = admin_pb2.Traffic(server_id=server_id, in_flight=in_flight, waiting=waiting)
    if waiting:
        message.oldest_wait.CopyFrom(duration(wait))
    return message


async def test_the_load_of_servers_and_workers_is_summed_and_the_longest_wait_kept(
    running: Running,
) -> None:
    running.load(spec("a"), spec("b"))
    async with worker(running.address) as w1, worker(running.address, "w2") as w2:
        for _ in range(2):
            await w1.serve("echo")
        await w1.apply_until("a", "b")
        await w2.apply_until("a", "b")
        await running.until(lambda state: state.ready)
        traffic = {
            w1: [_traffic("a", 5, 4, 2.0), _traffic("b", 1, 0, 0.0)],
            w2: [_traffic("a", 2, 1, 7.5)],
        }
        listing = running.catalog.ListServers(catalog_pb2.ListServersRequest(load=True))
        servers = map(server_from_proto, (await _answered(listing, traffic)).servers)
        loads = {
            server.id: (server.in_flight, server.waiting, server.oldest_wait) for server in servers
        }
        assert loads == {"a": (7, 5, 7.5), "b": (1, 0, None)}

        workers = running.admin.ListWorkers(admin_pb2.ListWorkersRequest(load=True))
        found = map(worker_from_proto, (await _answered(workers, traffic)).workers)
        loads = {
            server.id: (server.in_flight, server.waiting, server.oldest_wait) for server in found
        }
        assert loads == {"w1": (6, 4, 2.0), "w2": (2, 1, 7.5)}

        plain = await running.admin.ListWorkers(admin_pb2.ListWorkersRequest())
        assert {worker_from_proto(each_worker).in_flight for each_worker in plain.workers} == {None}
