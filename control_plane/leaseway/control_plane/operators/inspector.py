"""Queries workers for recorded calls, call counts and lease use.

Questions are sent on the Sync streams, so that operators need no other connection to workers.
Workers that do not answer in time are listed in the result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from leaseway.control_plane.plane import Plane
from leaseway.v1 import admin_pb2, catalog_pb2, sync_pb2

_TIMEOUT: Final = 3.0
"""Seconds that a worker may take to answer."""
_MAX_IDS: Final = 1_000
"""Limit of leases in one question."""


@dataclass
class _Answers:
    """The workers' answers by id, and the sorted ids of workers that did not answer."""

    answers: dict[str, sync_pb2.Inspected] = field(default_factory=dict)
    silent: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Loads:
    """The calls in flight by server, and by worker that answered."""

    servers: dict[str, catalog_pb2.CallLoad]
    workers: dict[str, catalog_pb2.CallLoad]

    def of_server(self, server_id: str) -> catalog_pb2.CallLoad:
        return self.servers.get(server_id, catalog_pb2.CallLoad())


class Inspector:
    """Queries all workers of a plane and merges their answers."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane

    async def calls(
        self, request: admin_pb2.ListCallsRequest, limit: int
    ) -> admin_pb2.ListCallsResponse:
        """Ask all workers for recorded calls; sort them as requested."""
        wanted = admin_pb2.ListCallsRequest()
        wanted.CopyFrom(request)
        wanted.limit = limit
        seen = await self._inspect_all(sync_pb2.Inspect(calls=wanted))
        calls = [call for answer in seen.answers.values() for call in answer.calls]
        slow = request.selection == admin_pb2.CALL_SELECTION_SLOW
        calls.sort(key=_duration if slow else _started, reverse=True)
        return admin_pb2.ListCallsResponse(calls=calls[:limit], silent_workers=seen.silent)

    async def traffic(self) -> admin_pb2.GetTrafficResponse:
        """Ask all workers for their call counts."""
        seen = await self._inspect_all(sync_pb2.Inspect(traffic=True))
        response = admin_pb2.GetTrafficResponse(silent_workers=seen.silent)
        for worker_id, answer in sorted(seen.answers.items()):
            record = self._plane.state.workers.get(worker_id)
            for traffic in answer.traffic:
                entry = response.traffic.add()
                entry.CopyFrom(traffic)
                entry.worker_id = worker_id
                entry.incarnation = record.hello.address.incarnation if record is not None else ""
        response.time.FromNanoseconds(int(self._plane.clock().unix * 1e9))
        return response

    async def loads(self) -> Loads:
        """Ask all workers for their calls in flight."""
        seen = await self._inspect_all(sync_pb2.Inspect(traffic=True))
        loads = Loads({}, {worker_id: catalog_pb2.CallLoad() for worker_id in seen.answers})
        for worker_id, answer in seen.answers.items():
            for traffic in answer.traffic:
                of_server = loads.servers.setdefault(traffic.server_id, catalog_pb2.CallLoad())
                for load in (of_server, loads.workers[worker_id]):
                    _add(load, traffic)
        return loads

    async def lease_uses(self, lease_ids: Iterable[str]) -> dict[str, sync_pb2.LeaseUse]:
        """Ask all workers how leases are used; leases that no worker holds are missing."""
        ids = list(lease_ids)
        parts = [ids[start : start + _MAX_IDS] for start in range(0, len(ids), _MAX_IDS)]
        asked = [self._inspect_all(sync_pb2.Inspect(lease_ids=part)) for part in parts]
        return {
            use.lease_id: use
            for seen in await asyncio.gather(*asked)
            for answer in seen.answers.values()
            for use in answer.leases
        }

    async def _inspect_all(self, question: sync_pb2.Inspect) -> _Answers:
        workers = sorted(self._plane.streams)
        futures = [self._plane.inspect_worker(worker, question) for worker in workers]
        if futures:
            await asyncio.wait(futures, timeout=_TIMEOUT)
        found = _Answers()
        for worker_id, future in zip(workers, futures, strict=True):
            if future.done() and not future.cancelled():
                found.answers[worker_id] = future.result()
            else:
                future.cancel()
                found.silent.append(worker_id)
        return found


def _add(load: catalog_pb2.CallLoad, traffic: admin_pb2.Traffic) -> None:
    load.in_flight += traffic.in_flight
    load.waiting += traffic.waiting
    if traffic.waiting:
        longest = max(load.oldest_wait.ToNanoseconds(), traffic.oldest_wait.ToNanoseconds())
        load.oldest_wait.FromNanoseconds(longest)


def _started(call: admin_pb2.CallRecord) -> int:
    return call.started_at.ToNanoseconds()


def _duration(call: admin_pb2.CallRecord) -> int:
    return call.duration.ToNanoseconds()
