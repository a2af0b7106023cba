"""Metrics sent by OTLP, by default every minute, if the `OTEL_*` variables configure it.

Only the data types and exporters of `opentelemetry.sdk` are used, and imported on use: the
instruments are those of `leaseway.telemetry.metrics` (design.md#traces-metrics-and-logs).
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from leaseway.telemetry.exporters import GrpcOptions, make_exporters
from leaseway.telemetry.metrics import Buckets, Exemplar, Family, Meter, Point
from leaseway.wire.version import PACKAGE_VERSION

if TYPE_CHECKING:
    import opentelemetry.sdk.metrics as otel
    from opentelemetry.sdk.metrics.export import (
        Metric,
        MetricExporter,
        MetricsData,
        NumberDataPoint,
    )
    from opentelemetry.sdk.resources import Resource

    from leaseway.telemetry.otlp.http_settings import HttpSettings

_logger = logging.getLogger(__name__)
_INTERVAL: Final = "OTEL_METRIC_EXPORT_INTERVAL"
_DEFAULT_INTERVAL: Final = 60.0
_SHORTEST_INTERVAL: Final = 0.1
_LAST_EXPORT_TIMEOUT: Final = 5.0
"""Seconds that a process waits at its end for the last export."""
_SHUTDOWN_TIMEOUT: Final = 1.0
"""Seconds that it then waits for the exporters to shut down."""


def metric_exporters() -> list[MetricExporter]:
    """Return the exporters that the standard variables name (see `make_exporters`)."""
    alternative = ", and --metrics HOST:PORT for Prometheus"
    return make_exporters(
        "METRICS", console=_to_stderr, otlp=_by_otlp, otlp_http=_by_http, alternative=alternative
    )


def _to_stderr() -> MetricExporter:
    from opentelemetry.sdk.metrics.export import ConsoleMetricExporter

    return ConsoleMetricExporter(out=sys.stderr)  # stdout belongs to results


def _by_otlp(options: GrpcOptions) -> MetricExporter:
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter

    return OTLPMetricExporter(**options)


def _by_http(settings: HttpSettings) -> MetricExporter:
    from leaseway.telemetry.otlp.http_exporters import HttpMetricExporter
    from leaseway.telemetry.otlp.http_sender import HttpSender

    return HttpMetricExporter(HttpSender(settings))


class MetricsSender:
    """Exports a meter's metrics periodically, and once more at the end.

    The loop of `run` reads the meter; the exporters block and run in a thread.
    """

    def __init__(
        self, meter: Meter, exporters: Sequence[MetricExporter], resource: Resource
    ) -> None:
        self._meter = meter
        self._exporters = exporters
        self._resource = resource
        self._interval = _interval()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            await self._send()

    async def close(self) -> None:
        """Export once more, for at most 5 s, and shut down, for at most 1 s. Does not block."""
        try:
            async with asyncio.timeout(_LAST_EXPORT_TIMEOUT):
                await self._send()
        except TimeoutError:
            _logger.warning(
                "The last metrics were not exported within 5 s and are lost; check the collector."
            )
        except Exception:  # no more than a failure of an exporter may it end the process
            _logger.warning("The last metrics could not be read and are lost.", exc_info=True)
        try:
            async with asyncio.timeout(_SHUTDOWN_TIMEOUT):
                await asyncio.to_thread(self._shut_down)
        except TimeoutError:
            _logger.warning("The exporters of metrics did not shut down within 1 s.")

    async def _send(self) -> None:
        families = self._meter.collect()
        await asyncio.to_thread(self._export, families)

    def _export(self, families: tuple[Family, ...]) -> None:
        data = metrics_data(families, self._resource)
        for exporter in self._exporters:
            try:
                exporter.export(data)
            except Exception:  # an exporter's failure must not end the process
                _logger.warning("Metrics could not be exported.", exc_info=True)

    def _shut_down(self) -> None:
        for exporter in self._exporters:
            try:
                exporter.shutdown(timeout_millis=_SHUTDOWN_TIMEOUT * 1000)
            except Exception:  # as above
                _logger.warning("An exporter of metrics failed to shut down.", exc_info=True)


def _interval() -> float:
    text = os.environ.get(_INTERVAL, "").strip()
    try:
        return max(_SHORTEST_INTERVAL, float(text) / 1000) if text else _DEFAULT_INTERVAL
    except ValueError:
        _logger.warning(
            f"{_INTERVAL} is not a number of milliseconds; metrics are sent every 60 s.",
            extra={"value": text},
        )
        return _DEFAULT_INTERVAL


def metrics_data(families: Iterable[Family], resource: Resource) -> MetricsData:
    """Return metrics in OpenTelemetry's types."""
    from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    now = time.time_ns()
    metrics = [_metric(family, now) for family in families if family.points]
    scope = ScopeMetrics(InstrumentationScope("leaseway", PACKAGE_VERSION), metrics, "")
    return MetricsData([ResourceMetrics(resource, [scope], "")])


def _metric(family: Family, now: int) -> Metric:
    from opentelemetry.sdk.metrics.export import AggregationTemporality, Gauge, Metric, Sum

    if family.kind == "histogram":
        return _histogram(family, now)
    points = [_number(point, now) for point in family.points]
    data = (
        Gauge(points)
        if family.kind == "gauge"
        else Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True)
    )
    return Metric(family.name, family.description, family.unit, data)


def _number(point: Point, now: int) -> NumberDataPoint:
    from opentelemetry.sdk.metrics.export import NumberDataPoint

    assert not isinstance(point.value, Buckets)
    return NumberDataPoint(point.labels, point.since, now, point.value)


def _exemplar(exemplar: Exemplar) -> otel.Exemplar:
    from opentelemetry.sdk.metrics import Exemplar as OtelExemplar

    return OtelExemplar(
        filtered_attributes={},
        value=exemplar.value,
        time_unix_nano=int(exemplar.at * 1e9),
        span_id=int(exemplar.span_id, 16),
        trace_id=int(exemplar.trace_id, 16),
    )


def _histogram(family: Family, now: int) -> Metric:
    from opentelemetry.sdk.metrics.export import (
        AggregationTemporality,
        Histogram,
        HistogramDataPoint,
        Metric,
    )

    points = [
        HistogramDataPoint(
            attributes=point.labels,
            start_time_unix_nano=point.since,
            time_unix_nano=now,
            count=point.value.total,
            sum=point.value.sum,
            bucket_counts=point.value.counts,
            explicit_bounds=point.value.bounds,
            min=point.value.minimum,
            max=point.value.maximum,
            exemplars=[
                _exemplar(exemplar) for exemplar in point.value.exemplars if exemplar is not None
            ],
        )
        for point in family.points
        if isinstance(point.value, Buckets)
    ]
    data = Histogram(points, AggregationTemporality.CUMULATIVE)
    return Metric(family.name, family.description, family.unit, data)
