"""What was measured, sent by OTLP every minute where the `OTEL_*` variables ask for it.

`opentelemetry.sdk` is used for its data types and exporters only and imported on use: the cells
of `leaseway.telemetry.metrics` are the instruments (DESIGN §11).
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from leaseway.telemetry.exporters import make_exporters
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

_logger = logging.getLogger(__name__)
_INTERVAL: Final = "OTEL_METRIC_EXPORT_INTERVAL"
_DEFAULT_INTERVAL: Final = 60.0
_SHORTEST_INTERVAL: Final = 0.1
_LAST_SENDING: Final = 5.0
"""Seconds that the end of a process waits for its last numbers to be sent."""
_SHUTTING_DOWN: Final = 1.0
"""Seconds that it waits then for the exporters to end."""


def metric_exporters() -> list[MetricExporter]:
    """Return the exporters that the standard variables ask for (see `make_exporters`)."""
    instead = ", and --metrics HOST:PORT for Prometheus"
    return make_exporters("METRICS", console=_to_stderr, otlp=_by_otlp, instead=instead)


def _to_stderr() -> MetricExporter:
    from opentelemetry.sdk.metrics.export import ConsoleMetricExporter

    return ConsoleMetricExporter(out=sys.stderr)  # stdout belongs to results


def _by_otlp() -> MetricExporter:
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter

    return OTLPMetricExporter()


class MetricsPump:
    """Sends what a meter holds, again and again, and once more at the end.

    Args:
        meter: What is read, on the loop that `run` is called on.
        exporters: Where it goes; they block and are called in a thread.
        resource: What the process is.
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
        """Send a last time, for at most 5 s, and stop, for at most 1 s; the loop goes on."""
        try:
            async with asyncio.timeout(_LAST_SENDING):
                await self._send()
        except TimeoutError:
            _logger.warning("The last metrics were not sent: nobody took them within 5 s.")
        try:
            async with asyncio.timeout(_SHUTTING_DOWN):
                await asyncio.to_thread(self._shut_down)
        except TimeoutError:
            _logger.warning("Exporters of metrics did not end within 1 s; they are left alone.")

    async def _send(self) -> None:
        families = self._meter.collect()
        await asyncio.to_thread(self._export, families)

    def _export(self, families: tuple[Family, ...]) -> None:
        data = metrics_data(families, self._resource)
        for exporter in self._exporters:
            try:
                exporter.export(data)
            except Exception:  # an exporter's failure must not end the process that is measured
                _logger.warning("Metrics could not be exported.", exc_info=True)

    def _shut_down(self) -> None:
        for exporter in self._exporters:
            try:
                exporter.shutdown(timeout_millis=_SHUTTING_DOWN * 1000)
            except Exception:  # likewise
                _logger.warning("An exporter of metrics failed to end.", exc_info=True)


def _interval() -> float:
    text = os.environ.get(_INTERVAL, "").strip()
    try:
        return max(_SHORTEST_INTERVAL, float(text) / 1000) if text else _DEFAULT_INTERVAL
    except ValueError:
        _logger.warning(
            f"{_INTERVAL} is no number of milliseconds; metrics are sent every 60 s.",
            extra={"value": text},
        )
        return _DEFAULT_INTERVAL


def metrics_data(families: Iterable[Family], resource: Resource) -> MetricsData:
    """Return what was measured in OpenTelemetry's own types."""
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
    from opentelemetry.sdk.metrics import Exemplar as Made

    return Made(
        {},
        exemplar.value,
        int(exemplar.at * 1e9),
        int(exemplar.span_id, 16),
        int(exemplar.trace_id, 16),
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
            min=point.value.least,
            max=point.value.most,
            exemplars=[_exemplar(each) for each in point.value.exemplars if each is not None],
        )
        for point in family.points
        if isinstance(point.value, Buckets)
    ]
    data = Histogram(points, AggregationTemporality.CUMULATIVE)
    return Metric(family.name, family.description, family.unit, data)
