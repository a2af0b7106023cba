"""The two spans of a traced call: the call and its MCP request.

See design.md#traces-metrics-and-logs.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
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
_CACHED: Final = 512
"""How many sets of attributes are kept, of the calls and of the requests."""
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
            attributes=_call_attributes(
                *(call.method, call.tool, call.server_id, worker_id, call.tenant),
                *(call.registry_version, (call.agent, call.session, call.lease_id)),
            ),
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
            attributes=_request_attributes(
                *(self._call.method, self._call.tool, instance.protocol_version),
                *(Attr.PIPE if stdio else Attr.TCP, self._call.server_id, instance.id),
                *(live.spec.launch_hash, (instance.mcp_session, live.lease_id)),
            ),
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


@lru_cache(_CACHED)
def _call_attributes(
    method: str,
    target: str,
    server: str,
    worker: str,
    tenant: str,
    registry_version: str,
    caller: tuple[str, str, str],
) -> Mapping[str, str]:
    """Return the attributes of a call's span; calls with the same share them.

    `caller` is its agent, session and lease, of which each may be empty.
    """
    optional = zip((Attr.AGENT, Attr.SESSION, Attr.LEASE), caller, strict=True)
    return {
        **_target(method, target),
        Attr.SERVER: server,
        Attr.WORKER: worker,
        Attr.TENANT: tenant or DEFAULT_TENANT,
        Attr.REGISTRY_VERSION: registry_version,
        **{name: value for name, value in optional if value},
    }


@lru_cache(_CACHED)
def _request_attributes(
    method: str,
    target: str,
    protocol_version: str,
    transport: str,
    server: str,
    instance: str,
    generation: str,
    holder: tuple[str, str],
) -> Mapping[str, str]:
    """Return the attributes of the span of an MCP request, shared in the same way.

    `holder` is the MCP session and the lease, of which each may be empty.
    """
    optional = zip((Attr.MCP_SESSION_ID, Attr.LEASE), holder, strict=True)
    return {
        Attr.MCP_METHOD_NAME: method or "tools/call",
        **_target(method, target),
        Attr.MCP_PROTOCOL_VERSION: protocol_version,
        Attr.NETWORK_TRANSPORT: transport,
        Attr.SERVER: server,
        Attr.INSTANCE: instance,
        Attr.GENERATION: generation,
        **{name: value for name, value in optional if value},
    }


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


def _set_fault(span: Span, fault: Fault) -> None:
    kind, code = error_type(fault)
    span.set_attribute(Attr.ERROR_TYPE, kind)
    span.set_attribute(Attr.RPC_RESPONSE_STATUS_CODE, code)
    span.set_status(Status(StatusCode.ERROR, fault.reason.value))
