"""The execution RPCs of a worker: exchange, unary and streaming calls, artifacts, logs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from operator import itemgetter
from typing import Any, Final

import grpc

from leaseway.data_plane.artifacts.store import ArtifactStore
from leaseway.data_plane.background import FairThreads
from leaseway.data_plane.calls.executor import Executor
from leaseway.data_plane.core.artifacts.index import ArtifactReader
from leaseway.data_plane.core.calls.incoming import IncomingCall
from leaseway.data_plane.core.leases.table import WorkerLease
from leaseway.data_plane.core.tools.toolset import tool_not_found
from leaseway.data_plane.instances.context import StderrLog
from leaseway.data_plane.instances.pool import Pool
from leaseway.data_plane.services.continuations import Continuations
from leaseway.data_plane.services.exchange import Exchanges
from leaseway.data_plane.services.unary import UnarySink, encode_arguments, typed_response
from leaseway.identity.interceptor import caller
from leaseway.v1 import execution_pb2, execution_pb2_grpc, leases_pb2
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.listing.pages import one_page, page_start
from leaseway.wire.messages.admin import ADMIN_TOOLSET, TOOL_DEFINITIONS
from leaseway.wire.names import DEFAULT_TENANT, check_caller_names
from leaseway.wire.status import abort
from leaseway.wire.version import check_client_version

Context = grpc.aio.ServicerContext[Any, Any]
Response = execution_pb2.ReadArtifactResponse

_CONVERSION_THREADS: Final = 2
_READ_TIMEOUT: Final = 60.0
"""Seconds that a caller may take to read one part of an artifact."""
_SERVICE: Final = execution_pb2.DESCRIPTOR.services_by_name["ExecutionService"].full_name
_MAX_UNARY: Final = bounds.MAX_GRPC_MESSAGE - 64 * bounds.KIB
_NUMBER_WIDTH: Final = 20


async def send_artifact(
    store: ArtifactStore,
    request: execution_pb2.ReadArtifactRequest,
    write: Callable[[Response], Awaitable[None]],
    timeout: float = _READ_TIMEOUT,
) -> None:
    """Write an artifact's type and size, then its bytes.

    Args:
        store: The artifacts of the worker.
        request: Names the artifact, its owner and an offset.
        write: Sends a message.
        timeout: Maximum seconds for one message.

    Raises:
        Fault: ARTIFACT_LOST; OVERLOADED: too many artifacts are being read, or the caller does not
            read; INVALID_REQUEST: the offset is behind the end.
    """
    async with aclosing(_responses(store, request)) as responses:
        async for response in responses:
            try:
                async with asyncio.timeout(timeout):
                    await write(response)
            except TimeoutError:
                raise Fault(
                    Reason.OVERLOADED,
                    f"The caller has read nothing of the artifact for {timeout:g} s; continue "
                    "later with the offset that it has reached.",
                ) from None


async def _responses(
    store: ArtifactStore, request: execution_pb2.ReadArtifactRequest
) -> AsyncGenerator[Response]:
    user = request.client.user
    token = caller().subject_token_for(user, request.subject_token)
    artifact = store.find(
        request.ref, ArtifactReader.of(request.tenant, request.session, user, token)
    )
    if request.offset > artifact.byte_length:
        raise Fault(
            Reason.INVALID_REQUEST,
            f"The offset {request.offset} is behind the end of the artifact, which has "
            f"{artifact.byte_length} bytes.",
        )
    yield Response(mime_type=artifact.mime_type, byte_length=artifact.byte_length)
    async with aclosing(store.read_parts(artifact, request.offset, artifact.byte_length)) as parts:
        async for part in parts:
            yield Response(data=part)


class ExecutionService(execution_pb2_grpc.ExecutionServiceServicer):
    """Serves calls, artifacts and logs.

    Args:
        exchanges: Serves exchange streams.
        executor: Runs unary and streaming calls.
        pool: The servers of the worker.
        artifacts: Images and sounds of results.
        continuations: The suspended unary calls.
        lease_message: Converts a lease to protobuf.
    """

    def __init__(
        self,
        exchanges: Exchanges,
        executor: Executor,
        pool: Pool,
        artifacts: ArtifactStore,
        continuations: Continuations,
        lease_message: Callable[[WorkerLease], leases_pb2.Lease],
    ) -> None:
        self._exchanges = exchanges
        self._executor = executor
        self._pool = pool
        self._artifacts = artifacts
        self.continuations = continuations
        self._lease_message = lease_message
        self._conversions = FairThreads(_CONVERSION_THREADS)

    @property
    def Exchange(  # type: ignore[override]  # noqa: N802 - writes to the context
        self,
    ) -> Callable[[Any, Context], Awaitable[None]]:
        """The handler that carries calls and results until both sides are done."""
        return self._exchanges.serve

    async def CallTool(  # noqa: N802 - gRPC's name
        self, request: execution_pb2.CallToolRequest, context: Context
    ) -> execution_pb2.CallToolResponse:
        try:
            with self._exchanges.count_unary(context):
                sink = await self._open(request, context, UnarySink(False, str(context.peer())))
                try:
                    await sink.wait()
                    return await self._response(sink)
                finally:
                    sink.cancel("the caller does not wait any more")
        except Fault as fault:
            await abort(context, fault)

    async def CallToolStreaming(  # noqa: N802 - gRPC's name
        self, request: execution_pb2.CallToolStreamingRequest, context: Context
    ) -> AsyncIterator[execution_pb2.CallToolStreamingResponse]:
        """Execute one call with progress and log messages before its result."""
        try:
            with self._exchanges.count_unary(context):
                sink = UnarySink(True, str(context.peer()))
                sink = await self._open(request.call, context, sink, log_level=request.log_level)
                try:
                    async for event in sink.events():
                        yield event
                    response = await self._response(sink)
                finally:
                    sink.cancel("the caller's stream has ended")
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
        """Start a call, or resume a suspended one; return its sink."""
        if request.request_state:
            tenant = request.tenant or DEFAULT_TENANT
            return self.continuations.resume(
                request.request_state, tenant, request.input_responses, caller()
            )
        check_client_version(request.client, "this worker")
        agent = request.client.agent
        user = request.client.user
        check_caller_names(session=request.session, tenant=request.tenant, agent=agent, user=user)
        call = self._call(request, context, wants_progress=sink.keeps_events, log_level=log_level)
        sink.active = self._executor.start_call(
            call, await encode_arguments(request, self._conversions), sink, caller()
        )
        return sink

    async def _response(self, sink: UnarySink) -> execution_pb2.CallToolResponse:
        """Return a call's result, or suspend the call and return its questions."""
        questions, active = sink.questions, sink.active
        if questions:
            response = execution_pb2.CallToolResponse(input_required=questions)
        else:
            payload, is_error = sink.result.result()
            response = await typed_response(payload, is_error, sink.tenant, self._conversions)
        if active is not None and active.is_new_lease and active.lease is not None:
            response.new_lease.CopyFrom(self._lease_message(active.lease))
        if response.ByteSize() > _MAX_UNARY:
            raise Fault(
                Reason.RESULT_TOO_LARGE,
                f"{'The question' if questions else 'The result'} exceeds the {_MAX_UNARY} bytes "
                "of one message; call the tool over an exchange, or ask it for less.",
                "yes",
            )
        if questions:
            try:
                response.request_state = self.continuations.suspend(sink)
            except Fault as fault:
                self._exchanges.record_limit(fault)
                raise
        return response

    def _call(
        self,
        request: execution_pb2.CallToolRequest,
        context: Context,
        *,
        wants_progress: bool,
        log_level: str,
    ) -> IncomingCall:
        remaining = context.time_remaining()
        server_id, tool = request.server_id, request.tool
        if not server_id:
            server_id, tool = self._by_exposed_name(request)
        return IncomingCall(
            server_id=server_id,
            tool=tool,
            registry_version=request.registry_version,
            tenant=request.tenant or DEFAULT_TENANT,
            agent=request.client.agent,
            user=request.client.user,
            session=request.session,
            lease_id=request.lease_id,
            timeout_ms=max(1, int(remaining * 1000)) if remaining is not None else 0,
            traceparent=request.traceparent,
            tracestate=request.tracestate,
            wants_progress=wants_progress,
            log_level=log_level,
            answers=tuple(request.answers),
            inline_media=request.inline_media,
            subject_token=caller().subject_token_for(request.client.user, request.subject_token),
        )

    def _by_exposed_name(self, request: execution_pb2.CallToolRequest) -> tuple[str, str]:
        if request.tool in TOOL_DEFINITIONS:
            return ADMIN_TOOLSET, request.tool
        names: list[str] = []
        tenant, agent = request.tenant or DEFAULT_TENANT, request.client.agent
        for common in self._pool.desired_state.visible_to(tenant, agent):
            variant = self._pool.variant_for(common, tenant, request.client.user)
            exists = partial(variant.policies.is_visible, tenant, agent)
            plan = variant.toolset.by_exposed_name.get(request.tool)
            if plan is not None and exists(plan.original_name):
                return variant.key.server_id, plan.original_name
            if variant is common and common.spec.part.auth.logs_in:
                continue  # it lists what somebody else sees
            plans = variant.toolset.by_exposed_name.items()
            names.extend(name for name, plan in plans if exists(plan.original_name))
        raise tool_not_found(request.tool, f"Worker {self._pool.context.worker_id}", names)

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

        def message(log: StderrLog) -> execution_pb2.InstanceLog:
            lines = log.lines[-limit:]
            return execution_pb2.InstanceLog(
                instance_id=log.instance_id, lines=lines, state=log.state, pid=log.pid
            )

        try:
            start = page_start("ReadLogs", request)
            logs = self._pool.logs(request.server_id, request.tenant or DEFAULT_TENANT)
        except Fault as fault:
            await abort(context, fault)
        ordered = sorted(((_creation_order(log), log) for log in logs), key=itemgetter(0))
        page, token = one_page(start, ordered, message)
        return execution_pb2.ReadLogsResponse(instances=page, next_page_token=token)


def _creation_order(log: StderrLog) -> tuple[str, str]:
    """Return a key that orders running and ended instances by their creation."""
    return log.instance_id.rpartition("-")[2].zfill(_NUMBER_WIDTH), log.instance_id


def add_execution_service(service: ExecutionService, server: grpc.aio.Server) -> None:
    """Register the service with a server.

    An exchange writes serialized responses, so its handler replaces the generated one.
    """
    exchange: Any = grpc.stream_stream_rpc_method_handler(
        service.Exchange, request_deserializer=execution_pb2.ExchangeRequest.FromString
    )
    handlers = {"Exchange": exchange}
    # Of generic handlers the first one of a method is used, of registered ones the last one. Older
    # versions of grpcio ignore registered handlers; newer ones look for them first.
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
    execution_pb2_grpc.add_ExecutionServiceServicer_to_server(service, server)
    server.add_registered_method_handlers(_SERVICE, handlers)
