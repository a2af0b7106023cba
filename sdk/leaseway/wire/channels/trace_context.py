"""The W3C trace context that travels with calls: its one reader and its one writer."""

from __future__ import annotations

import re
from typing import Final

from opentelemetry.context import Context
from opentelemetry.trace import Span, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from leaseway.wire.messages.mcp import TRACEPARENT, TRACESTATE

NO_TRACE: Final = ("", "")
"""The headers of a call without a trace."""

_PROPAGATOR: Final = TraceContextTextMapPropagator()
FORM: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
"""A `traceparent`, to `match`: the ids of the trace and the span, and the flags."""
_is_own_form: Final = re.compile(
    r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
).fullmatch
"""Whether a valid `traceparent` is written as `headers_of` would write it."""


def headers_of(span: Span) -> tuple[str, str]:
    """Return the `traceparent` and `tracestate` of a span; `NO_TRACE` if its context is invalid."""
    context = span.get_span_context()
    if not context.is_valid:
        return NO_TRACE
    flags = int(context.trace_flags)
    return (
        f"00-{context.trace_id:032x}-{context.span_id:016x}-{flags:02x}",
        context.trace_state.to_header() if context.trace_state else "",
    )


def traceparent_of(span: Span) -> str:
    """Return the `traceparent` of a span, or an empty text if its context is invalid."""
    return headers_of(span)[0]


def meta_from(traceparent: str, tracestate: str) -> dict[str, object]:
    """Return the members of `_meta` that carry a trace context (MCP, General fields)."""
    meta: dict[str, object] = {TRACEPARENT: traceparent}
    if tracestate:
        meta[TRACESTATE] = tracestate
    return meta


def context_from(traceparent: str, tracestate: str = "") -> Context:
    """Return the context that a peer sent, or an empty one for a new trace if it is invalid."""
    carrier = {TRACEPARENT: traceparent, TRACESTATE: tracestate}
    return _PROPAGATOR.extract(carrier) if traceparent else Context()


def continued(traceparent: str, tracestate: str = "") -> tuple[str, str]:
    """Return the headers that continue the trace of a peer, as `headers_of` its span would.

    They are `NO_TRACE` if what the peer sent is invalid.
    """
    if not tracestate and _is_own_form(traceparent):
        return traceparent, ""
    return headers_of(get_current_span(context_from(traceparent, tracestate)))


def ids_in(traceparent: str) -> tuple[str, str] | None:
    """Return the ids of the trace and the span in hex; None if the text is no `traceparent`."""
    found = FORM.match(traceparent)  # a caller may send any text, and later versions more parts
    return None if found is None else (found[1], found[2])


def is_sampled(traceparent: str) -> bool:
    """Return whether a `traceparent` has the sampled flag, without building a context."""
    found = FORM.match(traceparent)
    return found is not None and bool(int(found[3], 16) & 1)
