"""A sampled call has two spans with the conventions' names; an unsampled one has none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from leaseway.data_plane.calls import tracing as call_trace
from leaseway.data_plane.sync import client as sync_client
from leaseway.data_plane.sync import probes
from leaseway.spec.codec import encode_spec, key_to_proto
from leaseway.telemetry.spans.lean import LeanTracerProvider, all_readable
from leaseway.v1 import sync_pb2
from leaseway.wire.errors import Fault, Reason

Bench = Any
TRACE = "0af7651916cd43dd8448eb211c80319c"
SAMPLED = f"00-{TRACE}-b7ad6b7169203331-01"


class KeptSpans(InMemorySpanExporter):
    """Keeps spans, and those of pairs."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return super().export(list(all_readable(spans)))


@pytest.fixture(params=[TracerProvider, LeanTracerProvider])
def spans(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[InMemorySpanExporter]:
    """Record the worker's spans, without a provider that outlives the test.

    A provider of a program around the worker gets spans, and the worker's own gets pairs.
    """
    exporter = KeptSpans()
    provider = request.param(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    for module in (call_trace, sync_client, probes):
        monkeypatch.setattr(module, "_tracer", provider.get_tracer("test"))
    monkeypatch.setattr(call_trace, "tracing_active", lambda: True)
    if isinstance(provider, LeanTracerProvider):
        pairs = provider.span_pairs("test", "1")
        assert pairs is not None
        monkeypatch.setattr(call_trace, "span_pairs", lambda _scope: pairs)
    yield exporter
    provider.shutdown()


def by_name(spans: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in spans.get_finished_spans()}


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_a_sampled_call_is_traced_down_to_the_server(
    spans: InMemorySpanExporter, bench: Bench
) -> None:
    await bench.hold("time")
    call = await bench.answer_call("time", traceparent=SAMPLED, agent="billing", session="s1")
    found = by_name(spans)
    worker, request = found["leaseway.call"], found["tools/call echo"]
    assert (worker.kind, request.kind) == (SpanKind.SERVER, SpanKind.CLIENT)
    assert worker.parent is not None
    assert request.parent is not None
    assert f"{worker.parent.trace_id:032x}" == TRACE
    assert f"{worker.parent.span_id:016x}" == "b7ad6b7169203331"
    assert worker.context is not None
    assert request.context is not None
    assert request.parent.span_id == worker.context.span_id
    assert call.request.meta == {
        "traceparent": f"00-{TRACE}-{request.context.span_id:016x}-01",
    }
    assert attributes(request) | {
        "mcp.method.name": "tools/call",
        "gen_ai.tool.name": "echo",
        "gen_ai.operation.name": "execute_tool",
        "mcp.protocol.version": "2025-11-25",
        "network.transport": "pipe",
        "leaseway.server": "time",
    } == attributes(request)
    assert attributes(worker) | {
        "leaseway.tenant": "default",
        "leaseway.agent": "billing",
        "leaseway.session": "s1",
        "leaseway.server": "time",
        "leaseway.worker": "w1",
    } == attributes(worker)


async def test_the_request_names_the_session_that_its_server_opened(
    spans: InMemorySpanExporter, bench: Bench
) -> None:
    await bench.serve("time")
    await bench.caller().call("time", traceparent=SAMPLED)
    bench.servers.opened[0].mcp_session = "session-1"
    await bench.caller().call("time", traceparent=SAMPLED)
    requests = [
        finished_span
        for finished_span in spans.get_finished_spans()
        if finished_span.name == "tools/call echo"
    ]
    sessions = [attributes(request).get("mcp.session.id") for request in requests]
    assert sessions == [None, "session-1"]


async def test_an_unsampled_call_has_no_span(spans: InMemorySpanExporter, bench: Bench) -> None:
    await bench.serve("time")
    spans.clear()
    await bench.caller().call("time", traceparent=SAMPLED[:-1] + "0")
    assert not spans.get_finished_spans()


@pytest.fixture
def no_samples(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Let the worker's own provider drop all spans."""
    exporter = KeptSpans()
    provider = LeanTracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(call_trace, "_tracer", provider.get_tracer("test"))
    monkeypatch.setattr(call_trace, "tracing_active", lambda: True)
    monkeypatch.setattr(call_trace, "span_pairs", partial(provider.span_pairs, version="1"))
    return exporter


async def test_a_call_that_the_worker_does_not_sample_sends_an_unsampled_trace_context(
    no_samples: InMemorySpanExporter, bench: Bench
) -> None:
    await bench.hold("time")
    call = await bench.answer_call("time")
    assert int(call.request.meta["traceparent"][-2:], 16) & 1 == 0
    assert not no_samples.get_finished_spans()


async def test_a_call_without_a_trace_begins_one(spans: InMemorySpanExporter, bench: Bench) -> None:
    await bench.serve("time")
    await bench.caller().call("time")
    assert by_name(spans)["leaseway.call"].parent is None


async def test_waiting_for_a_lease_is_an_event_and_the_lease_an_attribute(
    spans: InMemorySpanExporter, bench: Bench
) -> None:
    await bench.serve("db", shared=False)
    lease = (await bench.caller().call("db", session="s1", traceparent=SAMPLED)).lease
    found = by_name(spans)
    names = [event.name for event in found["leaseway.call"].events]
    assert names == ["waiting for a lease", "the lease is held"]
    assert attributes(found["tools/call echo"])["leaseway.lease"] == lease.id


async def test_how_a_call_failed_is_on_both_spans(
    spans: InMemorySpanExporter, bench: Bench
) -> None:
    await bench.hold("time")
    caller = bench.caller()
    failing = await caller.begin("time", traceparent=SAMPLED)
    await bench.wait_for_calls()
    fault = Fault(Reason.SERVER_ERROR, "no", "yes", metadata={"code": "-32050"})
    bench.servers.opened[0].calls[0].fail(fault)
    await caller.result(failing)
    for span in by_name(spans).values():
        if span.name in ("leaseway.call", "tools/call echo"):
            assert attributes(span)["error.type"] == "-32050"
            assert attributes(span)["rpc.response.status_code"] == "-32050"
            assert span.status.status_code is StatusCode.ERROR


async def test_an_error_of_the_tool_is_seen_in_its_trace(
    spans: InMemorySpanExporter, bench: Bench
) -> None:
    await bench.hold("time")
    await bench.answer_call("time", b'{"isError":true}', is_error=True, traceparent=SAMPLED)
    assert attributes(by_name(spans)["tools/call echo"])["error.type"] == "tool_error"


async def test_argument_values_are_on_no_span(spans: InMemorySpanExporter, bench: Bench) -> None:
    await bench.serve("time")
    caller = bench.caller()
    await caller.call("time", arguments=b'{"text": "hunter2"}', traceparent=SAMPLED)
    await caller.refused("time", arguments=b'{"text": ["hunter2"]}', traceparent=SAMPLED)
    assert spans.get_finished_spans()
    for span in spans.get_finished_spans():
        assert "hunter2" not in span.to_json()


async def test_a_reload_is_traced_through_probe_and_apply(
    spans: InMemorySpanExporter, bench: Bench
) -> None:
    spec = bench.spec("time")
    probe = sync_pb2.Probe(
        id=1,
        key=key_to_proto(spec.key),
        spec=encode_spec(spec),
        launch_hash=spec.launch_hash,
        traceparent=SAMPLED,
    )
    bench.plane.send(probe=probe)
    await bench.plane.expect("probe_result")
    await bench.push(bench.upsert(spec), traceparent=SAMPLED)
    found = by_name(spans)
    for name in ("leaseway.probe", "leaseway.apply"):
        parent = found[name].parent
        assert parent is not None
        assert f"{parent.trace_id:032x}" == TRACE
    assert attributes(found["leaseway.apply"])["leaseway.registry_version"] == 1


async def test_other_requests_are_named_by_their_method(
    spans: InMemorySpanExporter, bench: Bench
) -> None:
    spec = bench.spec("notes")
    upsert = bench.upsert(spec)
    upsert.toolset.recorded_prompts.append(b'{"name":"greet"}')
    upsert.toolset.prompts.add(original_name="greet", name="greet")
    await bench.push(upsert)
    caller = bench.caller()
    for method, name, params in (
        ("prompts/get", "greet", b'{"name": "greet"}'),
        ("resources/read", "note://a", b'{"uri": "note://a"}'),
    ):
        await caller.call("notes", name, method=method, arguments=params, traceparent=SAMPLED)
    found = by_name(spans)
    prompt, resource = found["prompts/get greet"], found["resources/read"]
    assert attributes(prompt) | {
        "mcp.method.name": "prompts/get",
        "gen_ai.prompt.name": "greet",
    } == attributes(prompt)
    assert attributes(resource) | {
        "mcp.method.name": "resources/read",
        "mcp.resource.uri": "note://a",
    } == attributes(resource)
    for span in spans.get_finished_spans():
        assert "gen_ai.tool.name" not in attributes(span)
