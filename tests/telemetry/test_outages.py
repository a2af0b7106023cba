"""A collector that is away is logged, but not with each try."""

from __future__ import annotations

import logging

import pytest
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import MetricsData
from tests.ports import free_port

from leaseway.telemetry.otlp.outages import OutageFilter


def test_a_collector_that_is_away_is_logged_once_in_ten_minutes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 0.0
    exporters = logging.getLogger("opentelemetry.exporter.otlp.proto.grpc.exporter")
    monkeypatch.setattr(exporters, "filters", [OutageFilter(lambda: now)])
    exporter = OTLPMetricExporter(f"127.0.0.1:{free_port()}", insecure=True, timeout=1)
    for now, lines in ((0.0, 1), (599.0, 1), (600.0, 2)):  # noqa: B007 - the clock returns it
        exporter.export(MetricsData([]))
        logged = [record.getMessage() for record in caplog.records]
        assert len(logged) == lines
        assert "Failed to export metrics to 127.0.0.1" in logged[-1]
    exporter.shutdown()
