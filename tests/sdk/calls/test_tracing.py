"""Spans of calls, and the trace context that is sent with them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from opentelemetry import context, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, StatusCode, TraceFlags
from opentelemetry.trace.span import TraceState
from tests.sdk.fakes import FakeControlPlane, FakeWorker, never, until

from leaseway.sdk import AsyncClient, Client, DeadlineExceeded, InvalidArguments, ServerError
from leaseway.wire.errors import Fault, Reason


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Install a recording provider for one test."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield exporter
    provider.shutdown()


def only(exporter: InMemorySpanExporter) -> ReadableSpan:
    (span,) = exporter.get_finished_spans()
    return span


def attributes(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})


async def test_a_call_has_a_span_and_its_context_goes_along(
    client: AsyncClient, worker: FakeWorker, spans: InMemorySpanExporter
) -> None:
    await client.call_tool("time_now", {"password": "hunter2"})
    span = only(spans)
    assert (span.name, span.kind) == ("execute_tool time_now", SpanKind.CLIENT)
    shown = attributes(span)
    assert shown["gen_ai.operation.name"] == "execute_tool"
    assert shown["gen_ai.tool.name"] == "time_now"
    assert shown["leaseway.tenant"] == "default"
    assert shown["leaseway.agent"] == "billing"
    assert shown["leaseway.server"] == "time"
    assert shown["leaseway.worker"] == "w1"
    assert str(shown["leaseway.session"]).startswith("client-")
    assert "hunter2" not in span.to_json()
    assert span.context is not None
    version, trace_id, span_id, flags = worker.calls[0].traceparent.split("-")
    assert (version, int(flags, 16) & 1) == ("00", 1)
    assert (int(trace_id, 16), int(span_id, 16)) == (span.context.trace_id, span.context.span_id)
    assert [event.name for event in span.events] == ["leaseway.resolve", "leaseway.resolved"]


async def test_the_callers_span_is_the_parent(
    client: AsyncClient, spans: InMemorySpanExporter
) -> None:
    with trace.get_tracer("test").start_as_current_span("outer") as outer:
        await client.call_tool("time_now")
    inner = spans.get_finished_spans()[0]
    assert inner.parent is not None
    assert inner.parent.span_id == outer.get_span_context().span_id


async def test_waiting_for_a_lease_shows(client: AsyncClient, spans: InMemorySpanExporter) -> None:
    result = await client.session("dialog").call_tool("desk_open")
    assert result.new_lease is not None
    span = only(spans)
    assert attributes(span)["leaseway.session"] == "dialog"
    assert attributes(span)["leaseway.lease"] == result.new_lease.id
    assert [event.name for event in span.events][2:] == ["leaseway.place", "leaseway.placed"]


async def test_a_failure_names_its_reason(
    client: AsyncClient, worker: FakeWorker, spans: InMemorySpanExporter
) -> None:
    worker.faults = [Fault(Reason.INVALID_ARGUMENTS, "Bad.")]
    with pytest.raises(InvalidArguments):
        await client.call_tool("time_now")
    span = only(spans)
    assert span.status.status_code is StatusCode.ERROR
    assert attributes(span)["error.type"] == "INVALID_ARGUMENTS"
    assert attributes(span)["rpc.response.status_code"] == "INVALID_ARGUMENT"


async def test_the_error_message_is_not_in_the_span(
    client: AsyncClient, worker: FakeWorker, spans: InMemorySpanExporter
) -> None:
    """A server's error text and its stderr repeat arguments.

    See design.md#traces-metrics-and-logs: none in spans.
    """
    worker.faults = [Fault(Reason.SERVER_ERROR, "No user has the password hunter2.")]
    with pytest.raises(ServerError):
        await client.call_tool("time_now", {"password": "hunter2"})
    span = only(spans)
    assert span.status.description == "SERVER_ERROR"
    assert "hunter2" not in span.to_json()


async def test_a_retry_shows(
    client: AsyncClient, worker: FakeWorker, spans: InMemorySpanExporter
) -> None:
    worker.faults = [Fault(Reason.OVERLOADED, "Full.", retry_delay=0.001)]
    await client.call_tool("time_now")
    assert "leaseway.retry" in [event.name for event in only(spans).events]


async def test_a_cancelled_call_ends_its_span(
    client: AsyncClient, worker: FakeWorker, spans: InMemorySpanExporter
) -> None:
    worker.answer = never
    task = asyncio.create_task(client.call_tool("time_now"))
    await until(lambda: worker.calls)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert attributes(only(spans))["error.type"] == "CANCELLED"


async def test_a_call_without_time_has_a_span_too(
    client: AsyncClient, spans: InMemorySpanExporter
) -> None:
    with pytest.raises(DeadlineExceeded):
        await client.call_tool("time_now", timeout=0)
    assert attributes(only(spans))["error.type"] == "DEADLINE_EXCEEDED"


async def test_an_unsampled_call_passes_its_context_on_without_a_record(
    client: AsyncClient, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", TracerProvider(sampler=ALWAYS_OFF))
    await client.call_tool("time_now")
    assert int(worker.calls[0].traceparent.rpartition("-")[2], 16) & 1 == 0


async def test_without_a_provider_the_context_of_the_caller_goes_along(
    client: AsyncClient, worker: FakeWorker
) -> None:
    remote = SpanContext(
        trace_id=0x1234,
        span_id=0x56,
        is_remote=True,
        trace_flags=TraceFlags(1),
        trace_state=TraceState([("vendor", "x")]),
    )
    token = context.attach(trace.set_span_in_context(NonRecordingSpan(remote)))
    try:
        await client.call_tool("time_now")
    finally:
        context.detach(token)
    assert worker.calls[0].traceparent == f"00-{0x1234:032x}-{0x56:016x}-01"
    assert worker.calls[0].tracestate == "vendor=x"


async def test_without_any_trace_nothing_goes_along(
    client: AsyncClient, worker: FakeWorker
) -> None:
    await client.call_tool("time_now")
    assert (worker.calls[0].traceparent, worker.calls[0].tracestate) == ("", "")


async def test_a_later_tracer_provider_is_used(
    client: AsyncClient, worker: FakeWorker, request: pytest.FixtureRequest
) -> None:
    await client.call_tool("time_now")
    exporter: InMemorySpanExporter = request.getfixturevalue("spans")
    await client.call_tool("time_now")
    assert only(exporter).name == "execute_tool time_now"


async def test_the_span_of_a_thread_is_the_parent_of_its_synchronous_call(
    plane: FakeControlPlane, spans: InMemorySpanExporter
) -> None:
    def call() -> int:
        with Client(plane.address) as client, trace.get_tracer("t").start_as_current_span("outer"):
            client.call_tool("time_now")
            return trace.get_current_span().get_span_context().span_id

    outer = await asyncio.to_thread(call)
    inner = spans.get_finished_spans()[0]
    assert inner.parent is not None
    assert inner.parent.span_id == outer
