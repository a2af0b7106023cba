"""Spans of calls, and the trace context that is sent with them (design.md#traces-metrics-and-logs).

Without OpenTelemetry set up, a call creates no span and no attributes. The trace context of the
caller is sent in both cases.
"""

from __future__ import annotations

from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context, get_current
from opentelemetry.trace import Span, SpanKind, StatusCode

from leaseway.sdk.calls.requests import CallState
from leaseway.sdk.transport.identity import ClientIdentity
from leaseway.v1.catalog_pb2 import NAME_KIND_PROMPT
from leaseway.wire.channels.trace_context import context_from, headers_of
from leaseway.wire.errors import Fault
from leaseway.wire.names import DEFAULT_TENANT
from leaseway.wire.span_attributes import Attr
from leaseway.wire.status import code_of
from leaseway.wire.version import PACKAGE_VERSION

_UNKNOWN: Final = object()
"""Stands for a provider that this version of OpenTelemetry stores elsewhere."""
_INERT: Final = (trace.ProxyTracerProvider, trace.NoOpTracerProvider)


class CallTracer:
    """Starts the spans of one client's calls, if spans are recorded."""

    def __init__(self, identity: ClientIdentity) -> None:
        self._tenant = identity.tenant or DEFAULT_TENANT
        self._agent = identity.agent
        # The public function reads the environment at every call until a provider is set, so it
        # is called once here.
        trace.get_tracer_provider()
        self._provider: object = None
        self._tracer: trace.Tracer | None = None

    def start(self, state: CallState) -> None:
        """Start the span of a call if spans are recorded, and note the trace context to send."""
        provider = getattr(trace, "_TRACER_PROVIDER", _UNKNOWN)
        if provider is not self._provider:
            self._update_tracer(provider)
        if self._tracer is not None:
            state.span = self._start(self._tracer, state)
            state.trace = headers_of(state.span)
        elif get_current():
            state.trace = headers_of(trace.get_current_span())

    def records(self) -> bool:
        """Return whether a call gets a span."""
        provider = getattr(trace, "_TRACER_PROVIDER", _UNKNOWN)
        if provider is not self._provider:
            self._update_tracer(provider)
        return self._tracer is not None

    def start_begun(self, session: str, name: str, parent: tuple[str, str]) -> Span:
        """Start the span of a call of a tool that begins without a task; call it if `records`.

        Args:
            session: The session.
            name: The tool's name.
            parent: The trace that it continues, or `NO_TRACE`.
        """
        assert self._tracer is not None
        return self._start_tool(self._tracer, session, name, context_from(*parent))

    def _start_tool(
        self, tracer: trace.Tracer, session: str, name: str, context: Context | None
    ) -> Span:
        attributes = self._common(session)
        attributes[Attr.GEN_AI_OPERATION_NAME] = Attr.EXECUTE_TOOL
        attributes[Attr.GEN_AI_TOOL_NAME] = name
        title = f"{Attr.EXECUTE_TOOL} {name}"
        return tracer.start_span(title, context, kind=SpanKind.CLIENT, attributes=attributes)

    def _common(self, session: str) -> dict[str, str]:
        attributes: dict[str, str] = {Attr.TENANT: self._tenant, Attr.SESSION: session}
        if self._agent:
            attributes[Attr.AGENT] = self._agent
        return attributes

    def _start(self, tracer: trace.Tracer, state: CallState) -> Span:
        request = state.request
        if request is None:
            return self._start_tool(tracer, state.session, str(state.name), None)
        attributes = self._common(state.session)
        name = request.method
        attributes[Attr.MCP_METHOD_NAME] = request.method
        if request.item.kind == NAME_KIND_PROMPT:
            name = f"{name} {request.item.name}"
            attributes[Attr.GEN_AI_PROMPT_NAME] = request.item.name
        else:  # not in the name: there are too many URIs
            attributes[Attr.MCP_RESOURCE_URI] = request.item.name
        return tracer.start_span(name, kind=SpanKind.CLIENT, attributes=attributes)

    def _update_tracer(self, provider: object) -> None:
        """Use the provider that the program set, before or after creating the client."""
        if provider is not _UNKNOWN:
            self._provider = provider
        public = trace.get_tracer_provider()
        recording = not isinstance(public, _INERT)
        self._tracer = public.get_tracer("leaseway.sdk", PACKAGE_VERSION) if recording else None


def record_route(span: Span, server: str, worker: str, lease: str) -> None:
    """Record which server, worker and lease a call uses."""
    if span.is_recording():
        attributes = {Attr.SERVER: server, Attr.WORKER: worker}
        if lease:
            attributes[Attr.LEASE] = lease
        span.set_attributes(attributes)


def record_failure(span: Span, fault: Fault) -> None:
    """Record the reason of a failure; its message may repeat arguments and is omitted."""
    if span.is_recording():
        span.set_attribute(Attr.RPC_RESPONSE_STATUS_CODE, code_of(fault).name)
        span.set_attribute(Attr.ERROR_TYPE, fault.reason.value)
        span.set_status(StatusCode.ERROR, fault.reason.value)


def record_cancellation(span: Span) -> None:
    """Record that the caller cancelled the call."""
    if span.is_recording():
        span.set_attribute(Attr.RPC_RESPONSE_STATUS_CODE, "CANCELLED")
        span.set_attribute(Attr.ERROR_TYPE, "CANCELLED")
        span.set_status(StatusCode.ERROR, "The caller was cancelled.")
