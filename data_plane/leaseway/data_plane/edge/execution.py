"""The execution RPCs of a worker: the exchange, and its unary and streaming relatives."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, Final

import grpc

from leaseway.data_plane.core.lease_table import Lease
from leaseway.data_plane.core.toolset import tool_not_found
from leaseway.data_plane.edge.artifact_reads import read_artifact
from leaseway.data_plane.edge.artifacts import ArtifactStore
from leaseway.data_plane.edge.content import arguments_from_struct, typed_result
from leaseway.data_plane.edge.exchange import Exchanges
from leaseway.data_plane.edge.executor import Executor
from leaseway.data_plane.edge.pool import Pool
from leaseway.data_plane.edge.refusal import refuse
from leaseway.data_plane.edge.run import Run
from leaseway.v1 import execution_pb2, execution_pb2_grpc, leases_pb2
from leaseway.wire import bounds
from leaseway.wire.admin import ADMIN_TOOLSET, TOOL_DEFINITIONS
from leaseway.wire.fault import Fault, Reason
from leaseway.wire.names import DEFAULT_TENANT

__all__ = ["ExecutionService", "add_execution_service"]

_SERVICE: Final = execution_pb2.DESCRIPTOR.services_by_name["ExecutionService"].full_name
_MOST_EVENTS: Final = 1024
_MOST_EVENT_BYTES: Final = 4 * bounds.MIB
_LONGEST_UNARY: Final = bounds.MAX_GRPC_MESSAGE - 64 * bounds.KIB
Context = grpc.aio.ServicerContext[Any, Any]


class ExecutionService(execution_pb2_grpc.ExecutionServiceServicer):
    """Executes tool calls.

    Args:
        exchanges: Serves exchange streams.
        executor: Runs the calls of the others.
        pool: What is served.
        artifacts: Images and sounds of results.
        lease_message: Describes a lease.

    """

    def __init__(
        self,
        exchanges: Exchanges,
        executor: Executor,
        pool: Pool,
        artifacts: ArtifactStore,
        lease_message: Callable[[Lease], leases_pb2.Lease],
    ) -> None:
        self._exchanges = exchanges
        self._executor = executor
        self._pool = pool
        self._artifacts = artifacts
        self._lease_message = lease_message

    async def Exchange(  # type: ignore[override]  # noqa: N802 - writes to the context
        self, request_iterator: Any, context: Context
    ) -> None:
        """Carry calls and results until both sides are done."""
        await self._exchanges.serve(context)

    async def CallTool(  # noqa: N802 - gRPC's name
        self, request: execution_pb2.CallToolRequest, context: Context
    ) -> execution_pb2.CallToolResponse:
        """Execute one call."""
        sink = _Collector(keep_events=False)
        try:
            call = self._call(request, context)
            return await self._run(call, request, sink)
        except Fault as fault:
            await refuse(context, fault)

    async def CallToolStreaming(  # noqa: N802 - gRPC's name
        self, request: execution_pb2.CallToolStreamingRequest, context: Context
    ) -> AsyncIterator[execution_pb2.CallToolStreamingResponse]:
        """Execute one call with progress and log messages before its result."""
        sink = _Collector(keep_events=True)
        try:
            call = self._call(request.call, context)
            call.wants_progress = True
            call.log_level = request.log_level
            run = self._begin(call, request.call, sink)
            try:
                async for event in sink.events():
                    yield event
            finally:
                run.cancel("the caller's stream has ended")
            response = self._response(sink.run, await sink.result)
            yield execution_pb2.CallToolStreamingResponse(result=response)
        except Fault as fault:
            await refuse(context, fault)

    async def _run(
        self,
        call: execution_pb2.Call,
        request: execution_pb2.CallToolRequest,
        sink: _Collector,
    ) -> execution_pb2.CallToolResponse:
        run = self._begin(call, request, sink)
        try:
            outcome = await sink.result
        finally:
            run.cancel("the caller does not wait any more")
        return self._response(run, outcome)

    def _begin(
        self,
        call: execution_pb2.Call,
        request: execution_pb2.CallToolRequest,
        sink: _Collector,
    ) -> Run:
        return self._executor.begin(call, arguments_from_struct(request.arguments), sink)

    def _response(
        self, run: Run | None, outcome: tuple[bytes, bool]
    ) -> execution_pb2.CallToolResponse:
        payload, is_error = outcome
        response = typed_result(payload, is_error)
        if run is not None and run.is_new_lease and run.lease is not None:
            response.new_lease.CopyFrom(self._lease_message(run.lease))
        if response.ByteSize() > _LONGEST_UNARY:
            raise Fault(
                Reason.RESULT_TOO_LARGE,
                f"The result exceeds the {_LONGEST_UNARY} bytes that one message carries; call "
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
            inline_media=request.inline_media,
        )
        if not call.server_id:
            call.server_id, call.tool = self._by_exposed_name(request)
        return call

    def _by_exposed_name(self, request: execution_pb2.CallToolRequest) -> tuple[str, str]:
        if request.tool in TOOL_DEFINITIONS:
            return ADMIN_TOOLSET, request.tool
        known: list[str] = []
        for variant in self._pool.holdings.visible_to(request.tenant or DEFAULT_TENANT):
            plan = variant.toolset.by_exposed_name.get(request.tool)
            if plan is not None:
                return variant.key.server_id, plan.original_name
            known.extend(variant.toolset.by_exposed_name)
        raise tool_not_found(request.tool, f"Worker {self._pool.around.worker_id}", known)

    async def ReadArtifact(  # noqa: N802 - gRPC's name
        self, request: execution_pb2.ReadArtifactRequest, context: Context
    ) -> AsyncIterator[execution_pb2.ReadArtifactResponse]:
        """Stream the bytes of an artifact."""
        try:
            async with aclosing(read_artifact(self._artifacts, request)) as parts:
                async for part in parts:
                    yield part
        except Fault as fault:
            await refuse(context, fault)

    async def ReadLogs(  # noqa: N802 - gRPC's name
        self, request: execution_pb2.ReadLogsRequest, context: Context
    ) -> execution_pb2.ReadLogsResponse:
        """Read the last stderr lines of a server's instances."""
        limit = min(request.lines or bounds.STDERR_LINES, bounds.STDERR_LINES)
        try:
            logs = self._pool.logs(request.server_id, request.tenant or DEFAULT_TENANT)
        except Fault as fault:
            await refuse(context, fault)
        return execution_pb2.ReadLogsResponse(
            instances=[
                execution_pb2.InstanceLog(
                    instance_id=log.instance_id,
                    lines=log.lines[-limit:],
                    state=log.state,
                    pid=log.pid,
                )
                for log in logs
            ]
        )


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


