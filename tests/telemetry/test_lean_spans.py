"""Lean spans equal standard spans: the same script makes the same spans with both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, DEFAULT_ON, Sampler
from opentelemetry.trace import Link, SpanKind, Status, StatusCode, Tracer

from leaseway.telemetry.spans.lean import LeanSpan, LeanTracerProvider, all_readable
from leaseway.telemetry.spans.pairs import SpanPair, SpanShape, parent_of
from leaseway.wire.channels.trace_context import context_from, traceparent_of

SAMPLED = f"00-{'a' * 32}-{'b' * 16}-01"
UNSAMPLED = f"00-{'a' * 32}-{'b' * 16}-00"
Script = Callable[[Tracer], None]


def record(
    kind: type[TracerProvider], script: Script, sampler: Sampler = DEFAULT_ON
) -> Sequence[ReadableSpan]:
    """Return the finished spans of a script with one kind of provider."""
    kept = InMemorySpanExporter()
    provider = kind(
        sampler=sampler, resource=Resource({"service.name": "unit"}), shutdown_on_exit=False
    )
    provider.add_span_processor(SimpleSpanProcessor(kept))
    script(provider.get_tracer("scope", "1.2"))
    return kept.get_finished_spans()


def facts(span: ReadableSpan, all_spans: Sequence[ReadableSpan]) -> dict[str, Any]:
    """Return the content of a span without times, with names instead of ids."""
    names = {other.context.span_id: other.name for other in all_spans}
    parent = span.parent
    return {
        "name": span.name,
        "kind": span.kind,
        "parent": parent and names.get(parent.span_id, f"{parent.span_id:x}"),
        "remote": parent and parent.is_remote,
        "flags": int(span.context.trace_flags),
        "state": span.context.trace_state.to_header(),
        "attributes": dict(span.attributes or {}),
        "events": [(event.name, dict(event.attributes or {})) for event in span.events],
        "links": [(link.context.span_id, dict(link.attributes or {})) for link in span.links],
        "status": (span.status.status_code, span.status.description),
        "scope": span.instrumentation_scope,
        "resource": span.resource,
        "in order": (span.start_time or 0) <= (span.end_time or 0),
    }


def check_same(script: Script, sampler: Sampler = DEFAULT_ON) -> None:
    lean, standard = (
        record(kind, script, sampler) for kind in (LeanTracerProvider, TracerProvider)
    )
    assert [facts(span, lean) for span in lean] == [facts(span, standard) for span in standard]


def a_call(tracer: Tracer) -> None:
    outer = tracer.start_span(
        "outer",
        context=context_from(SAMPLED, "vendor=1"),
        kind=SpanKind.SERVER,
        attributes={"text": "a", "number": 1},
    )
    outer.add_event("waited", {"seconds": 1})
    inner = tracer.start_span(
        "inner", context=trace.set_span_in_context(outer), kind=SpanKind.CLIENT
    )
    inner.set_attribute("id", "7")
    inner.set_attributes({"more": True, "id": "8"})
    inner.set_status(Status(StatusCode.ERROR, "it broke"))
    inner.end()
    outer.set_status(StatusCode.ERROR, "it broke")
    outer.update_name("renamed")
    outer.end()


def a_root(tracer: Tracer) -> None:
    tracer.start_span("root", context=Context()).end()


def a_late_change(tracer: Tracer) -> None:
    span = tracer.start_span("span", attributes={"kept": 1})
    span.set_status(StatusCode.OK)
    span.set_status(StatusCode.ERROR, "too late: it went well")
    span.end()
    span.set_attribute("late", 1)
    span.set_attributes({"later": 1})
    span.add_event("late")
    span.end()


def a_current_one(tracer: Tracer) -> None:
    with tracer.start_as_current_span("outer"):
        linked = trace.get_current_span(context_from(SAMPLED)).get_span_context()
        with tracer.start_span("inner", links=[Link(linked, {"why": "retry"})]) as span:
            span.add_event("within")


@pytest.mark.parametrize("script", [a_call, a_root, a_current_one])
@pytest.mark.parametrize("sampler", [DEFAULT_ON, ALWAYS_ON, ALWAYS_OFF])
def test_the_same_script_makes_the_same_spans(script: Script, sampler: Sampler) -> None:
    check_same(script, sampler)


@pytest.mark.filterwarnings("ignore")
def test_an_ended_span_ignores_changes() -> None:
    check_same(a_late_change)


def test_an_unsampled_parent_makes_no_span_and_keeps_its_context() -> None:
    def script(tracer: Tracer) -> None:
        span = tracer.start_span("span", context=context_from(UNSAMPLED, "vendor=1"))
        assert not span.is_recording()
        assert traceparent_of(span).startswith(f"00-{'a' * 32}-")
        assert traceparent_of(span).endswith("-00")
        assert span.get_span_context().trace_state.get("vendor") == "1"

    assert record(LeanTracerProvider, script) == ()


def test_a_recorded_exception_is_an_event() -> None:
    def script(tracer: Tracer) -> None:
        span = tracer.start_span("span")
        span.record_exception(ValueError("no"))
        span.end()

    (span,) = record(LeanTracerProvider, script)
    (event,) = span.events
    assert event.name == "exception"
    assert dict(event.attributes or {}) == {
        "exception.type": "ValueError",
        "exception.message": "no",
    }


def test_a_span_can_be_formatted_as_json() -> None:
    spans = record(LeanTracerProvider, a_call)
    assert '"name": "renamed"' in spans[1].to_json()


@pytest.mark.parametrize(
    ("variable", "is_lean"), [("OTEL_ATTRIBUTE_COUNT_LIMIT", False), ("OTEL_OTHER", True)]
)
def test_a_limit_variable_makes_standard_spans(
    variable: str, is_lean: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "1")
    seen: list[bool] = []

    def script(tracer: Tracer) -> None:
        span = tracer.start_span("span", attributes={"a": 1, "b": 2})
        seen.append(isinstance(span, LeanSpan))
        span.end()

    (span,) = record(LeanTracerProvider, script)
    assert seen == [is_lean]
    assert len(span.attributes or {}) == (2 if is_lean else 1)


def _make_pair(source: Any, *, traceparent: str, tracestate: str, fails: bool) -> None:
    pair = SpanPair(source, OUTER, parent_of(traceparent, tracestate))
    pair.add_event("waited")
    pair.start_inner(INNER)
    pair.own = ("id", "7")
    if fails:
        pair.outcome, pair.failure = {"error.type": "X"}, "it broke"
    pair.end_both()


def _make_spans(tracer: Tracer, *, traceparent: str, tracestate: str, fails: bool) -> None:
    outer = tracer.start_span(
        OUTER.name,
        context=context_from(traceparent, tracestate),
        kind=OUTER.kind,
        attributes=OUTER.attributes,
    )
    outer.add_event("waited")
    inner = tracer.start_span(
        INNER.name,
        context=trace.set_span_in_context(outer),
        kind=INNER.kind,
        attributes=INNER.attributes,
    )
    inner.set_attribute("id", "7")
    for span in (inner, outer):
        if fails:
            span.set_attribute("error.type", "X")
            span.set_status(StatusCode.ERROR, "it broke")
        span.end()


class KeptItems(SpanProcessor):
    """Keeps all that ends."""

    def __init__(self) -> None:
        self.ended: list[Any] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.ended.append(span)


def ended_pair(**context: Any) -> list[Any]:
    kept = KeptItems()
    provider = LeanTracerProvider(
        resource=Resource({"service.name": "unit"}), shutdown_on_exit=False
    )
    provider.add_span_processor(kept)
    pairs = provider.span_pairs("scope", "1.2")
    assert pairs is not None
    _make_pair(pairs, **context)
    return kept.ended


OUTER = SpanShape("outer", SpanKind.SERVER, {"text": "a", "number": 1})
INNER = SpanShape("inner", SpanKind.CLIENT, {"server": "s"})
LATER = f"cc-{'a' * 32}-{'b' * 16}-01-more"


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize(
    ("traceparent", "tracestate"),
    [
        ("", ""),
        ("", "vendor=1"),
        (SAMPLED, ""),
        (SAMPLED, "vendor=1,other=2"),
        (f"00-{'a' * 32}-{'b' * 16}-03", ""),
        (LATER, ""),
        (f"{SAMPLED}-more", ""),
        (f"00-{'0' * 32}-{'b' * 16}-01", ""),
        (f"00-{'a' * 32}-{'0' * 16}-01", ""),
        (f"ff-{'a' * 32}-{'b' * 16}-01", ""),
    ],
)
def test_a_pair_is_the_spans_that_the_standard_makes(
    traceparent: str, tracestate: str, fails: bool
) -> None:
    context: dict[str, Any] = {"traceparent": traceparent, "tracestate": tracestate, "fails": fails}
    standard = record(TracerProvider, partial(_make_spans, **context))
    spans = list(all_readable(ended_pair(**context)))
    assert [facts(span, spans) for span in spans] == [facts(span, standard) for span in standard]


@pytest.mark.parametrize(
    ("settings", "has_pairs"),
    [
        ({}, True),
        ({"OTEL_TRACES_SAMPLER": "always_on"}, True),
        ({"OTEL_TRACES_SAMPLER": "parentbased_traceidratio"}, False),
        ({"OTEL_SPAN_EVENT_COUNT_LIMIT": "9"}, False),
    ],
)
def test_spans_are_made_as_pairs_if_no_setting_concerns_each_of_them(
    settings: dict[str, str], has_pairs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    provider = LeanTracerProvider(shutdown_on_exit=False)
    assert (provider.span_pairs("scope", "1.2") is not None) is has_pairs
