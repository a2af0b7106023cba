"""The two spans of a traced call: the call and its MCP request.

See design.md#traces-metrics-and-logs.
"""

from __future__ import annotations

from typing import Final

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from leaseway.data_plane.core.calls.incoming import IncomingCall
from leaseway.data_plane.instances.live_instance import LiveInstance
from leaseway.data_plane.metrics.instruments import error_type
from leaseway.telemetry.tracing import tracer
from leaseway.wire import bounds
from leaseway.wire.channels.trace_context import (
    context_from,
    headers_of,
    is_sampled,
    meta_from,
    traceparent_of,
)
from leaseway.wire.errors import Fault
from leaseway.wire.names import DEFAULT_TENANT
from leaseway.wire.span_attributes import Attr

_PROMPT: Final = "prompts/get"
_COMPLETE: Final = "completion/complete"
_tracer = tracer("leaseway.data_plane")


def wants_trace(call: IncomingCall) -> bool:
    """Return whether a call may get spans: its caller sampled it, or left that to the worker."""
    return not call.traceparent or is_sampled(call.traceparent)


class CallTrace:
    """The worker's span of one call, and the child span of its MCP request."""

    __slots__ = ("_call", "_request", "_worker")

    def __init__(self, call: IncomingCall, worker_id: str) -> None:
        self._call = call
        self._request: Span | None = None
        self._worker = _tracer.start_span(
            "leaseway.call",
            context=context_from(call.traceparent, call.tracestate),
            kind=SpanKind.SERVER,
            attributes={
                **_target(call),
                Attr.SERVER: call.server_id,
                Attr.WORKER: worker_id,
                Attr.TENANT: call.tenant or DEFAULT_TENANT,
                Attr.REGISTRY_VERSION: call.registry_version,
                **{
                    name: value
                    for name, value in (
                        (Attr.AGENT, call.agent),
                        (Attr.SESSION, call.session),
                        (Attr.LEASE, call.lease_id),
                    )
                    if value
                },
            },
        )

    @property
    def traceparent(self) -> str:
        """The worker's span as a W3C `traceparent`; empty if it is not sampled."""
        sampled = self._worker.get_span_context().trace_flags.sampled
        return traceparent_of(self._worker) if sampled else ""

    def event(self, name: str) -> None:
        self._worker.add_event(name)

    def start_request(self, live: LiveInstance) -> dict[str, object]:
        """Start the span of the MCP request; return the `_meta` with its trace context."""
        if not self._worker.is_recording():
            return _trace_context(self._worker)  # the sampler's decision holds for both spans
        instance = live.instance
        stdio = live.spec.part.uses_pipes
        self._request = _tracer.start_span(
            _span_name(self._call),
            context=trace.set_span_in_context(self._worker),
            kind=SpanKind.CLIENT,
            attributes={
                Attr.MCP_METHOD_NAME: self._call.method or "tools/call",
                **_target(self._call),
                Attr.MCP_PROTOCOL_VERSION: instance.protocol_version,
                Attr.NETWORK_TRANSPORT: Attr.PIPE if stdio else Attr.TCP,
                Attr.SERVER: self._call.server_id,
                Attr.INSTANCE: instance.id,
                Attr.GENERATION: live.spec.launch_hash,
                **({Attr.MCP_SESSION_ID: instance.mcp_session} if instance.mcp_session else {}),
                **({Attr.LEASE: live.lease_id} if live.lease_id else {}),
            },
        )
        return _trace_context(self._request)

    def set_request_id(self, request_id: object) -> None:
        """Set the id of the JSON-RPC request on its span."""
        if self._request is not None and request_id is not None:
            self._request.set_attribute(Attr.JSONRPC_REQUEST_ID, str(request_id))

    def end(self, fault: Fault | None, is_error: bool) -> None:
        """End both spans with the call's outcome."""
        for span in (self._request, self._worker):
            if span is None:
                continue
            if fault is not None:
                _set_fault(span, fault)
            elif is_error:
                span.set_attribute(Attr.ERROR_TYPE, Attr.TOOL_ERROR)
                span.set_status(Status(StatusCode.ERROR, "the tool reported an error"))
            span.end()


def _trace_context(span: Span) -> dict[str, object]:
    return meta_from(*headers_of(span))


def _span_name(call: IncomingCall) -> str:
    """Return the name of an MCP request's span. It contains no URI: there may be any number."""
    if not call.method:
        return f"tools/call {call.tool}"
    return f"{call.method} {call.tool}" if call.method == _PROMPT else call.method


def _target(call: IncomingCall) -> dict[str, str]:
    """Return the attributes for a call's tool, prompt or resource."""
    if not call.method:
        return {
            Attr.GEN_AI_TOOL_NAME: call.tool,
            Attr.GEN_AI_OPERATION_NAME: Attr.EXECUTE_TOOL,
        }
    if not call.tool:
        return {Attr.MCP_METHOD_NAME: call.method}
    name = Attr.MCP_RESOURCE_URI
    if call.method == _PROMPT or (call.method == _COMPLETE and ":" not in call.tool):
        name = Attr.GEN_AI_PROMPT_NAME
    return {Attr.MCP_METHOD_NAME: call.method, name: call.tool[: bounds.MAX_URI]}


def _set_fault(span: Span, fault: Fault) -> None:
    kind, code = error_type(fault)
    span.set_attribute(Attr.ERROR_TYPE, kind)
    span.set_attribute(Attr.RPC_RESPONSE_STATUS_CODE, code)
    span.set_status(Status(StatusCode.ERROR, fault.reason.value))
