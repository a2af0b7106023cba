"""Spans at a fifth of the standard cost, and the pairs of spans of a worker's calls.

They use OpenTelemetry's samplers, ids and processors, but not the expensive parts of its spans: a
lock for each span and each of its collections, size limits, and type checks of each attribute.
Leaseway's spans have few attributes of valid types, and each is used by one thread. If an
`OTEL_*_LIMIT` variable is set, standard spans are made.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from time import time_ns
from typing import Any, Final, cast

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace import Tracer as StandardTracer
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, DEFAULT_ON, Decision
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

from leaseway.telemetry.spans.pairs import RANDOM, SAMPLED, SpanPair, SpanShape
from leaseway.wire.secrets.redaction import redact

_UNSET: Final = Status(StatusCode.UNSET)


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

    def span_pairs(self, name: str, version: str) -> LeanPairs | None:
        """Return the source of a module's pairs of spans.

        None if span limits are set, or if the sampler might drop a call whose caller sampled it, or
        left that to the worker: their spans are made one by one.
        """
        tracer = self.get_tracer(name, version)
        if not isinstance(tracer, LeanTracer) or self.sampler.get_description() not in _KEEPING:
            return None
        return LeanPairs(tracer)


_KEEPING: Final = {sampler.get_description() for sampler in (DEFAULT_ON, ALWAYS_ON)}
"""The samplers that keep each span without a parent, and each of a sampled one."""


def _limits_are_set() -> bool:
    return any(name.startswith("OTEL_") and name.endswith("_LIMIT") for name in os.environ)


class LeanTracer(trace.Tracer):
    """Makes lean spans from `start_span`, standard ones from `start_as_current_span`.

    Attributes:
        scope: The module whose spans it makes.
        ids: Makes ids.
        root_flags: The flags of a trace that begins here, besides the sampled one.
    """

    def __init__(self, standard: StandardTracer, scope: InstrumentationScope) -> None:
        self._standard = standard
        self.scope = scope
        self._sampler = standard.sampler
        self.ids = standard.id_generator
        is_random = getattr(self.ids, "is_trace_id_random", None)
        self.root_flags = RANDOM if is_random is not None and is_random() else 0

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
                trace_id, flags = parent.trace_id, parent.trace_flags & RANDOM
            else:
                parent, trace_id, flags = None, self.ids.generate_trace_id(), self.root_flags
            result = self._sampler.should_sample(context, trace_id, name, kind, attributes, links)
            if result.decision is Decision.RECORD_AND_SAMPLE:
                flags |= SAMPLED
            own_context = self._new_context(trace_id, _FLAGS[flags], result.trace_state)
            if result.decision is Decision.DROP:
                return trace.NonRecordingSpan(own_context)
            attributes = result.attributes
        return LeanSpan(
            name,
            own_context,
            parent,
            self.resource,
            attributes,
            links=links or (),
            kind=kind,
            start_time=start_time or time_ns(),
            instrumentation_scope=self.scope,
            processor=self.processor,
        )

    def _new_context(
        self, trace_id: int, flags: TraceFlags, state: TraceState | None
    ) -> SpanContext:
        return SpanContext(
            trace_id,
            self.ids.generate_span_id(),
            is_remote=False,
            trace_flags=flags,
            trace_state=state,
        )

    @property
    def resource(self) -> Resource:
        """The process whose spans it makes."""
        return self._standard.resource

    @property
    def processor(self) -> SpanProcessor:
        """What gets its ended spans."""
        return self._standard.span_processor

    def start_as_current_span(self, *args: Any, **kwargs: Any) -> Any:
        return self._standard.start_as_current_span(*args, **kwargs)


class LeanPairs:
    """Where pairs of spans come from and go to; see `PairSource`.

    Attributes:
        resource: The process whose spans they are.
        scope: The module whose spans they are.
    """

    def __init__(self, tracer: LeanTracer) -> None:
        self.resource, self.scope = tracer.resource, tracer.scope
        self.root_flags = tracer.root_flags
        self.new_trace_id = tracer.ids.generate_trace_id
        self.new_span_id = tracer.ids.generate_span_id
        self._on_end: Callable[[Any], None] = tracer.processor.on_end

    def export(self, pair: SpanPair) -> None:
        """Queue an ended pair for the exporters, which get it as one item."""
        self._on_end(pair)


def readable_spans(pair: SpanPair) -> list[ReadableSpan]:
    """Return the spans of an ended pair, the inner one first, as it would end."""
    source = cast("LeanPairs", pair.source)
    trace_id, flags = int(pair.trace_id, 16), TraceFlags(pair.flags)
    state = TraceState.from_header([pair.state]) if pair.state else None
    outcome = pair.outcome or {}
    status = Status(StatusCode.ERROR, pair.failure) if pair.outcome is not None else _UNSET

    def context(span_id: str, is_remote: bool = False) -> SpanContext:
        return SpanContext(trace_id, int(span_id, 16), is_remote, flags, state)

    def span(
        shape: SpanShape, span_id: str, parent: SpanContext | None, **more: Any
    ) -> ReadableSpan:
        return ReadableSpan(
            shape.name,
            context(span_id),
            parent,
            source.resource,
            kind=shape.kind,
            instrumentation_scope=source.scope,
            status=status,
            end_time=pair.ended,
            **more,
        )

    outer = span(
        pair.outer,
        pair.outer_id,
        context(pair.parent_id, is_remote=True) if pair.parent_id else None,
        attributes={**pair.outer.attributes, **outcome},
        events=[Event(name, timestamp=at) for name, at in pair.events or ()],
        start_time=pair.started,
    )
    if pair.inner is None:
        return [outer]
    own = {pair.own[0]: pair.own[1]} if pair.own is not None else {}
    inner = span(
        pair.inner,
        pair.inner_id,
        context(pair.outer_id),
        attributes={**pair.inner.attributes, **own, **outcome},
        start_time=pair.inner_started,
    )
    return [inner, outer]


def all_readable(items: Iterable[ReadableSpan | SpanPair]) -> Iterator[ReadableSpan]:
    """Return spans, and those of pairs among them."""
    for item in items:
        if isinstance(item, SpanPair):
            yield from readable_spans(item)
        else:
            yield item


class SpanPrinter(ConsoleSpanExporter):
    """Writes spans as JSON, and those of pairs."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Write the spans of a batch."""
        return super().export(list(all_readable(spans)))


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
