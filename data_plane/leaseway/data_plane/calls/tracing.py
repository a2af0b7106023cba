"""The two spans of a traced call: the call and its MCP request.

See design.md#traces-metrics-and-logs.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, Protocol

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from leaseway.data_plane.core.calls.incoming import IncomingCall
from leaseway.data_plane.instances.live_instance import LiveInstance
from leaseway.data_plane.metrics.instruments import error_type
from leaseway.telemetry.spans.pairs import PairSource, SpanPair, SpanShape, parent_of
from leaseway.telemetry.tracing import span_pairs, tracer, tracing_active
from leaseway.wire import bounds
from leaseway.wire.channels.trace_context import (
    context_from,
    headers_of,
    is_sampled,
    meta_from,
    traceparent_of,
)
from leaseway.wire.errors import Fault
from leaseway.wire.span_attributes import Attr

_PROMPT: Final = "prompts/get"
_COMPLETE: Final = "completion/complete"
_CACHED: Final = 512
"""How many shapes are kept, of the calls and of the requests."""
_TOOL_ERROR: Final = {Attr.ERROR_TYPE: Attr.TOOL_ERROR}
_TOOL_FAILED: Final = "the tool reported an error"
_SCOPE: Final = "leaseway.data_plane"
_tracer = tracer(_SCOPE)

_Target = tuple[str, str, str]
"""Method, tool and server of a call."""


class CallTrace(Protocol):
    """The worker's span of one call, and the child span of its MCP request."""

    @property
    def traceparent(self) -> str:
        """The worker's span as a W3C `traceparent`; empty if it is not sampled."""

    def event(self, name: str) -> None:
        """Add an event to the worker's span."""

    def start_request(self, live: LiveInstance) -> dict[str, object]:
        """Start the span of the MCP request; return the `_meta` with its trace context."""

    def set_request_id(self, request_id: object) -> None:
        """Set the id of the JSON-RPC request on its span."""

    def end(self, fault: Fault | None, is_error: bool) -> None:
        """End both spans with the call's outcome."""


class CallTraces:
    """Starts the traces of a worker's calls.

    They are pairs if the process exports its spans itself, and spans of OpenTelemetry's api if a
    program around it does, or if its settings need them.
    """

    def __init__(self, worker_id: str) -> None:
        self._worker_id = worker_id
        self._pairs = span_pairs(_SCOPE)

    def start(self, call: IncomingCall) -> CallTrace | None:
        """Start a call's trace; None if its caller did not sample it."""
        traceparent = call.traceparent
        if traceparent and not is_sampled(traceparent):
            return None
        shape = _call_shape(
            *(call.method, call.tool, call.server_id, self._worker_id, call.tenant),
            *(call.registry_version, (call.agent, call.session, call.lease_id)),
        )
        if self._pairs is None:
            return SpanTrace(call, shape)
        return PairTrace(self._pairs, call, shape)


def call_traces(worker_id: str) -> CallTraces | None:
    """Return what starts traces, or None without tracing: decided at start-up."""
    return CallTraces(worker_id) if tracing_active() else None


class PairTrace(SpanPair):
    """A call's trace as one record, of which the exporter makes spans."""

    __slots__ = ("_target",)

    def __init__(self, source: PairSource, call: IncomingCall, shape: SpanShape) -> None:
        super().__init__(source, shape, parent_of(call.traceparent, call.tracestate))
        # Not the call, with its arguments and its token: the exporter keeps this for a while.
        self._target = _target_of(call)

    @property
    def traceparent(self) -> str:
        return self.outer_traceparent

    def event(self, name: str) -> None:
        self.add_event(name)

    def start_request(self, live: LiveInstance) -> dict[str, object]:
        self.start_inner(_shape_of_request(self._target, live))
        return meta_from(self.inner_traceparent, self.state)

    def set_request_id(self, request_id: object) -> None:
        if self.inner is not None and request_id is not None:
            self.own = (Attr.JSONRPC_REQUEST_ID, str(request_id))

    def end(self, fault: Fault | None, is_error: bool) -> None:
        if fault is not None:
            self.outcome, self.failure = _fault_attributes(fault), fault.reason.value
        elif is_error:
            self.outcome, self.failure = _TOOL_ERROR, _TOOL_FAILED
        self.end_both()


