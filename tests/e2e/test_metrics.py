"""Metrics of real processes: scraped by Prometheus, and exported to a collector."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import grpc
import pytest
import yaml
from opentelemetry.proto.collector.metrics.v1 import (
    metrics_service_pb2,
    metrics_service_pb2_grpc,
)
from prometheus_client.parser import text_string_to_metric_families
from tests.conftest import BOUND, descendants
from tests.e2e.system import eventually, python_server, running
from tests.e2e.up import Up, start_up, stop

from leaseway.sdk import AsyncClient, AsyncSession, InvalidArguments

pytestmark = pytest.mark.usefixtures("leak_guard")

ECHO = python_server("echo_raw.py", **{"truely-stateless": True})
SECRETS = ("session-of-a-user", "Some/Secret", "word-in-the-environment")
COMMON = {
    "process_cpu_time_seconds": "counter",
    "process_memory_usage_bytes": "gauge",
    "leaseway_registry_version": "gauge",
    "leaseway_event_loop_stall_seconds": "gauge",
}
WORKER_METRICS = COMMON | {
    "mcp_client_operation_duration_seconds": "histogram",
    "mcp_client_session_duration_seconds": "histogram",
    "leaseway_calls_refused": "counter",
    "leaseway_calls_in_flight": "gauge",
    "leaseway_lease_wait_duration_seconds": "histogram",
    "leaseway_leases_held": "gauge",
    "leaseway_leases_ended": "counter",
    "leaseway_instances": "gauge",
    "leaseway_instance_start_duration_seconds": "histogram",
    "leaseway_instance_restarts": "counter",
    "leaseway_replies_late": "counter",
    "leaseway_exchange_streams": "gauge",
    "leaseway_exchange_queue_size_bytes": "gauge",
    "leaseway_artifacts": "gauge",
    "leaseway_artifacts_size_bytes": "gauge",
    "leaseway_artifacts_failed": "counter",
}
CONTROL_PLANE_METRICS = COMMON | {
    "leaseway_config_reloads": "counter",
    "leaseway_probe_duration_seconds": "histogram",
    "leaseway_placements": "counter",
    "leaseway_sync_lag_seconds": "gauge",
    "leaseway_workers": "gauge",
    "leaseway_problems": "gauge",
}


SESSIONS_ENDED = "mcp_client_session_duration_seconds_count"


class Page:
    """One scrape."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._families = {family.name: family for family in text_string_to_metric_families(text)}

    def kinds(self) -> dict[str, str]:
        """Return the instruments that have series."""
        return {name: family.type for name, family in self._families.items() if family.samples}

    def value(self, name: str, **labels: str) -> float:
        """Return the sum of the samples of a name that have some labels."""
        return sum(
            sample.value
            for family in self._families.values()
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )


def scrape(url: str) -> Page:
    with urlopen(url, timeout=BOUND) as answer:
        return Page(answer.read().decode())


async def pages_of(up: Up, count: int) -> dict[str, str]:
    """Return the metrics URLs of the processes by name, from the output of `up`."""
    found = {}
    async with asyncio.timeout(BOUND):
        for _ in range(count):
            word, url, name = (await up.process.stdout.readline()).decode().split()
            assert word == "metrics"
            found[name] = url
    return found


