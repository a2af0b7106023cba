"""The execution RPCs of a worker: the exchange, and its unary and streaming relatives.

The RPC that streams an artifact to the session whose call returned it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from operator import itemgetter
from typing import Any, Final

import grpc

from leaseway.data_plane.artifacts.store import ArtifactStore
from leaseway.data_plane.calls.call import ActiveCall
from leaseway.data_plane.calls.executor import Executor
from leaseway.data_plane.core.leases.table import WorkerLease
from leaseway.data_plane.core.tools.toolset import tool_not_found
from leaseway.data_plane.instances.pool import Pool
from leaseway.data_plane.instances.stderr_history import KeptLog
from leaseway.data_plane.services.continuations import Continuations
from leaseway.data_plane.services.exchange import Exchanges
from leaseway.data_plane.services.unary import UnarySink, arguments_of, typed_response
from leaseway.v1 import execution_pb2, execution_pb2_grpc, leases_pb2
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.admin import ADMIN_TOOLSET, TOOL_DEFINITIONS
from leaseway.wire.messages.pages import one_page, page_start
from leaseway.wire.names import DEFAULT_TENANT, check_caller_names
from leaseway.wire.status import abort
from leaseway.wire.version import check_client_version

Response = execution_pb2.ReadArtifactResponse

_PATIENCE: Final = 60.0
"""Seconds that a caller may take to read a part; it can read on later from where it was."""


async def send_artifact(
    store: ArtifactStore,
    request: execution_pb2.ReadArtifactRequest,
    write: Callable[[Response], Awaitable[None]],
    patience: float = _PATIENCE,
) -> None:
    """Write what an artifact is, then its bytes.

    Args:
        store: Has it.
        request: What is asked for, and by whom.
        write: Sends a message once there is room for it.
        patience: Seconds that this may take.

    Raises:
        Fault: ARTIFACT_LOST; OVERLOADED: too many are being read, or the caller does not read;
            INVALID_REQUEST: the offset lies behind its end.
    """
    async with aclosing(_responses(store, request)) as responses:
        async for response in responses:
            try:
                async with asyncio.timeout(patience):
                    await write(response)
            except TimeoutError:
                raise Fault(
                    Reason.OVERLOADED,
                    f"The caller has read nothing of the artifact for {patience:g} s; read on from "
                    "the offset that it has come to.",
                ) from None


async def _responses(
    store: ArtifactStore, request: execution_pb2.ReadArtifactRequest
) -> AsyncGenerator[Response]:
    artifact = store.find(request.ref, request.tenant, request.session)
    if request.offset > artifact.byte_length:
        raise Fault(
            Reason.INVALID_REQUEST,
            f"The offset {request.offset} lies behind the end of the artifact, which has "
            f"{artifact.byte_length} bytes.",
        )
    yield Response(mime_type=artifact.mime_type, byte_length=artifact.byte_length)
    parts = store.parts(artifact, request.offset, artifact.byte_length)
    async with aclosing(parts):
        async for part in parts:
            yield Response(data=part)


_SERVICE: Final = execution_pb2.DESCRIPTOR.services_by_name["ExecutionService"].full_name
_LONGEST_UNARY: Final = bounds.MAX_GRPC_MESSAGE - 64 * bounds.KIB
_LONGEST_NUMBER: Final = 20
Context = grpc.aio.ServicerContext[Any, Any]


class ExecutionService(execution_pb2_grpc.ExecutionServiceServicer):
    """Executes tool calls.

    Args:
        exchanges: Serves exchange streams.
        executor: Runs the calls of the others.
        pool: What is served.
        artifacts: Images and sounds of results.
        parking: Where calls wait for their callers' answers.
        lease_message: Describes a lease.

    Attributes:
        parking: The same.
    """

    def __init__(
        self,
        exchanges: Exchanges,
        executor: Executor,
        pool: Pool,
        artifacts: ArtifactStore,
        parking: Continuations,
        lease_message: Callable[[WorkerLease], leases_pb2.Lease],
    ) -> None:
        self._exchanges = exchanges
        self._executor = executor
        self._pool = pool
        self._artifacts = artifacts
        self.parking = parking
        self._lease_message = lease_message

    async def Exchange(  # type: ignore[override]  # noqa: N802 - writes to the context
        self, request_iterator: Any, context: Context
    ) -> None:
        """Carry calls and results until both sides are done."""
        await self._exchanges.serve(context)

    async def CallTool(  # noqa: N802 - gRPC's name
        self, request: execution_pb2.CallToolRequest, context: Context
    ) -> execution_pb2.CallToolResponse:
        try:
            with self._exchanges.counting(context):
                sink = await self._open(request, context, UnarySink(False, str(context.peer())))
                try:
                    await sink.turn()
                    return await self._reply(sink)
                finally:
                    sink.leave("the caller does not wait any more")
        except Fault as fault:
            await abort(context, fault)

    async def CallToolStreaming(  # noqa: N802 - gRPC's name
        self, request: execution_pb2.CallToolStreamingRequest, context: Context
    ) -> AsyncIterator[execution_pb2.CallToolStreamingResponse]:
        """Execute one call with progress and log messages before its result."""
        try:
            with self._exchanges.counting(context):
                sink = UnarySink(True, str(context.peer()))
                sink = await self._open(request.call, context, sink, log_level=request.log_level)
                try:
                    async for event in sink.events():
                        yield event
                    response = await self._reply(sink)
                finally:
                    sink.leave("the caller's stream has ended")
            yield execution_pb2.CallToolStreamingResponse(result=response)
        except Fault as fault:
            await abort(context, fault)

    async def _open(
        self,
        request: execution_pb2.CallToolRequest,
        context: Context,
        sink: UnarySink,
        log_level: str = "",
    ) -> UnarySink:
        """Begin a call, or go on with one that waits for these answers; return its sink."""
        if request.request_state:
            tenant = request.tenant or DEFAULT_TENANT
            return self.parking.resume(request.request_state, tenant, request.input_responses)
        check_client_version(request.client, "this worker")
        agent = request.client.agent
        check_caller_names(session=request.session, tenant=request.tenant, agent=agent)
        call = self._call(request, context)
        call.wants_progress = sink.keeps_events
        call.log_level = log_level
        sink.active = self._executor.begin(call, await arguments_of(request), sink)
        return sink

    async def _reply(self, sink: UnarySink) -> execution_pb2.CallToolResponse:
        """Return how a call ended, or what its server asks; then it waits for the next request."""
        questions = sink.questions
        if not questions:
            return await self._response(sink.active, sink.result.result())
        response = self._bounded(
            execution_pb2.CallToolResponse(input_required=questions), sink.active, "What is asked"
        )
        try:
            response.request_state = self.parking.park(sink)
        except Fault as fault:
            self._exchanges.note_limit(fault)
            raise
        return response

    async def _response(
        self, active: ActiveCall | None, outcome: tuple[bytes, bool]
    ) -> execution_pb2.CallToolResponse:
        payload, is_error = outcome
        return self._bounded(await typed_response(payload, is_error), active, "The result")

    def _bounded(
        self, response: execution_pb2.CallToolResponse, active: ActiveCall | None, what: str
    ) -> execution_pb2.CallToolResponse:
        """Return a response with the lease that it made, if one message can carry it."""
        if active is not None and active.is_new_lease and active.lease is not None:
            response.new_lease.CopyFrom(self._lease_message(active.lease))
        if response.ByteSize() > _LONGEST_UNARY:
            raise Fault(
                Reason.RESULT_TOO_LARGE,
                f"{what} exceeds the {_LONGEST_UNARY} bytes that one message carries; call "
                "the tool over an exchange, or ask it for less.",
                "yes",
            )
        return response

    def _call(self, request: execution_pb2.CallToolRequest, context: Context) -> execution_pb2.Call:
        remaining = context.time_remaining()
        call = execution_pb2.Call(
            id=1,
            server_id=request.server_id,
            tool=request.tool,
            registry_version=request.registry_version,
            tenant=request.tenant,
            agent=request.client.agent,
            session=request.session,
            lease_id=request.lease_id,
            timeout_ms=max(1, int(remaining * 1000)) if remaining is not None else 0,
            traceparent=request.traceparent,
            tracestate=request.tracestate,
            answers=request.answers,
            inline_media=request.inline_media,
        )
        if not call.server_id:
            call.server_id, call.tool = self._by_exposed_name(request)
        return call

    def _by_exposed_name(self, request: execution_pb2.CallToolRequest) -> tuple[str, str]:
        if request.tool in TOOL_DEFINITIONS:
            return ADMIN_TOOLSET, request.tool
        known: list[str] = []
        tenant, agent = request.tenant or DEFAULT_TENANT, request.client.agent
        for variant in self._pool.desired_state.visible_to(tenant, agent):
            exists = partial(variant.judge.exists, tenant, agent)
            plan = variant.toolset.by_exposed_name.get(request.tool)
            if plan is not None and exists(plan.original_name):
                return variant.key.server_id, plan.original_name
            plans = variant.toolset.by_exposed_name.items()
            known.extend(name for name, each in plans if exists(each.original_name))
        raise tool_not_found(request.tool, f"Worker {self._pool.context.worker_id}", known)

    async def ReadArtifact(  # type: ignore[override]  # noqa: N802 - writes to the context
        self, request: execution_pb2.ReadArtifactRequest, context: Context
    ) -> None:
        """Stream the bytes of an artifact."""
        try:
            await send_artifact(self._artifacts, request, context.write)
        except Fault as fault:
            await abort(context, fault)

    async def ReadLogs(  # noqa: N802 - gRPC's name
        self, request: execution_pb2.ReadLogsRequest, context: Context
    ) -> execution_pb2.ReadLogsResponse:
        """Read one page of the last stderr lines of a server's instances."""
        limit = min(request.lines or bounds.STDERR_LINES, bounds.STDERR_LINES)

        def message(log: KeptLog) -> execution_pb2.InstanceLog:
            lines = log.lines[-limit:]
            return execution_pb2.InstanceLog(
                instance_id=log.instance_id, lines=lines, state=log.state, pid=log.pid
            )

        try:
            start = page_start("ReadLogs", request)
            logs = self._pool.logs(request.server_id, request.tenant or DEFAULT_TENANT)
        except Fault as fault:
            await abort(context, fault)
        by_age = sorted(((_age(log), log) for log in logs), key=itemgetter(0))
        page, token = one_page(start, by_age, message)
        return execution_pb2.ReadLogsResponse(instances=page, next_page_token=token)


def _age(log: KeptLog) -> tuple[str, str]:
    """Return what instances are ordered by as they were made, whether they run or have ended."""
    return log.instance_id.rpartition("-")[2].zfill(_LONGEST_NUMBER), log.instance_id


def add_execution_service(service: ExecutionService, server: grpc.aio.Server) -> None:
    """Have a server serve calls.

    The responses of an exchange are written as bytes, which the generated handler would not take.
    """
    execution_pb2_grpc.add_ExecutionServiceServicer_to_server(service, server)
    exchange: Any = grpc.stream_stream_rpc_method_handler(
        service.Exchange, request_deserializer=execution_pb2.ExchangeRequest.FromString
    )
    # Of the handlers registered for a method, the last one counts.
    server.add_registered_method_handlers(_SERVICE, {"Exchange": exchange})
