"""The collector's configuration in a real OpenTelemetry Collector, if installed."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import yaml
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import Status, StatusCode
from prometheus_client.parser import text_string_to_metric_families
from tests.conftest import BOUND
from tests.e2e.system import eventually
from tests.observability.span_metrics import span_metrics

from leaseway.telemetry.spans.otlp_encoding import OtlpSpanExporter
from leaseway.telemetry.trace_file import TraceCollector, read_spans

_CONFIG = Path(__file__).resolve().parents[2] / "deploy" / "observability" / "collector.yaml"
_NAMES = ("otelcol-contrib", "otelcol-leaseway", "otelcol")
_OTHERS = 200


@pytest.fixture
def otelcol() -> str:
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        if "otelcol" in os.environ.get("LEASEWAY_REQUIRE", "").split(","):
            pytest.fail(f"LEASEWAY_REQUIRE names otelcol; none of {_NAMES} is on the PATH")
        pytest.skip(f"there is no collector: none of {_NAMES} is on the PATH")
    return found


def test_a_collector_takes_the_configuration_as_it_is(otelcol: str) -> None:
    done = subprocess.run(
        [otelcol, "validate", "--config", str(_CONFIG)],
        capture_output=True,
        text=True,
        timeout=BOUND,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@dataclass
class _Collecting:
    """A running collector: the addresses for spans and metrics."""

    endpoint: str
    metrics: str


@asynccontextmanager
async def _collecting(
    otelcol: str, folder: Path, ports: tuple[int, int], traces_to: str
) -> AsyncIterator[_Collecting]:
    """Run the configuration with other ports and a shorter wait."""
    config: dict[str, Any] = yaml.safe_load(_CONFIG.read_text(encoding="utf-8"))
    endpoint, metrics = (f"127.0.0.1:{port}" for port in ports)
    config["receivers"]["otlp"]["protocols"]["grpc"]["endpoint"] = endpoint
    config["processors"]["tail_sampling"]["decision_wait"] = "1s"
    config["exporters"]["otlp/traces"]["endpoint"] = traces_to
    config["exporters"]["prometheus"]["endpoint"] = metrics
    config["connectors"]["span_metrics"]["metrics_flush_interval"] = "1s"
    config["service"]["telemetry"] = {"metrics": {"level": "none"}}  # no port of its own
    path = folder / "collector.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    log = (folder / "collector.log").open("wb")
    process = await asyncio.create_subprocess_exec(
        otelcol, "--config", str(path), stdout=log, stderr=log
    )
    try:
        yield _Collecting(endpoint, f"http://{metrics}/metrics")
    finally:
        process.terminate()
        await process.wait()
        log.close()


def _send(endpoint: str) -> dict[str, str]:
    """Send many traces of one span each; return the ids of those to be kept."""
    exporter = OtlpSpanExporter(endpoint=endpoint, insecure=True)
    provider = TracerProvider(resource=Resource({"service.name": "leaseway-worker"}))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")
    now = time.time_ns()

    def send(kind: str, took: float, *, failed: bool = False) -> str:
        attributes = {"leaseway.tenant": "acme", "leaseway.server": kind}
        span = tracer.start_span("leaseway.call", start_time=now, attributes=attributes)
        if failed:
            span.set_status(Status(StatusCode.ERROR, "SERVER_LOST"))
        span.end(now + int(took * 1e9))
        return f"{span.get_span_context().trace_id:032x}"

    kept = {"slow": send("slow", 1.5), "failed": send("failed", 0.01, failed=True)}
    for _ in range(_OTHERS):
        send("others", 0.01)
    provider.shutdown()
    return kept


async def test_slow_and_failed_traces_are_kept_and_tenants_are_counted(
    otelcol: str, tmp_path: Path, free_tcp_port_factory: Any
) -> None:
    spans = tmp_path / "spans.jsonl"
    ports = free_tcp_port_factory(), free_tcp_port_factory()
    async with (
        TraceCollector(spans) as store,
        _collecting(otelcol, tmp_path, ports, str(store.endpoint)) as running,
    ):
        await eventually(lambda: _listens(ports[0]))
        kept = await asyncio.to_thread(_send, running.endpoint)

        def stored() -> list[str]:
            return [span.trace_id for span in read_spans(spans)]

        await eventually(lambda: set(kept.values()) <= set(stored()))

        async def counted() -> bool:
            return await asyncio.to_thread(_counts_all, running.metrics)

        await eventually(counted)
    assert len(stored()) < _OTHERS / 2  # one in twenty of the others


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


def _counts_all(url: str) -> bool:
    """Return whether the page has all series of the dashboards, with all calls."""
    with urlopen(url, timeout=BOUND) as response:
        families = list(text_string_to_metric_families(response.read().decode()))
    samples = [sample for family in families for sample in family.samples]
    for name, labels in span_metrics().items():
        found = [sample for sample in samples if sample.name == name]
        if not found or not all(labels - {"job"} <= sample.labels.keys() for sample in found):
            return False
    calls = [
        each_sample
        for each_sample in samples
        if each_sample.name == "traces_span_metrics_calls_total"
    ]
    return sum(call.value for call in calls) == _OTHERS + 2 and all(
        call.labels["leaseway_tenant"] == "acme" for call in calls
    )