async def test_every_instrument_has_series_after_its_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PASSED_ON", SECRETS[2])
    mark = tmp_path / "mark"
    servers: dict[str, object] = {
        "echo": ECHO,
        "waits": python_server(
            *("faults.py", "plain", str(mark)),
            env={"TOKEN": {"env": "PASSED_ON"}},
            transform=[{"prefix": "waits_"}],
        ),
        "broken": {"transport": "stdio", "command": "/no/such/program"},
    }
    up = await start_up(tmp_path, "--metrics", "127.0.0.1:0", servers=servers)
    try:
        urls = await pages_of(up, 2)
        assert set(urls) == {"control-plane", "worker-1"}
        async with AsyncClient(up.address) as client:
            await client.call_tool("echo", {"text": "first"})
            assert (await client.call_tool("fail", {"text": SECRETS[1]})).is_error
            with pytest.raises(InvalidArguments):
                await client.call_tool("echo", {"text": 7})
            async with client.session(SECRETS[0]) as session:
                await session.call_tool("waits:pid")
                await cancel_call(session, "waits:wait")
                held = await asyncio.to_thread(scrape, urls["worker-1"])
                assert held.value("leaseway_leases_held", leaseway_server="waits") == 1
                assert held.value("leaseway_exchange_streams") >= 1

                async def is_cancelled() -> bool:
                    page = await asyncio.to_thread(scrape, urls["worker-1"])
                    return page.value("leaseway_calls_in_flight") == 0

                await eventually(is_cancelled)
                mark.touch()

                async def late() -> bool:
                    page = await asyncio.to_thread(scrape, urls["worker-1"])
                    return page.value("leaseway_replies_late_total") == 1

                await eventually(late)
            [pid] = [p for p, line in descendants(up.process.pid).items() if "echo_raw.py" in line]
            os.kill(pid, signal.SIGKILL)

            async def restarted() -> bool:
                page = await asyncio.to_thread(scrape, urls["worker-1"])
                return page.value("leaseway_instance_restarts_total", leaseway_server="echo") == 1

            await eventually(restarted)
            await client.call_tool("echo", {"text": "x"})
            del servers["broken"]
            text = yaml.safe_dump({"version": 1, "servers": servers})
            fresh = tmp_path / "mcp.new"
            fresh.write_text(text)
            fresh.replace(tmp_path / "mcp.yaml")

            async def reloaded() -> bool:
                page = await asyncio.to_thread(scrape, urls["control-plane"])
                return page.value("leaseway_config_reloads_total", leaseway_outcome="ok") >= 2

            await eventually(reloaded)

            async def is_fixed() -> bool:
                return not await client.problems()

            await eventually(is_fixed)

            async def has_ended() -> bool:
                """Return whether the instance of the released lease has been closed."""
                page = await asyncio.to_thread(scrape, urls["worker-1"])
                return page.value(SESSIONS_ENDED, leaseway_server="waits") >= 1

            async def is_in_sync() -> bool:
                page = await asyncio.to_thread(scrape, urls["control-plane"])
                return page.value("leaseway_sync_lag_seconds", leaseway_worker="worker-1") == 0

            await eventually(has_ended)
            await eventually(is_in_sync)
            worker = await asyncio.to_thread(scrape, urls["worker-1"])
            plane = await asyncio.to_thread(scrape, urls["control-plane"])
    finally:
        await stop(up)
    check_worker(worker)
    check_control_plane(plane)
    for secret in SECRETS:
        assert secret not in worker.text + plane.text


async def cancel_call(session: AsyncSession, tool: str) -> None:
    """Call a tool and cancel the call once its server has read it."""
    read = asyncio.Event()
    call = asyncio.create_task(session.call_tool(tool, on_progress=lambda *_: read.set()))
    async with asyncio.timeout(BOUND):
        await read.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_a_restarted_worker_serves_its_metrics_at_the_same_address(
    tmp_path: Path,
) -> None:
    up = await start_up(tmp_path, "--metrics", "127.0.0.1:0", "--workers", "2")
    try:
        urls = await pages_of(up, 3)
        assert len(set(urls.values())) == 3
        before = await asyncio.to_thread(scrape, urls["worker-2"])
        assert before.value("target_info", service_instance_id="worker-2") == 1
        [pid] = [p for p, line in descendants(up.process.pid).items() if "--id worker-2" in line]
        os.kill(pid, signal.SIGKILL)

        async def back() -> bool:
            try:
                page = await asyncio.to_thread(scrape, urls["worker-2"])
            except OSError:
                return False
            return page.value("target_info", service_instance_id="worker-2-2") == 1

        await eventually(back)
    finally:
        await stop(up)


