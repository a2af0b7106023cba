"""Answers the control plane's questions about calls and leases, on behalf of operators."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from leaseway.data_plane.calls.executor import Executor
from leaseway.data_plane.calls.recent import BUCKETS, PastCall, RecentCalls
from leaseway.data_plane.leases.manager import WorkerLeaseManager
from leaseway.v1 import admin_pb2, catalog_pb2, sync_pb2
from leaseway.wire.bounds import MAX_PAST_CALLS
from leaseway.wire.messages.enums import selection_from_proto
from leaseway.wire.timing.durations import duration, timestamp

_MAX_LEASES: Final = 1_000


class Inspection:
    """Answers the control plane's questions.

    Args:
        me: This worker.
        recent: The remembered calls, or None if no calls are remembered.
        executor: Counts the calls in flight.
        leases: The held leases.
    """

    def __init__(
        self,
        me: catalog_pb2.WorkerRef,
        recent: RecentCalls | None,
        executor: Executor,
        leases: WorkerLeaseManager,
    ) -> None:
        self._me = me
        self._recent = recent
        self._executor = executor
        self._leases = leases

    def answer(self, question: sync_pb2.Inspect) -> sync_pb2.Inspected:
        answer = sync_pb2.Inspected(id=question.id)
        if question.HasField("calls") and self._recent is not None:
            answer.calls.extend(map(self._call, self._calls(self._recent, question.calls)))
        if question.traffic:
            answer.traffic.extend(self._traffic())
        for lease_id in question.lease_ids[:_MAX_LEASES]:
            lease = self._leases.get(lease_id)
            idle = self._leases.idle_for(lease_id)
            if lease is not None and idle is not None:
                answer.leases.add(lease_id=lease_id, calls=lease.calls, idle=duration(idle))
        return answer

    def _calls(self, recent: RecentCalls, request: admin_pb2.ListCallsRequest) -> list[PastCall]:
        own_prefix = f"{self._me.id}/{self._me.incarnation}/"
        if "/" in request.id and not request.id.startswith(own_prefix):
            return []  # a call of another worker, or of another run of this one
        return recent.select(
            selection_from_proto(request.selection),
            limit=min(request.limit or MAX_PAST_CALLS, MAX_PAST_CALLS),
            now=time.time(),
            server_id=request.server_id,
            name=request.id.removeprefix(own_prefix),
        )

    def _call(self, call: PastCall) -> admin_pb2.CallRecord:
        return admin_pb2.CallRecord(
            id=f"{self._me.id}/{self._me.incarnation}/{call.number}",
            trace_id=call.trace_id,
            worker_id=self._me.id,
            server_id=call.server_id,
            tool=call.tool,
            method=call.method,
            tenant=call.tenant,
            agent=call.agent,
            session=call.session,
            lease_id=call.lease_id,
            instance_id=call.instance_id,
            started_at=timestamp(call.started_at),
            duration=duration(call.duration),
            outcome=call.outcome,
            message=call.message,
            phases=[
                admin_pb2.CallPhase(
                    name=phase.name,
                    offset=duration(phase.offset),
                    duration=duration(phase.duration),
                )
                for phase in call.phases
            ],
        )

    def _traffic(self) -> Iterator[admin_pb2.Traffic]:
        counted = self._recent.traffic if self._recent is not None else {}
        loads = self._executor.loads()
        for server_id in {**counted, **loads}:
            traffic, load = counted.get(server_id), loads.get(server_id)
            if traffic is None and (load is None or not load.in_flight):
                continue
            message = admin_pb2.Traffic(
                worker_id=self._me.id, incarnation=self._me.incarnation, server_id=server_id
            )
            if traffic is not None:
                message.calls, message.failed = traffic.calls, traffic.failed
                message.seconds = traffic.seconds
            message.buckets.extend(traffic.buckets if traffic is not None else [0] * BUCKETS)
            if load is not None:
                message.in_flight, message.waiting = load.in_flight, load.waiting
                if load.waiting:
                    message.oldest_wait.CopyFrom(duration(load.oldest_wait))
            yield message
