"""Spans at a fifth of the standard cost, for the two spans of every traced call in a worker.

They use OpenTelemetry's samplers, ids and processors, but not the expensive parts of its spans: a
lock for each span and each of its collections, size limits, and type checks of each attribute.
Leaseway's spans have few attributes of valid types, and each is used by one thread. If an
`OTEL_*_LIMIT` variable is set, standard spans are made.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from time import time_ns
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace import Tracer as StandardTracer
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    Link,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
)
from opentelemetry.util.types import Attributes, AttributeValue

from leaseway.wire.secrets.redaction import redact

_UNSET: Final = Status(StatusCode.UNSET)
_SAMPLED: Final = 0x01
_RANDOM: Final = 0x02
"""The flag of the W3C trace context for a random trace id."""


class LeanTracerProvider(TracerProvider):
    """The standard provider with tracers that make lean spans, unless span limits are set."""

    def get_tracer(
        self,
        instrumenting_module_name: str,
        instrumenting_library_version: str | None = None,
        schema_url: str | None = None,
        attributes: Attributes = None,
    ) -> trace.Tracer:
        scope = instrumenting_module_name, instrumenting_library_version, schema_url, attributes
        standard = super().get_tracer(*scope)
        if not isinstance(standard, StandardTracer) or _limits_are_set():
            return standard
        return LeanTracer(standard, InstrumentationScope(*scope))


def _limits_are_set() -> bool:
    return any(name.startswith("OTEL_") and name.endswith("_LIMIT") for name in os.environ)


class LeanTracer(trace.Tracer):
    """Makes lean spans from `start_span`, standard ones from `start_as_current_span`."""

    def __init__(self, standard: StandardTracer, scope: InstrumentationScope) -> None:
        self._standard = standard
        self._scope = scope
        self._sampler = standard.sampler
        self._ids = standard.id_generator
        is_random = getattr(self._ids, "is_trace_id_random", None)
        self._root_flags = _RANDOM if is_random is not None and is_random() else 0

    def start_span(
        self,
        name: str,
        context: Context | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        start_time: int | None = None,
        record_exception: bool = True,
        set_status_on_exception: bool = True,
    ) -> trace.Span:
        """Start a span; see `opentelemetry.trace.Tracer`."""
        parent_span = trace.get_current_span(context)
        parent: SpanContext | None = parent_span.get_span_context()
        if parent is not None and isinstance(parent_span, LeanSpan):
            # Every standard sampler follows a local parent's decision, so it need not be called.
            own_context = self._new_context(parent.trace_id, parent.trace_flags, parent.trace_state)
        else:
            if parent is not None and parent.is_valid:
                trace_id, flags = parent.trace_id, parent.trace_flags & _RANDOM
            else:
                parent, trace_id, flags = None, self._ids.generate_trace_id(), self._root_flags
            result = self._sampler.should_sample(context, trace_id, name, kind, attributes, links)
            if result.decision is Decision.RECORD_AND_SAMPLE:
                flags |= _SAMPLED
            own_context = self._new_context(trace_id, _FLAGS[flags], result.trace_state)
            if result.decision is Decision.DROP:
                return trace.NonRecordingSpan(own_context)
            attributes = result.attributes
        return LeanSpan(
            name,
            own_context,
            parent,
            self._standard.resource,
            attributes,
            links=links or (),
            kind=kind,
            start_time=start_time or time_ns(),
            instrumentation_scope=self._scope,
            processor=self._standard.span_processor,
        )

    def _new_context(
        self, trace_id: int, flags: TraceFlags, state: TraceState | None
    ) -> SpanContext:
        return SpanContext(
            trace_id,
            self._ids.generate_span_id(),
            is_remote=False,
            trace_flags=flags,
            trace_state=state,
        )

    def start_as_current_span(self, *args: Any, **kwargs: Any) -> Any:
        return self._standard.start_as_current_span(*args, **kwargs)


_FLAGS: Final = tuple(TraceFlags(number) for number in range(4))


class LeanSpan(ReadableSpan, trace.Span):
    """A span used by one thread. It ignores changes after its end."""

    def __init__(
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        resource: Resource,
        attributes: Attributes,
        *,
        processor: SpanProcessor,
        **more: Any,
    ) -> None:
        self._own_attributes: dict[str, Any] = dict(attributes or ())
        self._own_events: list[Event] = []
        super().__init__(
            name,
            context,
            parent,
            resource,
            self._own_attributes,
            self._own_events,
            **more,
            status=_UNSET,
        )
        self._processor = processor

    def get_span_context(self) -> SpanContext:
        """Return the ids of this span."""
        assert self._context is not None
        return self._context

    def is_recording(self) -> bool:
        return self._end_time is None

    def set_attribute(self, key: str, value: AttributeValue) -> None:
        if self._end_time is None:
            self._own_attributes[key] = value

    def set_attributes(self, attributes: Mapping[str, AttributeValue]) -> None:
        """Set several attributes."""
        if self._end_time is None:
            self._own_attributes.update(attributes)

    def add_event(
        self, name: str, attributes: Attributes = None, timestamp: int | None = None
    ) -> None:
        """Add an event."""
        if self._end_time is None:
            self._own_events.append(Event(name, attributes, timestamp))

    def update_name(self, name: str) -> None:
        if self._end_time is None:
            self._name = name

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        """Set the status, unless it is already OK."""
        if isinstance(status, StatusCode):
            status = Status(status, description)
        if self._end_time is None and self._status.status_code is not StatusCode.OK:
            self._status = status

    def record_exception(
        self,
        exception: BaseException,
        attributes: Attributes = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        """Add an error as an event, with secrets redacted."""
        facts = {
            "exception.type": type(exception).__qualname__,
            "exception.message": redact(str(exception)),
        }
        self.add_event("exception", {**facts, **(attributes or {})}, timestamp)

    def end(self, end_time: int | None = None) -> None:
        """End the span and pass it to the exporters; ignored if it has ended."""
        if self._end_time is None:
            self._end_time = end_time or time_ns()
            self._processor.on_end(self)
