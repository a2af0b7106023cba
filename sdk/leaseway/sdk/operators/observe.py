"""The live state that operators watch: events, recent calls, traffic."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, Protocol, TypeVar

import grpc

from leaseway.sdk.errors import error_from_fault
from leaseway.sdk.operators.operations import list_pages
from leaseway.sdk.operators.views import from_proto
from leaseway.sdk.runtime import Runtime
from leaseway.sdk.transport.faults import fault_of_control_plane
from leaseway.v1 import admin_pb2
from leaseway.wire.audit_heads import AuditAnchor
from leaseway.wire.channels.replaceable_channel import RpcCutOff
from leaseway.wire.messages.audit_heads import anchor_from_proto
from leaseway.wire.messages.enums import SELECTIONS
from leaseway.wire.messages.states import CallSelection
from leaseway.wire.timing.durations import seconds

ResultT = TypeVar("ResultT")

_HISTORY_TIMEOUT: Final = 30.0
_RECONNECT_DELAY: Final = 1.0
_REMEMBERED: Final = 4096
"""Events by which those are known that another control plane tells again."""


class OperatorClient(Protocol):
    """An `AsyncClient`, as far as these functions use it."""

    async def _ask(
        self, operation: Callable[[Runtime, float], Awaitable[ResultT]], timeout: float | None
    ) -> ResultT: ...


@dataclass(frozen=True, slots=True)
class EventInfo:
    """An event of the system; the fields are those of the message `Event`."""

    number: int
    time: datetime
    kind: str
    action: str
    severity: str
    message: str
    reason: str
    server_id: str
    tenant: str
    worker: str
    lease_id: str
    session: str
    instance_id: str
    details: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PhaseInfo:
    """A phase of a call; `offset` and `duration` are seconds, from the start of the call."""

    name: str
    offset: float
    duration: float


@dataclass(frozen=True, slots=True)
class CallInfo:
    """A recent call of a worker; the fields are those of the message `CallRecord`."""

    id: str
    trace_id: str
    worker: str
    server_id: str
    tool: str
    method: str
    tenant: str
    agent: str
    session: str
    lease_id: str
    instance_id: str
    started_at: datetime
    duration: float
    outcome: str
    message: str
    phases: tuple[PhaseInfo, ...]


@dataclass(frozen=True, slots=True)
class TrafficInfo:
    """The calls of a server on one worker since that worker started.

    `in_flight` have no result yet, `waiting` of them were not sent to the server, and the oldest of
    these has waited for `oldest_wait` seconds; None if none waits.
    """

    worker: str
    incarnation: str
    server_id: str
    calls: int
    failed: int
    seconds: float
    buckets: tuple[int, ...]
    in_flight: int
    waiting: int = 0
    oldest_wait: float | None = None


@dataclass(frozen=True, slots=True)
class TrafficReport:
    """The traffic at one moment, and the workers that did not report theirs."""

    time: float
    traffic: tuple[TrafficInfo, ...]
    silent_workers: tuple[str, ...]


async def fetch_events(
    client: OperatorClient, *, server_id: str = "", kinds: Sequence[str] = (), last: int = 0
) -> list[EventInfo]:
    """Return the recorded events, the oldest first; the newest `last` of them, or all if it is 0.

    Raises:
        LeasewayError: The request failed.
    """

    async def operation(runtime: Runtime, _deadline: float) -> list[EventInfo]:
        request = admin_pb2.WatchEventsRequest(
            client=runtime.identity.client_info, server_id=server_id, kinds=kinds, last=last
        )
        try:
            return [event async for event in _stream(runtime, request, _HISTORY_TIMEOUT)]
        except grpc.aio.AioRpcError as error:
            raise fault_of_control_plane(error, runtime.identity.address) from None

    await client._ask(_reach, None)  # this waits for a control plane that is starting
    return await client._ask(operation, None)


async def follow_events(
    client: OperatorClient,
    *,
    server_id: str = "",
    kinds: Sequence[str] = (),
    last: int = 0,
    on_lost: Callable[[], None],
) -> AsyncGenerator[EventInfo]:
    """Yield the recorded events, then new events, until closed.

    After the first answer, it waits for a lost control plane, or for another one that leads, then
    continues after the last event; `on_lost` is called each time. A control plane that has started
    learns the earlier events of workers anew, and gives them other numbers.

    Raises:
        LeasewayError: The control plane could not be reached at first, or rejected the request.
    """
    runtime = await client._ask(_reach, None)
    seen = 0
    told: deque[EventInfo] = deque(maxlen=_REMEMBERED)
    earlier: frozenset[EventInfo] = frozenset()
    while True:
        request = admin_pb2.WatchEventsRequest(
            client=runtime.identity.client_info,
            server_id=server_id,
            kinds=kinds,
            last=last if seen == 0 else 0,
            after=seen,
            follow=True,
        )
        try:
            async for event in _stream(runtime, request, None):
                seen = max(seen, event.number)
                unnumbered = replace(event, number=0)
                if unnumbered not in earlier:
                    told.append(unnumbered)
                    yield event
        except grpc.aio.AioRpcError as error:
            fault = fault_of_control_plane(error, runtime.identity.address)
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise error_from_fault(fault) from None
            if not isinstance(error, RpcCutOff):  # else the channel has switched before
                runtime.control.switch_leader(fault)
        on_lost()
        earlier = frozenset(told)
        await asyncio.sleep(_RECONNECT_DELAY)


async def fetch_calls(
    client: OperatorClient,
    selection: CallSelection,
    *,
    name: str = "",
    server_id: str = "",
    limit: int = 0,
) -> tuple[list[CallInfo], tuple[str, ...]]:
    """Return recent calls of all workers, and the ids of workers that did not answer.

    Raises:
        LeasewayError: The request failed.
    """

    async def operation(runtime: Runtime, deadline: float) -> admin_pb2.ListCallsResponse:
        request = admin_pb2.ListCallsRequest(
            client=runtime.identity.client_info,
            selection=SELECTIONS[selection],
            id=name,
            server_id=server_id,
            limit=limit,
        )
        return await runtime.control.request(runtime.control.admin.ListCalls, request, deadline)

    answer = await client._ask(operation, None)
    return [_call(call) for call in answer.calls], tuple(answer.silent_workers)


async def fetch_traffic(client: OperatorClient) -> TrafficReport:
    """Return the number of calls since the workers started.

    Raises:
        LeasewayError: The request failed.
    """

    async def operation(runtime: Runtime, deadline: float) -> admin_pb2.GetTrafficResponse:
        request = admin_pb2.GetTrafficRequest(client=runtime.identity.client_info)
        return await runtime.control.request(runtime.control.admin.GetTraffic, request, deadline)

    answer = await client._ask(operation, None)
    return TrafficReport(
        seconds(answer.time),
        tuple(
            from_proto(
                TrafficInfo,
                traffic,
                worker=traffic.worker_id,
                buckets=tuple(traffic.buckets),
                oldest_wait=seconds(traffic.oldest_wait) if traffic.waiting else None,
            )
            for traffic in answer.traffic
        ),
        tuple(answer.silent_workers),
    )


@dataclass(frozen=True, slots=True)
class AnchorReport:
    """How far the audits of workers are, as the control plane knows.

    Attributes:
        time: The time of the control plane's clock, in Unix seconds, before the first anchor was
            read.
        anchors: The anchors, ordered by run.
        silent_workers: The ids of workers that have told nothing: without an audit, or older ones.
        forgotten: How many anchors the control plane has forgotten, because there were too many.
        unreadable_runs: Runs whose anchors in the store it does not understand, at most 100.
    """

    time: float
    anchors: tuple[AuditAnchor, ...]
    silent_workers: tuple[str, ...]
    forgotten: int
    unreadable_runs: tuple[str, ...] = ()


async def fetch_audit_anchors(client: OperatorClient) -> AnchorReport:
    """Return how far the audits of workers are.

    Raises:
        LeasewayError: The request failed.
    """

    async def operation(runtime: Runtime, deadline: float) -> AnchorReport:
        request = admin_pb2.ListAuditAnchorsRequest()
        rpc = runtime.control.admin.ListAuditAnchors
        pages = [page async for page in list_pages(runtime, rpc, request, deadline)]
        found = (anchor_from_proto(anchor) for page in pages for anchor in page.anchors)
        return AnchorReport(
            time=seconds(pages[0].time),
            anchors=tuple(anchor for anchor in found if anchor is not None),
            silent_workers=tuple(pages[0].silent_workers),
            forgotten=pages[0].forgotten,
            unreadable_runs=tuple(pages[0].unreadable_runs),
        )

    return await client._ask(operation, None)


async def _reach(runtime: Runtime, deadline: float) -> Runtime:
    request = admin_pb2.GetStatusRequest(client=runtime.identity.client_info)
    await runtime.control.request(runtime.control.admin.GetStatus, request, deadline)
    return runtime


async def _stream(
    runtime: Runtime, request: admin_pb2.WatchEventsRequest, timeout: float | None
) -> AsyncIterator[EventInfo]:
    stream = runtime.control.admin.WatchEvents(
        request, metadata=runtime.identity.metadata, timeout=timeout
    )
    try:
        with runtime.control.in_flight():
            async for message in stream:
                for event in message.events:
                    yield from_proto(
                        EventInfo,
                        event,
                        time=event.time.ToDatetime(UTC),
                        worker=event.worker_id,
                        details=tuple(event.details),
                    )
    finally:
        stream.cancel()


def _call(call: admin_pb2.CallRecord) -> CallInfo:
    return from_proto(
        CallInfo,
        call,
        worker=call.worker_id,
        started_at=call.started_at.ToDatetime(UTC),
        duration=seconds(call.duration),
        phases=tuple(
            PhaseInfo(phase.name, seconds(phase.offset), seconds(phase.duration))
            for phase in call.phases
        ),
    )