class SpanTrace:
    """A call's trace as spans of OpenTelemetry's api."""

    __slots__ = ("_request", "_target", "_worker")

    def __init__(self, call: IncomingCall, shape: SpanShape) -> None:
        self._target = _target_of(call)
        self._request: Span | None = None
        context = context_from(call.traceparent, call.tracestate)
        self._worker = _start(shape, context)

    @property
    def traceparent(self) -> str:
        sampled = self._worker.get_span_context().trace_flags.sampled
        return traceparent_of(self._worker) if sampled else ""

    def event(self, name: str) -> None:
        self._worker.add_event(name)

    def start_request(self, live: LiveInstance) -> dict[str, object]:
        if not self._worker.is_recording():
            return _trace_context(self._worker)  # the sampler's decision holds for both spans
        context = trace.set_span_in_context(self._worker)
        self._request = _start(_shape_of_request(self._target, live), context)
        return _trace_context(self._request)

    def set_request_id(self, request_id: object) -> None:
        if self._request is not None and request_id is not None:
            self._request.set_attribute(Attr.JSONRPC_REQUEST_ID, str(request_id))

    def end(self, fault: Fault | None, is_error: bool) -> None:
        for span in (self._request, self._worker):
            if span is None:
                continue
            if fault is not None:
                span.set_attributes(_fault_attributes(fault))
                span.set_status(Status(StatusCode.ERROR, fault.reason.value))
            elif is_error:
                span.set_attributes(_TOOL_ERROR)
                span.set_status(Status(StatusCode.ERROR, _TOOL_FAILED))
            span.end()


def _start(shape: SpanShape, context: Context) -> Span:
    return _tracer.start_span(
        shape.name, context=context, kind=shape.kind, attributes=shape.attributes
    )


def _trace_context(span: Span) -> dict[str, object]:
    return meta_from(*headers_of(span))


def _target_of(call: IncomingCall) -> _Target:
    return call.method, call.tool, call.server_id


def _shape_of_request(target: _Target, live: LiveInstance) -> SpanShape:
    instance = live.instance
    method, tool, server_id = target
    return _request_shape(
        *(method, tool, instance.protocol_version),
        *(Attr.PIPE if live.spec.part.uses_pipes else Attr.TCP, server_id, instance.id),
        *(live.spec.launch_hash, (instance.mcp_session, live.lease_id)),
    )


def _fault_attributes(fault: Fault) -> dict[str, str]:
    kind, code = error_type(fault)
    return {Attr.ERROR_TYPE: kind, Attr.RPC_RESPONSE_STATUS_CODE: code}


def _span_name(method: str, target: str) -> str:
    """Return the name of an MCP request's span. It contains no URI: there may be any number."""
    if not method:
        return f"tools/call {target}"
    return f"{method} {target}" if method == _PROMPT else method


@lru_cache(_CACHED)
def _call_shape(
    method: str,
    target: str,
    server: str,
    worker: str,
    tenant: str,
    registry_version: str,
    caller: tuple[str, str, str],
) -> SpanShape:
    """Return the shape of a call's span; calls with the same attributes share it.

    `caller` is its agent, session and lease, of which each may be empty.
    """
    optional = zip((Attr.AGENT, Attr.SESSION, Attr.LEASE), caller, strict=True)
    attributes = {
        **_target(method, target),
        Attr.SERVER: server,
        Attr.WORKER: worker,
        Attr.TENANT: tenant,
        Attr.REGISTRY_VERSION: registry_version,
        **{name: value for name, value in optional if value},
    }
    return SpanShape("leaseway.call", SpanKind.SERVER, attributes)


@lru_cache(_CACHED)
def _request_shape(
    method: str,
    target: str,
    protocol_version: str,
    transport: str,
    server: str,
    instance: str,
    generation: str,
    holder: tuple[str, str],
) -> SpanShape:
    """Return the shape of the span of an MCP request, shared in the same way.

    `holder` is the MCP session and the lease, of which each may be empty.
    """
    optional = zip((Attr.MCP_SESSION_ID, Attr.LEASE), holder, strict=True)
    attributes = {
        Attr.MCP_METHOD_NAME: method or "tools/call",
        **_target(method, target),
        Attr.MCP_PROTOCOL_VERSION: protocol_version,
        Attr.NETWORK_TRANSPORT: transport,
        Attr.SERVER: server,
        Attr.INSTANCE: instance,
        Attr.GENERATION: generation,
        **{name: value for name, value in optional if value},
    }
    return SpanShape(_span_name(method, target), SpanKind.CLIENT, attributes)


def _target(method: str, target: str) -> dict[str, str]:
    """Return the attributes for a call's tool, prompt or resource."""
    if not method:
        return {
            Attr.GEN_AI_TOOL_NAME: target,
            Attr.GEN_AI_OPERATION_NAME: Attr.EXECUTE_TOOL,
        }
    if not target:
        return {Attr.MCP_METHOD_NAME: method}
    name = Attr.MCP_RESOURCE_URI
    if method == _PROMPT or (method == _COMPLETE and ":" not in target):
        name = Attr.GEN_AI_PROMPT_NAME
    return {Attr.MCP_METHOD_NAME: method, name: target[: bounds.MAX_URI]}
