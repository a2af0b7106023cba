"""Spans at a fifth of their usual cost, for the two that every traced call has in a worker.

They come from OpenTelemetry's own samplers and ids, and end in its own processors as the
`ReadableSpan`s that these expect. What makes the usual ones dear is left out: a lock for each span
and each of its collections, bounds on their sizes, and checks of each attribute's type. Leaseway's
spans have few attributes, of the right types, and each is used by one thread. Where the
`OTEL_*_LIMIT` variables set bounds, the usual spans are made.
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
from opentelemetry.sdk.trace import Tracer as UsualTracer
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
"""The flag of W3C's trace context that says that the trace's id is random."""


class LeanTracerProvider(TracerProvider):
    """The usual provider, whose tracers make lean spans where nothing speaks against them."""

    def get_tracer(
        self,
        instrumenting_module_name: str,
        instrumenting_library_version: str | None = None,
        schema_url: str | None = None,
        attributes: Attributes = None,
    ) -> trace.Tracer:
        named = instrumenting_module_name, instrumenting_library_version, schema_url, attributes
        usual = super().get_tracer(*named)
        if not isinstance(usual, UsualTracer) or _limits_are_set():
            return usual
        return LeanTracer(usual, InstrumentationScope(*named))


def _limits_are_set() -> bool:
    return any(name.startswith("OTEL_") and name.endswith("_LIMIT") for name in os.environ)


class LeanTracer(trace.Tracer):
    """Makes lean spans; those that become the current one are the usual ones."""

    def __init__(self, usual: UsualTracer, scope: InstrumentationScope) -> None:
        self._usual = usual
        self._scope = scope
        self._sampler = usual.sampler
        self._ids = usual.id_generator
        said_random = getattr(self._ids, "is_trace_id_random", None)
        self._root_flags = _RANDOM if said_random is not None and said_random() else 0

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
        above = trace.get_current_span(context)
        parent: SpanContext | None = above.get_span_context()
        if parent is not None and isinstance(above, LeanSpan):
            # Each of the standard samplers takes the whole of what it takes: it need not be asked.
            own = self._new(parent.trace_id, parent.trace_flags, parent.trace_state)
        else:
            if parent is not None and parent.is_valid:
                trace_id, flags = parent.trace_id, parent.trace_flags & _RANDOM
            else:
                parent, trace_id, flags = None, self._ids.generate_trace_id(), self._root_flags
            result = self._sampler.should_sample(context, trace_id, name, kind, attributes, links)
            if result.decision is Decision.RECORD_AND_SAMPLE:
                flags |= _SAMPLED
            own = self._new(trace_id, _FLAGS[flags], result.trace_state)
            if result.decision is Decision.DROP:
                return trace.NonRecordingSpan(own)
            attributes = result.attributes
        return LeanSpan(
            name,
            own,
            parent,
            self._usual.resource,
            attributes,
            links=links or (),
            kind=kind,
            start_time=start_time or time_ns(),
            instrumentation_scope=self._scope,
            processor=self._usual.span_processor,
        )

    def _new(self, trace_id: int, flags: TraceFlags, state: TraceState | None) -> SpanContext:
        return SpanContext(
            trace_id,
            self._ids.generate_span_id(),
            is_remote=False,
            trace_flags=flags,
            trace_state=state,
        )

    def start_as_current_span(self, *args: Any, **kwargs: Any) -> Any:
        return self._usual.start_as_current_span(*args, **kwargs)


_FLAGS: Final = tuple(TraceFlags(number) for number in range(4))


class LeanSpan(ReadableSpan, trace.Span):
    """A span that one thread uses; after its end it takes nothing more."""

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
        self._noted: dict[str, Any] = dict(attributes or ())
        self._happened: list[Event] = []
        super().__init__(
            name, context, parent, resource, self._noted, self._happened, **more, status=_UNSET
        )
        self._processor = processor

    def get_span_context(self) -> SpanContext:
        """Return what others need to refer to this span."""
        assert self._context is not None
        return self._context

    def is_recording(self) -> bool:
        return self._end_time is None

    def set_attribute(self, key: str, value: AttributeValue) -> None:
        if self._end_time is None:
            self._noted[key] = value

    def set_attributes(self, attributes: Mapping[str, AttributeValue]) -> None:
        """Note several facts."""
        if self._end_time is None:
            self._noted.update(attributes)

    def add_event(
        self, name: str, attributes: Attributes = None, timestamp: int | None = None
    ) -> None:
        """Note that something happens now."""
        if self._end_time is None:
            self._happened.append(Event(name, attributes, timestamp))

    def update_name(self, name: str) -> None:
        if self._end_time is None:
            self._name = name

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        """Say how it went; what is known to be well stays so."""
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
        """Note an error as an event."""
        facts = {
            "exception.type": type(exception).__qualname__,
            "exception.message": redact(str(exception)),
        }
        self.add_event("exception", {**facts, **(attributes or {})}, timestamp)

    def end(self, end_time: int | None = None) -> None:
        """End it, once, and hand it to whoever exports it."""
        if self._end_time is None:
            self._end_time = end_time or time_ns()
            self._processor.on_end(self)
