"""The two spans of a traced call as one record: a call, and the request that it makes.

A busy worker ends thousands of calls a second, so a call notes only ids and times. What its spans
have in common with those of other calls is a `SpanShape`. The thread that exports makes spans of
all that (`lean.readable_spans`) or their encoding (`otlp_encoding`). Nothing here needs
OpenTelemetry's sdk.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import time_ns
from typing import Any, ClassVar, Final, Protocol

from opentelemetry import trace
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags

from leaseway.wire.channels.trace_context import FORM, context_from

SAMPLED: Final = 0x01
RANDOM: Final = 0x02
"""The flag of the W3C trace context for a random trace id."""
_PLAIN: Final = 55
"""The length of a `traceparent` of version 00, which a later version may exceed."""
_ANY_SAMPLED: Final = SpanContext(1, 1, is_remote=False, trace_flags=TraceFlags(SAMPLED))


class SpanShape:
    """What many spans have in common; spans of one shape share the object.

    Attributes:
        encoded: Its encoding once it was exported; only the thread that exports uses it.
    """

    __slots__ = ("attributes", "encoded", "kind", "name")

    def __init__(self, name: str, kind: SpanKind, attributes: Mapping[str, Any]) -> None:
        self.name = name
        self.kind = kind
        self.attributes = attributes
        self.encoded = b""


class PairSource(Protocol):
    """What the pairs of a process have in common, and where they go.

    Attributes:
        root_flags: The flags of a trace that begins here, besides the sampled one.
    """

    root_flags: int

    def new_trace_id(self) -> int:
        """Return the id of a new trace."""

    def new_span_id(self) -> int:
        """Return the id of a new span."""

    def export(self, pair: SpanPair) -> None:
        """Queue an ended pair for the exporters."""


class SpanPair:
    """A recorded span and, once it is started, its child. Used by one thread until it ends.

    Attributes:
        source: Its origin, with the resource and scope of its spans.
        trace_id: 32 hex digits.
        parent_id: The remote parent's id in 16 hex digits; empty for the first span of a trace.
        flags: The W3C trace flags of both.
        state: The W3C trace state of both; usually empty.
        outer_id: Its id, in 16 hex digits.
        started: When it started, in nanoseconds since 1970.
        inner: The shape of the inner span; None if it was never started.
        inner_started: When it started.
        own: An attribute that only the inner span has, or None.
        ended: When both ended.
        outcome: Attributes of both that tell how it failed, or None.
        failure: The description of the status of both if `outcome` is given.
        events: Names and times of events of the outer span, or None.
    """

    __slots__ = (
        "ended",
        "events",
        "failure",
        "flags",
        "inner",
        "inner_id",
        "inner_started",
        "outcome",
        "outer",
        "outer_id",
        "own",
        "parent_id",
        "source",
        "started",
        "state",
        "trace_id",
    )

    context: ClassVar[SpanContext] = _ANY_SAMPLED
    """All that a batch processor reads of a span: that it is sampled."""

    def __init__(
        self, source: PairSource, outer: SpanShape, parent: tuple[str, str, int, str] | None
    ) -> None:
        self.source = source
        if parent is None:
            self.trace_id, self.parent_id = f"{source.new_trace_id():032x}", ""
            self.flags, self.state = source.root_flags | SAMPLED, ""
        else:
            self.trace_id, self.parent_id, flags, self.state = parent
            self.flags = flags & RANDOM | SAMPLED
        self.outer = outer
        self.outer_id = f"{source.new_span_id():016x}"
        self.inner: SpanShape | None = None
        self.inner_id = ""
        self.inner_started = self.ended = 0
        self.own: tuple[str, Any] | None = None
        self.outcome: Mapping[str, Any] | None = None
        self.failure = ""
        self.events: list[tuple[str, int]] | None = None
        self.started = time_ns()

    @property
    def outer_traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.outer_id}-{self.flags:02x}"

    @property
    def inner_traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.inner_id}-{self.flags:02x}"

    def add_event(self, name: str) -> None:
        """Add an event to the outer span."""
        if self.events is None:
            self.events = []
        self.events.append((name, time_ns()))

    def start_inner(self, shape: SpanShape) -> None:
        self.inner = shape
        self.inner_id = f"{self.source.new_span_id():016x}"
        self.inner_started = time_ns()

    def end_both(self) -> None:
        """End the spans and queue them for the exporters."""
        self.ended = time_ns()
        self.source.export(self)


def parent_of(traceparent: str, tracestate: str) -> tuple[str, str, int, str] | None:
    """Return the ids, flags and state of a W3C trace context; None if it is none."""
    if not traceparent:
        return None
    if not tracestate and len(traceparent) == _PLAIN and traceparent.startswith("00-"):
        found = FORM.match(traceparent)
        if found is not None and found[1].strip("0") and found[2].strip("0"):
            return found[1], found[2], int(found[3], 16), ""
        return None
    context = trace.get_current_span(context_from(traceparent, tracestate)).get_span_context()
    if not context.is_valid:
        return None
    state = context.trace_state.to_header() if context.trace_state else ""
    return f"{context.trace_id:032x}", f"{context.span_id:016x}", context.trace_flags, state
