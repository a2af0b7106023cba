"""What operators watch: events, calls that workers remember, traffic."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal, Protocol, TypeVar

import grpc

from leaseway.sdk.errors import error_from_fault
from leaseway.sdk.runtime import Runtime
from leaseway.sdk.transport.grpc_errors import fault_of_control_plane
from leaseway.v1 import admin_pb2

AnswerT = TypeVar("AnswerT")

Selection = Literal["recent", "slow", "failed"]

_SELECTIONS: Final = {
    "recent": admin_pb2.CALL_SELECTION_RECENT,
    "slow": admin_pb2.CALL_SELECTION_SLOW,
    "failed": admin_pb2.CALL_SELECTION_FAILED,
}
_HISTORY_WITHIN: Final = 30.0
_AGAIN_AFTER: Final = 1.0


class Asker(Protocol):
    """What a client does for an operation: an `AsyncClient`."""

    async def _ask(
        self, operation: Callable[[Runtime, float], Awaitable[AnswerT]], timeout: float | None
    ) -> AnswerT: ...


@dataclass(frozen=True, slots=True)
class EventInfo:
    """Something that has happened; the fields are those of the message `Event`."""

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
    """A part of a call, in seconds from its start."""

    name: str
    offset: float
    duration: float


@dataclass(frozen=True, slots=True)
class CallInfo:
    """A call that a worker remembers; the fields are those of the message `CallRecord`."""

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
    """What a server of one worker had to do since that worker started."""

    worker: str
    incarnation: str
    server_id: str
    calls: int
    failed: int
    seconds: float
    buckets: tuple[int, ...]
    in_flight: int


@dataclass(frozen=True, slots=True)
class TrafficReport:
    """The traffic at one moment, and the workers that did not say theirs."""

    time: float
    traffic: tuple[TrafficInfo, ...]
    silent_workers: tuple[str, ...]


async def fetch_events(
    client: Asker, *, server_id: str = "", kinds: Sequence[str] = (), last: int = 0
) -> list[EventInfo]:
    """Return what has happened, the oldest first.

    Raises:
        LeasewayError: The control plane could not be reached, or refused.
    """

    async def operation(runtime: Runtime, _deadline: float) -> list[EventInfo]:
        request = admin_pb2.WatchEventsRequest(
            client=runtime.identity.client_info, server_id=server_id, kinds=kinds, last=last
        )
        return [event async for event in _stream(runtime, request, _HISTORY_WITHIN)]

    await client._ask(_status, None)  # it waits for a control plane that is just starting
    return await client._ask(operation, None)


async def follow_events(
    client: Asker,
    *,
    server_id: str = "",
    kinds: Sequence[str] = (),
    last: int = 0,
    on_lost: Callable[[], None],
) -> AsyncIterator[EventInfo]:
    """Yield what has happened, then what happens, until closed.

    A control plane that goes away after its first answer is waited for, and followed from where the
    stream ended.

    Raises:
        LeasewayError: It could not be reached at first, or refused.
    """
    runtime = await client._ask(_status, None)
    seen = 0
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
                yield event
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                fault = fault_of_control_plane(error, runtime.identity.address)
                raise error_from_fault(fault) from None
        on_lost()
        await asyncio.sleep(_AGAIN_AFTER)


async def fetch_calls(
    client: Asker,
    selection: Selection,
    *,
    name: str = "",
    server_id: str = "",
    limit: int = 0,
) -> tuple[list[CallInfo], tuple[str, ...]]:
    """Return calls that workers remember, and the workers that did not answer.

    Raises:
        LeasewayError: The control plane could not be reached, or refused.
    """

    async def operation(runtime: Runtime, deadline: float) -> admin_pb2.ListCallsResponse:
        request = admin_pb2.ListCallsRequest(
            client=runtime.identity.client_info,
            selection=_SELECTIONS[selection],
            id=name,
            server_id=server_id,
            limit=limit,
        )
        return await runtime.control.ask(runtime.control.admin.ListCalls, request, deadline)

    answer = await client._ask(operation, None)
    return [_call(call) for call in answer.calls], tuple(answer.silent_workers)


async def fetch_traffic(client: Asker) -> TrafficReport:
    """Return how many calls there were since the workers started.

    Raises:
        LeasewayError: The control plane could not be reached, or refused.
    """

    async def operation(runtime: Runtime, deadline: float) -> admin_pb2.GetTrafficResponse:
        request = admin_pb2.GetTrafficRequest(client=runtime.identity.client_info)
        return await runtime.control.ask(runtime.control.admin.GetTraffic, request, deadline)

    answer = await client._ask(operation, None)
    return TrafficReport(
        answer.time.ToNanoseconds() / 1e9,
        tuple(_traffic(one) for one in answer.traffic),
        tuple(answer.silent_workers),
    )


async def _status(runtime: Runtime, deadline: float) -> Runtime:
    request = admin_pb2.GetStatusRequest(client=runtime.identity.client_info)
    await runtime.control.ask(runtime.control.admin.GetStatus, request, deadline)
    return runtime


async def _stream(
    runtime: Runtime, request: admin_pb2.WatchEventsRequest, timeout: float | None
) -> AsyncIterator[EventInfo]:
    stream = runtime.control.admin.WatchEvents(
        request, metadata=runtime.identity.metadata, timeout=timeout
    )
    try:
        async for message in stream:
            for event in message.events:
                yield _event(event)
    finally:
        stream.cancel()


def _event(event: admin_pb2.Event) -> EventInfo:
    return EventInfo(
        event.number,
        event.time.ToDatetime(UTC),
        event.kind,
        event.action,
        event.severity,
        event.message,
        event.reason,
        event.server_id,
        event.tenant,
        event.worker_id,
        event.lease_id,
        event.session,
        event.instance_id,
        tuple(event.details),
    )


def _call(call: admin_pb2.CallRecord) -> CallInfo:
    phases = (
        PhaseInfo(p.name, p.offset.ToNanoseconds() / 1e9, p.duration.ToNanoseconds() / 1e9)
        for p in call.phases
    )
    return CallInfo(
        call.id,
        call.trace_id,
        call.worker_id,
        call.server_id,
        call.tool,
        call.method,
        call.tenant,
        call.agent,
        call.session,
        call.lease_id,
        call.instance_id,
        call.started_at.ToDatetime(UTC),
        call.duration.ToNanoseconds() / 1e9,
        call.outcome,
        call.message,
        tuple(phases),
    )


def _traffic(one: admin_pb2.Traffic) -> TrafficInfo:
    return TrafficInfo(
        one.worker_id,
        one.incarnation,
        one.server_id,
        one.calls,
        one.failed,
        one.seconds,
        tuple(one.buckets),
        one.in_flight,
    )
