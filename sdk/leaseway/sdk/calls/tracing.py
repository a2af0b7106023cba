"""Spans of calls, and the trace context that goes with them (DESIGN §11).

A call costs nothing here unless the program has set up OpenTelemetry: no span, no attributes, no
text. What the context of the caller holds goes with the call either way.
"""

from __future__ import annotations

from typing import Final

from opentelemetry import trace
from opentelemetry.context import get_current
from opentelemetry.trace import Span, SpanKind, StatusCode

from leaseway.sdk.calls.requests import McpRequest
from leaseway.sdk.transport.identity import Identity
from leaseway.v1.catalog_pb2 import NAME_KIND_PROMPT
from leaseway.wire.errors import Fault
from leaseway.wire.names import DEFAULT_TENANT
from leaseway.wire.span_attributes import Attr
from leaseway.wire.status import code_of
from leaseway.wire.version import PACKAGE_VERSION

_UNKNOWN: Final = object()
"""Stands for a provider that this version of OpenTelemetry keeps somewhere else."""
_NO_CONTEXT: Final = ("", "")
_INERT: Final = (trace.ProxyTracerProvider, trace.NoOpTracerProvider)


class CallTracer:
    """Makes the span of each call of one client, where somebody records spans."""

    def __init__(self, identity: Identity) -> None:
        self._tenant = identity.tenant or DEFAULT_TENANT
        self._agent = identity.agent
        # The public function reads the environment at each call until there is a provider; what
        # it would find there is found by asking once.
        trace.get_tracer_provider()
        self._provider: object = None
        self._tracer: trace.Tracer | None = None

    def begin(self, tool: str, session: str) -> Span | None:
        """Start the span of a call; None where nothing records."""
        provider = getattr(trace, "_TRACER_PROVIDER", _UNKNOWN)
        if provider is not self._provider:
            self._follow(provider)
        if self._tracer is None:
            return None
        about = {Attr.GEN_AI_OPERATION_NAME: Attr.EXECUTE_TOOL, Attr.GEN_AI_TOOL_NAME: tool}
        return self._start(self._tracer, f"{Attr.EXECUTE_TOOL} {tool}", about, session)

    def begin_request(self, request: McpRequest, session: str) -> Span | None:
        """Start the span of another request; URIs have no bounds, so no name has one."""
        provider = getattr(trace, "_TRACER_PROVIDER", _UNKNOWN)
        if provider is not self._provider:
            self._follow(provider)
        if self._tracer is None:
            return None
        name, about = request.method, {Attr.MCP_METHOD_NAME: request.method}
        if request.item.kind == NAME_KIND_PROMPT:
            name = f"{name} {request.item.name}"
            about[Attr.GEN_AI_PROMPT_NAME] = request.item.name
        else:
            about[Attr.MCP_RESOURCE_URI] = request.item.name
        return self._start(self._tracer, name, about, session)

    def _start(self, tracer: trace.Tracer, name: str, about: dict[str, str], session: str) -> Span:
        about |= {Attr.TENANT: self._tenant, Attr.SESSION: session}
        if self._agent:
            about[Attr.AGENT] = self._agent
        return tracer.start_span(name, kind=SpanKind.CLIENT, attributes=about)

    def _follow(self, provider: object) -> None:
        """Note that the program set up OpenTelemetry, before or after making the client."""
        if provider is not _UNKNOWN:
            self._provider = provider
        public = trace.get_tracer_provider()
        recording = not isinstance(public, _INERT)
        self._tracer = public.get_tracer("leaseway.sdk", PACKAGE_VERSION) if recording else None


def describe(span: Span, server: str, worker: str, lease: str) -> None:
    """Say where a call goes."""
    if span.is_recording():
        where = {Attr.SERVER: server, Attr.WORKER: worker}
        if lease:
            where[Attr.LEASE] = lease
        span.set_attributes(where)


def fail(span: Span, fault: Fault) -> None:
    """Say how a call failed, by its reason: what a server says may repeat its arguments."""
    if span.is_recording():
        span.set_attribute(Attr.RPC_RESPONSE_STATUS_CODE, code_of(fault).name)
        span.set_attribute(Attr.ERROR_TYPE, fault.reason.value)
        span.set_status(StatusCode.ERROR, fault.reason.value)


def cancelled(span: Span) -> None:
    """Say that the caller stopped waiting."""
    if span.is_recording():
        span.set_attribute(Attr.RPC_RESPONSE_STATUS_CODE, "CANCELLED")
        span.set_attribute(Attr.ERROR_TYPE, "CANCELLED")
        span.set_status(StatusCode.ERROR, "The caller was cancelled.")


def trace_headers(span: Span | None) -> tuple[str, str]:
    """Return `traceparent` and `tracestate` of a span, or of the caller's context without one."""
    if span is None:
        if not get_current():
            return _NO_CONTEXT
        span = trace.get_current_span()
    context = span.get_span_context()
    if not context.is_valid:
        return _NO_CONTEXT
    flags = int(context.trace_flags)
    return (
        f"00-{context.trace_id:032x}-{context.span_id:016x}-{flags:02x}",
        context.trace_state.to_header(),
    )
