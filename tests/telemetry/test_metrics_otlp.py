"""Metrics by OTLP: variables that turn them on, and metrics received by a collector."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1 import (
    metrics_service_pb2,
    metrics_service_pb2_grpc,
)
from opentelemetry.proto.metrics.v1 import metrics_pb2
from tests.conftest import BOUND

from leaseway.telemetry import metrics_otlp
from leaseway.telemetry.exporters import otel_resource
from leaseway.telemetry.metrics import Meter, Reading
from leaseway.telemetry.setup import run_meter

Requests = asyncio.Queue[metrics_service_pb2.ExportMetricsServiceRequest]


class Collector(metrics_service_pb2_grpc.MetricsServiceServicer):
    """Keeps the received requests."""

    def __init__(self) -> None:
        self.requests: Requests = asyncio.Queue()

    async def Export(self, request: Any, context: Any) -> Any:
        self.requests.put_nowait(request)
        return metrics_service_pb2.ExportMetricsServiceResponse()


@asynccontextmanager
async def collecting() -> AsyncIterator[tuple[Collector, str]]:
    collector = Collector()
    server = grpc.aio.server()
    add: Any = metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server
    add(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield collector, f"http://127.0.0.1:{port}"
    finally:
        await server.stop(None)


def by_name(request: Any) -> dict[str, metrics_pb2.Metric]:
    [resource] = request.resource_metrics
    [scope] = resource.scope_metrics
    return {metric.name: metric for metric in scope.metrics}


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


async def test_a_collector_receives_all_kinds_of_metrics_and_the_last_values_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with asyncio.timeout(BOUND), collecting() as (collector, endpoint):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "100")
        async with run_meter(None, "leaseway-worker", instance="w1") as meter:
            assert meter is not None
            calls = meter.counter("leaseway.calls", "{call}", "Calls.", "leaseway.server")
            calls.cell("a").add(3)
            durations = meter.histogram("d", "s", "Durations.", bounds=(1.0, 2.0)).cell()
            durations.record(1.5)
            durations.record(9.0, f"00-{'ab' * 16}-{'cd' * 8}-01")
            first = await collector.requests.get()
            calls.cell("a").add()
        while not collector.requests.empty():
            last = collector.requests.get_nowait()

    attributes = first.resource_metrics[0].resource.attributes
    resource = {attribute.key: attribute.value.string_value for attribute in attributes}
    assert resource["service.name"] == "leaseway-worker"
    assert resource["service.instance.id"] == "w1"
    metrics = by_name(first)
    assert metrics["process.memory.usage"].gauge.data_points[0].as_double > 1_000_000
    counter = metrics["leaseway.calls"]
    assert (counter.unit, counter.description, counter.sum.is_monotonic) == (
        "{call}",
        "Calls.",
        True,
    )
    [point] = counter.sum.data_points
    assert (point.as_double, point.attributes[0].value.string_value) == (3.0, "a")
    assert 0 < point.start_time_unix_nano < point.time_unix_nano
    [spread] = metrics["d"].histogram.data_points
    assert list(spread.bucket_counts) == [0, 1, 1]
    assert (spread.count, spread.sum, spread.min, spread.max) == (2, 10.5, 1.5, 9.0)
    assert list(spread.explicit_bounds) == [1.0, 2.0]
    [exemplar] = spread.exemplars
    assert (exemplar.trace_id.hex(), exemplar.span_id.hex()) == ("ab" * 16, "cd" * 8)
    assert exemplar.as_double == 9.0
    assert by_name(last)["leaseway.calls"].sum.data_points[0].as_double == 4.0


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"OTEL_METRICS_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
        {"OTEL_METRICS_EXPORTER": "console", "OTEL_SDK_DISABLED": "true"},
        {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1"},
        {"OTEL_TRACES_EXPORTER": "console"},
    ],
)
async def test_there_is_no_meter_if_metrics_are_off(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    async with run_meter(None, "unit") as meter:
        assert meter is None


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"OTEL_METRICS_EXPORTER": "prometheus"}, "--metrics HOST:PORT for Prometheus"),
        (
            {
                "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1",
                "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "http/json",
            },
            "OTLP as grpc or http/protobuf",
        ),
        (
            {
                "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1",
                "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
                "OTEL_EXPORTER_OTLP_COMPRESSION": "zstd",
            },
            "OTEL_EXPORTER_OTLP_COMPRESSION is neither gzip nor none",
        ),
    ],
)
async def test_unusable_settings_are_logged(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    variables: dict[str, str],
    sentence: str,
) -> None:
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    async with run_meter(None, "unit") as meter:
        assert meter is None
    assert sentence in caplog.text


async def test_an_invalid_interval_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with asyncio.timeout(BOUND), collecting() as (collector, endpoint):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", endpoint)
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "soon")
        async with run_meter(None, "unit"):
            pass
        assert "OTEL_METRIC_EXPORT_INTERVAL" in caplog.text
        assert not collector.requests.empty()  # the last export needs no interval


def test_metrics_for_prometheus_alone_do_not_load_the_otel_sdk() -> None:
    code = (
        "import leaseway.telemetry.setup, sys; "
        "print([name for name in sys.modules if name.startswith('opentelemetry.sdk')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


class Stuck:
    """An exporter that blocks until it is released."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.ended = threading.Event()

    def export(self, _data: Any) -> None:
        assert self.release.wait(BOUND)

    def shutdown(self, **_: Any) -> None:
        assert self.release.wait(BOUND)
        self.ended.set()


async def test_a_blocked_exporter_delays_neither_the_loop_nor_the_shutdown(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(metrics_otlp, "_LAST_EXPORT_TIMEOUT", 0.05)
    monkeypatch.setattr(metrics_otlp, "_SHUTDOWN_TIMEOUT", 0.5)
    stuck: Any = Stuck()
    sender = metrics_otlp.MetricsSender(Meter(), [stuck], otel_resource({}))
    closing = asyncio.create_task(sender.close())
    turns = 0
    async with asyncio.timeout(BOUND):
        while not closing.done():
            await asyncio.sleep(0)
            turns += 1
    assert turns > 2, "the loop was blocked"
    assert "last metrics were not exported" in caplog.text
    assert "did not shut down within 1 s" in caplog.text
    stuck.release.set()
    assert await asyncio.to_thread(stuck.ended.wait, BOUND)


async def test_a_failing_exporter_does_not_keep_others_from_shutting_down(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Failing(Stuck):
        def shutdown(self, **_: Any) -> None:
            raise OSError("gone already")

    failing: Any = Failing()
    working: Any = Stuck()
    failing.release.set()
    working.release.set()
    sender = metrics_otlp.MetricsSender(Meter(), [failing, working], otel_resource({}))
    await asyncio.wait_for(sender.close(), BOUND)
    assert working.ended.is_set()
    assert "failed to shut down" in caplog.text


async def test_metrics_are_sent_again_after_they_could_not_be_read_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failures = 1

    def read() -> Reading:
        nonlocal failures
        if failures:
            failures -= 1
            raise RuntimeError("They cannot be read now.")
        return [((), 1.0)]

    async with asyncio.timeout(BOUND), collecting() as (collector, endpoint):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "100")
        async with run_meter(None, "unit") as meter:
            assert meter is not None
            meter.observe("pages", "{page}", "Pages.", read)
            assert "pages" in by_name(await collector.requests.get())
            failures = 1  # which does not end the process
