"""Metrics in Prometheus's text format or OpenMetrics (design.md#traces-metrics-and-logs).

OpenTelemetry's names are translated by its specification: `mcp.client.operation.duration` in
seconds becomes `mcp_client_operation_duration_seconds`, and counters end in `_total`.
`prometheus_client` writes the formats and chooses one by the request's `Accept` header.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from prometheus_client import samples
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from leaseway.telemetry.metrics import Buckets, Exemplar, Family

_UNITS: Final = {"s": "seconds", "By": "bytes"}
_UNSAFE: Final = re.compile(r"[^a-zA-Z0-9_]")


def render(
    families: Iterable[Family], resource: Mapping[str, str] | None = None, accept: str = ""
) -> tuple[bytes, str]:
    """Return a page of metrics and its content type.

    Args:
        families: The metrics; those without series are described only.
        resource: Attributes of the process, such as `service.name`; the labels of `target_info`.
        accept: The request's `Accept` header; an invalid one is ignored.
    """
    try:
        encode, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # for example a version that is not a number
        encode, content_type = choose_encoder("")
    return encode(_FamilyCollector(families, resource or {})), content_type


class _FamilyCollector(Collector):
    """Families as a collector of `prometheus_client`."""

    def __init__(self, families: Iterable[Family], resource: Mapping[str, str]) -> None:
        self._families = families
        self._resource = resource

    def collect(self) -> Iterator[Metric]:
        """Yield each family."""
        if self._resource:
            labels = {_name(label): text for label, text in self._resource.items()}
            yield InfoMetricFamily("target", "The attributes of this process.", labels)
        for family in self._families:
            yield _metric(family)


def _metric(family: Family) -> Metric:
    labels = list(dict.fromkeys(label for point in family.points for label in point.labels))
    kind = _KINDS[family.kind]
    unit = _UNITS.get(family.unit, "")
    names = [_name(label) for label in labels]
    metric = kind(_name(family.name), family.description, labels=names, unit=unit)
    for point in family.points:
        values = [point.labels.get(label, "") for label in labels]
        if isinstance(metric, HistogramMetricFamily):
            assert isinstance(point.value, Buckets)
            metric.add_metric(values, _cumulative(point.value), point.value.sum)
        else:
            assert not isinstance(point.value, Buckets)
            metric.add_metric(values, point.value)
    return metric


_KINDS: Final[
    Mapping[str, type[CounterMetricFamily] | type[GaugeMetricFamily] | type[HistogramMetricFamily]]
] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


def _cumulative(
    buckets: Buckets,
) -> list[tuple[str, float] | tuple[str, float, samples.Exemplar]]:
    """Return cumulative buckets; only OpenMetrics shows the exemplars."""
    total = 0
    found: list[tuple[str, float] | tuple[str, float, samples.Exemplar]] = []
    limits = (*map(str, buckets.bounds), "+Inf")
    exemplars = buckets.exemplars or (None,) * len(limits)
    for limit, count, exemplar in zip(limits, buckets.counts, exemplars, strict=True):
        total += count
        found.append((limit, total, _to_prometheus(exemplar)) if exemplar else (limit, total))
    return found


def _to_prometheus(exemplar: Exemplar) -> samples.Exemplar:
    labels = {"trace_id": exemplar.trace_id, "span_id": exemplar.span_id}
    return samples.Exemplar(labels, exemplar.value, exemplar.at)


def _name(name: str) -> str:
    return _UNSAFE.sub("_", name)