def check_worker(page: Page) -> None:
    missing = WORKER_METRICS.items() - page.kinds().items()
    # No lease is held at that time, so no server has a series.
    assert missing <= {("leaseway_leases_held", "gauge")}
    assert "# TYPE leaseway_leases_held gauge" in page.text
    assert "# TYPE leaseway_frames_dropped_total counter" in page.text
    calls = "mcp_client_operation_duration_seconds"
    time = {"gen_ai_tool_name": "echo", "leaseway_server": "echo"}
    assert page.value(f"{calls}_count", **time, network_transport="pipe") == 2
    assert 0 < page.value(f"{calls}_sum", **time) < 60
    assert page.value(f"{calls}_bucket", **time, le="+Inf") == 2
    assert page.value(f"{calls}_count", gen_ai_tool_name="fail", error_type="tool_error") == 1
    assert page.value(f"{calls}_count", leaseway_server="waits", error_type="CANCELLED") == 1
    assert page.value(SESSIONS_ENDED, error_type="SERVER_LOST") == 1
    assert page.value("leaseway_calls_refused_total", leaseway_reason="INVALID_ARGUMENTS") == 1
    assert page.value("leaseway_lease_wait_duration_seconds_count", leaseway_outcome="ok") == 1
    assert page.value("leaseway_leases_ended_total", leaseway_outcome="released") == 1
    assert page.value("leaseway_instances", leaseway_server="echo", leaseway_state="ready") == 1
    starts = "leaseway_instance_start_duration_seconds_count"
    assert page.value(starts, leaseway_server="echo", leaseway_outcome="ok") == 2
    assert page.value(starts, leaseway_outcome="COMMAND_NOT_FOUND") >= 1
    assert page.value("leaseway_calls_in_flight") == 0
    assert page.value("process_memory_usage_bytes") > 10_000_000
    assert page.value("process_cpu_time_seconds_total") > 0
    assert page.value("target_info", service_instance_id="worker-1") == 1


def check_control_plane(page: Page) -> None:
    assert CONTROL_PLANE_METRICS.items() <= page.kinds().items()
    probes = "leaseway_probe_duration_seconds_count"
    assert page.value(probes, leaseway_server="echo", leaseway_outcome="ok") == 1
    assert page.value(probes, leaseway_outcome="COMMAND_NOT_FOUND") >= 1
    assert page.value("leaseway_workers", leaseway_state="connected") == 1
    assert page.value("leaseway_problems") == 0
    assert page.value("leaseway_placements_total", leaseway_outcome="ok") == 1
    assert page.value("leaseway_registry_version") > 1e15


class Collector(metrics_service_pb2_grpc.MetricsServiceServicer):
    """Records the metric names that each service exports."""

    def __init__(self) -> None:
        self.names: dict[str, set[str]] = {}

    async def Export(self, request: Any, context: Any) -> Any:
        for resource in request.resource_metrics:
            sent = {metric.name for scope in resource.scope_metrics for metric in scope.metrics}
            for name in _service_names(resource.resource):
                self.names.setdefault(name, set()).update(sent)
        return metrics_service_pb2.ExportMetricsServiceResponse()


def _service_names(resource: Any) -> Iterator[str]:
    for attribute in resource.attributes:
        if attribute.key == "service.name":
            yield attribute.value.string_value


async def test_both_planes_export_their_metrics_to_a_collector(tmp_path: Path) -> None:
    collector = Collector()
    server = grpc.aio.server()
    add: Any = metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server
    add(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    environment = {
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"http://127.0.0.1:{port}",
        "OTEL_METRIC_EXPORT_INTERVAL": "200",
    }
    async with running(tmp_path, {"echo": ECHO}, environment=environment) as (_, client):
        await client.call_tool("echo", {"text": "x"})

        def arrived() -> bool:
            sent = collector.names
            return "mcp.client.operation.duration" in sent.get(
                "leaseway-worker", ()
            ) and "leaseway.probe.duration" in sent.get("leaseway-control-plane", ())

        await eventually(arrived)
    await server.stop(None)
    assert "leaseway.registry.version" in collector.names["leaseway-worker"]
    # This one is recorded at the end: a process exports its last values before it exits.
    assert "mcp.client.session.duration" in collector.names["leaseway-worker"]
    assert set(collector.names) == {"leaseway-worker", "leaseway-control-plane"}
