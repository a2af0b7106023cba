"""One trace from the caller to the spans of the server, and from an edit to each apply."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry import context, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.e2e.system import eventually, kit, python_server, running
from tests.servers import rest_api

from leaseway.telemetry.trace_file import SpanRecord, TraceCollector, otlp_environment, read_spans
from leaseway.wire.channels.trace_context import context_from

pytestmark = pytest.mark.usefixtures("leak_guard")

CHAIN = [("leaseway-kit", "server"), ("leaseway-worker", "client"), ("leaseway-worker", "server")]
RELOAD = {"config", "parse", "diff", "probe", "commit"}
ON_WORKER = {"leaseway.apply", "leaseway.probe"}


@pytest.fixture
def own_spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Collect the spans of this process, for one test."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield exporter
    provider.shutdown()


def chain(spans: list[SpanRecord], leaf: SpanRecord) -> list[SpanRecord]:
    """Return a span and its ancestors, the leaf first."""
    by_id = {span.span_id: span for span in spans}
    found = [leaf]
    while found[-1].parent_span_id in by_id:
        found.append(by_id[found[-1].parent_span_id])
    return found


async def test_a_call_is_one_trace_from_the_sdk_to_the_span_of_the_server(
    tmp_path: Path, own_spans: InMemorySpanExporter
) -> None:
    path = tmp_path / "spans.jsonl"
    async with TraceCollector(path) as collector:
        servers = {"kit": kit(tmp_path, **{"truely-stateless": True})}
        environment = {**otlp_environment(collector.endpoint), "OTEL_BSP_SCHEDULE_DELAY": "100"}
        async with running(tmp_path, servers, environment=environment) as (_, client):
            await client.call_tool("current_time", {"timezone": "UTC"})
            (sdk,) = [s for s in own_spans.get_finished_spans() if "current_time" in s.name]

            def arrived() -> bool:
                return len(of_trace()) == len(CHAIN)

            def of_trace() -> list[SpanRecord]:
                trace_id = f"{sdk.context.trace_id:032x}"
                return [span for span in read_spans(path) if span.trace_id == trace_id]

            await eventually(arrived)  # before the end: an ending process has little time to export
    spans = of_trace()
    leaf = next(s for s in spans if s.service == "leaseway-kit")
    names = [(span.service, span.kind) for span in chain(spans, leaf)]
    assert names == CHAIN
    assert chain(spans, leaf)[-1].parent_span_id == f"{sdk.context.span_id:016x}"
    mcp = chain(spans, leaf)[1]
    assert mcp.name == "tools/call current_time"
    assert mcp.attributes["mcp.method.name"] == "tools/call"
    assert mcp.attributes["gen_ai.tool.name"] == "current_time"
    assert mcp.attributes["gen_ai.operation.name"] == "execute_tool"
    assert mcp.attributes["network.transport"] == "pipe"
    assert mcp.attributes["mcp.protocol.version"] == "2026-07-28"
    assert sdk.attributes is not None
    assert sdk.attributes["gen_ai.tool.name"] == "current_time"
    assert not any("UTC" in json.dumps(span.attributes) for span in spans)


async def test_a_rest_api_gets_the_trace_of_the_caller_in_headers(
    tmp_path: Path, own_spans: InMemorySpanExporter
) -> None:
    path = tmp_path / "spans.jsonl"
    tool = {"name": "read", "method": "GET", "endpoint": "/users/1"}
    async with TraceCollector(path) as collector, rest_api.serve() as api:
        entry = {
            "transport": "http_api",
            "truely-stateless": True,
            "base_url": api.url,
            "http_tools": [tool],
        }
        environment = {**otlp_environment(collector.endpoint), "OTEL_BSP_SCHEDULE_DELAY": "100"}
        async with running(tmp_path, {"rest": entry}, environment=environment) as (_, client):
            await client.call_tool("read", {})
            (sdk,) = [s for s in own_spans.get_finished_spans() if "read" in s.name]
            trace_id = f"{sdk.context.trace_id:032x}"

            def spans() -> list[SpanRecord]:
                return [span for span in read_spans(path) if span.trace_id == trace_id]

            await eventually(lambda: len(spans()) == len(CHAIN) - 1)  # the API has no span
    version, trace_of_request, parent, flags = api.last.headers["traceparent"].split("-")
    assert (version, trace_of_request) == ("00", trace_id)
    assert int(flags, 16) & 1
    leaf = next(span for span in spans() if span.span_id == parent)
    assert [(span.service, span.kind) for span in chain(spans(), leaf)] == CHAIN[1:]
    assert chain(spans(), leaf)[-1].parent_span_id == f"{sdk.context.span_id:016x}"


async def test_a_reload_is_one_trace_from_the_file_to_the_workers_apply(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    async with TraceCollector(path) as collector:
        entry = python_server("echo_raw.py", **{"truely-stateless": True})
        environment = {**otlp_environment(collector.endpoint), "OTEL_BSP_SCHEDULE_DELAY": "100"}
        async with running(tmp_path, {"one": entry}, environment=environment):
            # The first load is traced like a reload.
            await eventually(lambda: names_of_reload(path, "leaseway-control-plane") >= RELOAD)
            await eventually(lambda: names_of_reload(path, "leaseway-worker") >= ON_WORKER)


def names_of_reload(path: Path, service: str) -> set[str]:
    """Return the first words of the names of a service's spans in the reload's trace."""
    spans = read_spans(path)
    traces = {span.trace_id for span in spans if span.name == "config reload"}
    return {
        span.name.split()[0]
        for span in spans
        if span.trace_id in traces and span.service == service
    }


async def test_a_server_gets_the_trace_context_of_the_caller(tmp_path: Path) -> None:
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    log = tmp_path / "messages"
    servers = {"raw": python_server("echo_raw.py", "--log", str(log), **{"truely-stateless": True})}
    async with running(tmp_path, servers) as (_, client):
        attached = context.attach(context_from(parent, ""))
        try:
            await client.call_tool("echo", {"text": "x"})
        finally:
            context.detach(attached)
    calls = [json.loads(line) for line in log.read_text().splitlines()]
    (call,) = [each_call for each_call in calls if each_call.get("method") == "tools/call"]
    received = call["params"]["_meta"]["traceparent"]
    assert received.split("-")[1] == parent.split("-")[1]