class _Collector:
    """The sink of one call: its result as a future, its events as a bounded queue."""

    def __init__(self, keep_events: bool) -> None:
        self.run: Run | None = None
        self.result: asyncio.Future[tuple[bytes, bool]] = asyncio.get_running_loop().create_future()
        self._keep_events = keep_events
        self._events: deque[execution_pb2.CallToolStreamingResponse] = deque()
        self._bytes = 0
        self._changed = asyncio.Event()

    def finish(self, run: Run, payload: bytes, is_error: bool) -> None:
        """Take the result."""
        self.run = run
        self.result.set_result((payload, is_error))
        self._changed.set()

    def fail(self, run: Run, fault: Fault) -> None:
        """Take why there is none."""
        self.result.set_exception(fault)
        self.result.exception()  # whoever has gone away does not ask
        self._changed.set()

    def progress(self, run: Run, progress: float, total: float | None, message: str) -> None:
        """Keep a progress report; of too many the oldest go."""
        self._add(
            execution_pb2.CallToolStreamingResponse(
                progress=execution_pb2.Progress(
                    call_id=run.call.id, progress=progress, total=total, message=message
                )
            )
        )

    def log(self, run: Run, level: str, logger: str, data: bytes) -> None:
        """Keep a log message; of too many the oldest go."""
        self._add(
            execution_pb2.CallToolStreamingResponse(
                log=execution_pb2.LogMessage(
                    call_id=run.call.id, level=level, logger=logger, data=data
                )
            )
        )

    def _add(self, event: execution_pb2.CallToolStreamingResponse) -> None:
        if self._keep_events:
            self._events.append(event)
            self._bytes += event.ByteSize()
            while len(self._events) > _MOST_EVENTS or self._bytes > _MOST_EVENT_BYTES:
                self._take()
            self._changed.set()

    def _take(self) -> execution_pb2.CallToolStreamingResponse:
        event = self._events.popleft()
        self._bytes -= event.ByteSize()
        return event

    async def events(self) -> AsyncIterator[execution_pb2.CallToolStreamingResponse]:
        """Yield the events until the call has ended."""
        while self._events or not self.result.done():
            if self._events:
                yield self._take()
            else:
                self._changed.clear()
                await self._changed.wait()
