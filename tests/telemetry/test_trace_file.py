"""The trace file: spans of a real exporter are written, read and printed."""

from __future__ import annotations

import asyncio
import errno
import logging
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode
from tests.conftest import BOUND
from tests.ports import free_port

from leaseway.telemetry.trace_file import (
    SPAN_HEADER,
    SpanRecord,
    TraceCollector,
    format_tree,
    otlp_environment,
    read_spans,
)
from leaseway.telemetry.tracing import span_exporters
from leaseway.wire.channels.endpoint import Endpoint


def _export(endpoint: Endpoint, times: int = 1, token: str = "") -> None:
    provider = TracerProvider(resource=Resource({"service.name": "unit"}), shutdown_on_exit=False)
    exporter = OTLPSpanExporter(
        endpoint=f"http://{endpoint}", insecure=True, headers={SPAN_HEADER: token}
    )
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("t")
    for _ in range(times):
        with (
            tracer.start_as_current_span("outer", kind=SpanKind.CLIENT),
            tracer.start_as_current_span("inner") as inner,
        ):
            inner.set_attributes({"text": "ä", "number": 3, "flag": True, "list": ["a", "b"]})
            inner.add_event("waited", {"seconds": 0.5})
            inner.set_status(Status(StatusCode.ERROR, "it broke"))
    provider.shutdown()


async def test_exported_spans_are_read_back_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    async with asyncio.timeout(BOUND), TraceCollector(path) as collector:
        assert collector.endpoint.is_loopback
        assert path.stat().st_mode & 0o077 == 0, "the file is private"
        await asyncio.to_thread(_export, collector.endpoint)

    inner, outer = read_spans(path)
    assert (outer.name, outer.kind, outer.service) == ("outer", "client", "unit")
    assert outer.parent_span_id == ""
    assert (inner.trace_id, inner.parent_span_id) == (outer.trace_id, outer.span_id)
    assert inner.attributes == {"text": "ä", "number": 3, "flag": True, "list": ["a", "b"]}
    assert [(event.name, event.attributes) for event in inner.events] == [
        ("waited", {"seconds": 0.5})
    ]
    assert (inner.status, inner.status_message) == ("error", "it broke")
    assert 0 <= inner.duration <= outer.duration


async def test_a_collector_of_this_machine_is_reached_past_the_proxies_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trace.jsonl"
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    async with asyncio.timeout(BOUND), TraceCollector(path) as collector:
        for name, value in otlp_environment(collector.endpoint).items():
            monkeypatch.setenv(name, value)
        [exporter] = span_exporters()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        span = provider.get_tracer("t").start_span("sent")
        await asyncio.to_thread(span.end)
        await asyncio.to_thread(provider.shutdown)
    assert [span.name for span in read_spans(path)] == ["sent"]


async def test_spans_without_the_collectors_token_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    async with asyncio.timeout(BOUND), TraceCollector(path, token="right") as collector:
        for token in ("", "wrong"):
            await asyncio.to_thread(_export, collector.endpoint, 1, token)
        assert path.stat().st_size == 0
        await asyncio.to_thread(_export, collector.endpoint, 1, "right")
    assert len(list(read_spans(path))) == 2


async def test_a_full_file_accepts_no_spans_and_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "trace.jsonl"
    with caplog.at_level(logging.WARNING):
        async with asyncio.timeout(BOUND), TraceCollector(path, max_bytes=900) as collector:
            await asyncio.to_thread(_export, collector.endpoint, 5)
    assert 0 < path.stat().st_size <= 900
    assert len(read_spans(path)) >= 1
    assert [r.message for r in caplog.records].count(
        "The trace file has reached its maximum size; further spans are dropped. Move it away and "
        "start again."
    ) == 1


async def test_a_second_run_appends(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    for _ in range(2):
        async with asyncio.timeout(BOUND), TraceCollector(path) as collector:
            await asyncio.to_thread(_export, collector.endpoint)
    assert len({span.trace_id for span in read_spans(path)}) == 2


def test_the_environment_points_at_the_collector() -> None:
    environment = otlp_environment(Endpoint("127.0.0.1", 4317))
    assert environment["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] == "http://127.0.0.1:4317"
    assert environment["OTEL_TRACES_EXPORTER"] == "otlp"


def test_an_unfinished_line_is_skipped_and_a_foreign_file_is_rejected(
    tmp_path: Path,
) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"half": ')
    assert read_spans(path) == []
    path.write_text('{"not": "a span"}\n')
    with pytest.raises(ValueError, match="line 1 is not a span"):
        read_spans(path)


async def test_a_truncated_line_loses_only_its_own_span(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    for left in (2, 3):
        async with asyncio.timeout(BOUND), TraceCollector(path) as collector:
            await asyncio.to_thread(_export, collector.endpoint)
        assert len(read_spans(path)) == left
        path.write_bytes(path.read_bytes()[:-20])  # the process was killed while it wrote


async def test_a_full_disk_truncates_one_line_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "trace.jsonl"

    class Full:
        def __init__(self, file: Any) -> None:
            self.file, self.has_room, self.is_torn = file, True, False

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

        def write(self, data: Any) -> int:
            if self.has_room:
                return int(self.file.write(data))
            self.is_torn = not self.is_torn
            if self.is_torn:
                return int(self.file.write(data[:10]))
            raise OSError(errno.ENOSPC, "No space left on device")

    async with asyncio.timeout(BOUND), TraceCollector(path) as collector:
        disk = Full(collector._file)
        collector._file = disk  # type: ignore[assignment]
        for disk.has_room in (True, False, False, True):
            await asyncio.to_thread(_export, collector.endpoint)
    assert len(read_spans(path)) == 4
    assert caplog.text.count("No space left on device") == 1


def _span(name: str, span_id: str, parent: str, start: int, *, status: str = "unset") -> SpanRecord:
    return SpanRecord(
        trace_id="t1",
        span_id=span_id,
        parent_span_id=parent,
        name=name,
        kind="internal",
        service="svc",
        start_ns=start,
        end_ns=start + 2_000_000,
        status=status,
    )


def test_a_tree_lists_parents_before_children_ordered_by_time() -> None:
    spans = [
        _span("second", "c", "a", 20, status="error"),
        _span("first", "b", "a", 10),
        _span("leaf", "d", "b", 11),
        _span("root", "a", "", 0),
        _span("orphan", "e", "gone", 30),
    ]
    lines = format_tree(spans, "t1").splitlines()
    assert lines[0] == "trace t1"
    assert [line[:12].rstrip() for line in lines[1:]] == [
        "root",
        "├─ first",
        "│  └─ leaf",
        "└─ second",
        "orphan",
    ]
    assert "2.00 ms" in lines[1]
    assert "svc" in lines[1]
    assert "ERROR" in lines[4]


def test_other_traces_are_omitted() -> None:
    assert format_tree([_span("root", "a", "", 0)], "t2") == "trace t2"
