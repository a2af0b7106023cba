"""The encoder of spans equals the standard one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.common.trace_encoder import (
    encode_spans as encode_by_standard,
)
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link, SpanKind, Status, StatusCode
from tests.conftest import BOUND

from leaseway.telemetry.spans.lean import LeanTracerProvider, all_readable
from leaseway.telemetry.spans.otlp_encoding import OtlpSpanExporter, encode_spans
from leaseway.telemetry.spans.pairs import SpanPair, SpanShape, parent_of
from leaseway.wire.channels.trace_context import context_from

PARENT = f"00-{'a' * 32}-{'b' * 16}-01"


class Recorder:
    """A provider that keeps its ended spans."""

    def __init__(self, service: str = "unit") -> None:
        self._kept = InMemorySpanExporter()
        self.provider = TracerProvider(
            resource=Resource({"service.name": service, "number": 7}), shutdown_on_exit=False
        )
        self.provider.add_span_processor(SimpleSpanProcessor(self._kept))
        self.tracer = self.provider.get_tracer("scope", "1.2", attributes={"team": "core"})

    def record(self, attributes: Mapping[str, Any] | None = None, **more: Any) -> None:
        self.tracer.start_span("work", attributes=attributes, **more).end()

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        return self._kept.get_finished_spans()


def _request(spans: Sequence[ReadableSpan | SpanPair]) -> ExportTraceServiceRequest:
    return ExportTraceServiceRequest.FromString(encode_spans(spans))


def check_same(spans: Sequence[ReadableSpan]) -> None:
    assert _request(spans) == encode_by_standard(spans)


@pytest.mark.parametrize(
    "value",
    [
        "ä",
        "",
        "long" * 5_000,
        3,
        -1,
        2**62,
        0.5,
        True,
        False,
        b"\x00\xff",
        None,
        ["a", "b"],
        [1, 2],
        {"k": [1.5]},
    ],
)
def test_an_attribute_of_any_type_is_encoded_like_the_standard(value: Any) -> None:
    recorder = Recorder()
    recorder.record({"key": value, "other": "text"})
    check_same(recorder.spans)


def test_half_of_a_surrogate_pair_costs_no_span() -> None:
    recorder = Recorder()
    recorder.record({"key": "bad \ud800", "keys": ["\udcff"]})
    recorder.record({"key": "good"})
    texts = [span.attributes[0].value.string_value for span in _encoded(recorder.spans)]
    assert texts == ["bad \\ud800", "good"]


def test_equal_values_of_different_types_keep_their_types() -> None:
    recorder = Recorder()
    for value in (1, True, 1.0, "1"):
        recorder.record({"key": value})
    kinds = [_attribute_kind(span) for span in _encoded(recorder.spans)]
    assert kinds == ["int_value", "bool_value", "double_value", "string_value"]


def test_parents_links_events_and_statuses_are_encoded_like_the_standard() -> None:
    recorder = Recorder()
    with recorder.tracer.start_as_current_span(
        "outer", kind=SpanKind.SERVER, context=context_from(PARENT, "vendor=1,other=2")
    ) as outer:
        linked = trace.get_current_span(context_from(PARENT)).get_span_context()
        with recorder.tracer.start_as_current_span(
            "inner", kind=SpanKind.CLIENT, links=[Link(linked, {"why": "retry"})]
        ) as inner:
            inner.add_event("waited", {"seconds": 0.5})
            inner.add_event("continued")
            inner.set_status(Status(StatusCode.ERROR, "it broke"))
        outer.set_status(StatusCode.OK)
    check_same(recorder.spans)


def test_spans_are_grouped_by_resource_and_scope_like_the_standard() -> None:
    first, second = Recorder("first"), Recorder("second")
    for recorder in (first, second):
        recorder.record()
        recorder.provider.get_tracer("another scope").start_span("more").end()
    check_same([*first.spans, *second.spans])


def test_an_empty_batch_makes_an_empty_request() -> None:
    check_same([])


@pytest.mark.parametrize("traceparent", ["", PARENT])
@pytest.mark.parametrize("own", [None, ("id", "7"), ("id", 7)])
@pytest.mark.parametrize("rare", ["", "event", "failure", "state", "alone"])
def test_a_pair_is_encoded_like_its_spans(
    traceparent: str, own: tuple[str, Any] | None, rare: str
) -> None:
    provider = LeanTracerProvider(resource=Resource({"service.name": "unit"}))
    source = provider.span_pairs("scope", "1.2")
    outer = SpanShape("outer", SpanKind.SERVER, {"text": "ä", "number": 1})
    inner = SpanShape("inner", SpanKind.CLIENT, {"server": "s"})
    pairs = []
    for _ in range(2):  # the second finds the encoded shapes
        assert source is not None
        state = "vendor=1" if rare == "state" else ""
        pair = SpanPair(source, outer, parent_of(traceparent, state))
        if rare == "event":
            pair.add_event("waited")
        if rare != "alone":
            pair.start_inner(inner)
            pair.own = own
        if rare == "failure":
            pair.outcome, pair.failure = {"error.type": "X"}, "it broke"
        pair.end_both()
        pairs.append(pair)
    assert _request(pairs) == encode_by_standard(list(all_readable(pairs)))


def test_the_exporter_sends_what_is_encoded() -> None:
    received: list[ExportTraceServiceRequest] = []

    class Collector(trace_service_pb2_grpc.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> ExportTraceServiceResponse:
            received.append(request)
            return ExportTraceServiceResponse()

    server = grpc.server(ThreadPoolExecutor(1))
    register: Any = trace_service_pb2_grpc.add_TraceServiceServicer_to_server
    register(Collector(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    recorder = Recorder()
    recorder.record({"key": "value"})
    exporter = OtlpSpanExporter(endpoint=f"127.0.0.1:{port}", insecure=True, timeout=BOUND)
    try:
        assert exporter.export(recorder.spans) is SpanExportResult.SUCCESS
    finally:
        exporter.shutdown()
        server.stop(None).wait(BOUND)
    assert received == [encode_by_standard(recorder.spans)]


def _encoded(spans: Sequence[ReadableSpan]) -> list[Span]:
    (resource,) = _request(spans).resource_spans
    (scope,) = resource.scope_spans
    return list(scope.spans)


def _attribute_kind(span: Span) -> str | None:
    return span.attributes[0].value.WhichOneof("value")
