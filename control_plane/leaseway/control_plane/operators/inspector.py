"""Asks workers what operators want to see: calls that they remember, and how many there were.

Questions go out on the Sync streams, so that a worker needs no other way to be reached. A worker
that does not answer in time is named; nothing waits for it any longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from leaseway.control_plane.plane import Plane
from leaseway.v1 import admin_pb2, sync_pb2

_WITHIN: Final = 3.0
"""Seconds that a worker is given to answer."""
_IDS: Final = 1_000
"""Leases that one question may be about."""


@dataclass
class Seen:
    """What workers have answered.

    Attributes:
        answers: By worker.
        silent: Workers that did not answer, ordered.
    """

    answers: dict[str, sync_pb2.Inspected] = field(default_factory=dict)
    silent: list[str] = field(default_factory=list)


class Inspector:
    """Puts questions to the workers of a plane and gathers their answers."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane

    async def calls(
        self, request: admin_pb2.ListCallsRequest, limit: int
    ) -> admin_pb2.ListCallsResponse:
        """Ask all workers for calls and put the answers in the order that was asked for."""
        wanted = admin_pb2.ListCallsRequest()
        wanted.CopyFrom(request)
        wanted.limit = limit
        seen = await self._ask(sync_pb2.Inspect(calls=wanted))
        calls = [call for answer in seen.answers.values() for call in answer.calls]
        slow = request.selection == admin_pb2.CALL_SELECTION_SLOW
        calls.sort(key=_duration if slow else _started, reverse=True)
        return admin_pb2.ListCallsResponse(calls=calls[:limit], silent_workers=seen.silent)

    async def traffic(self) -> admin_pb2.GetTrafficResponse:
        """Ask all workers how many calls there were."""
        seen = await self._ask(sync_pb2.Inspect(traffic=True))
        response = admin_pb2.GetTrafficResponse(silent_workers=seen.silent)
        for worker_id, answer in sorted(seen.answers.items()):
            record = self._plane.state.workers.get(worker_id)
            for traffic in answer.traffic:
                one = response.traffic.add()
                one.CopyFrom(traffic)
                one.worker_id = worker_id
                one.incarnation = record.hello.address.incarnation if record is not None else ""
        response.time.FromNanoseconds(int(self._plane.clock().unix * 1e9))
        return response

    async def lease_uses(self, lease_ids: Iterable[str]) -> dict[str, sync_pb2.LeaseUse]:
        """Ask all workers how leases are used; of leases that none of them has there is nothing."""
        ids = list(lease_ids)
        parts = [ids[start : start + _IDS] for start in range(0, len(ids), _IDS)]
        asked = [self._ask(sync_pb2.Inspect(lease_ids=part)) for part in parts]
        return {
            use.lease_id: use
            for seen in await asyncio.gather(*asked)
            for answer in seen.answers.values()
            for use in answer.leases
        }

    async def _ask(self, question: sync_pb2.Inspect) -> Seen:
        workers = sorted(self._plane.streams)
        answers = [self._plane.inspect_worker(worker, question) for worker in workers]
        if answers:
            await asyncio.wait(answers, timeout=_WITHIN)
        return _gathered(zip(workers, answers, strict=True))


def _gathered(asked: Iterable[tuple[str, asyncio.Future[sync_pb2.Inspected]]]) -> Seen:
    seen = Seen()
    for worker_id, answer in asked:
        if answer.done() and not answer.cancelled():
            seen.answers[worker_id] = answer.result()
        else:
            answer.cancel()
            seen.silent.append(worker_id)
    return seen


def _started(call: admin_pb2.CallRecord) -> int:
    return call.started_at.ToNanoseconds()


def _duration(call: admin_pb2.CallRecord) -> int:
    return call.duration.ToNanoseconds()
