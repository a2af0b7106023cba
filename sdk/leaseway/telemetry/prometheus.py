"""What was measured, as Prometheus reads it: its text format or OpenMetrics (DESIGN §11).

Names are OpenTelemetry's, translated as its specification says: `mcp.client.operation.duration`
in seconds becomes `mcp_client_operation_duration_seconds`, and counters end in `_total`. The
formats, and which of them a request asks for, are `prometheus_client`'s business.
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
        families: What was measured; those without series are at least described.
        resource: What the process is, such as `service.name`; the labels of `target_info`.
        accept: The request's `Accept` header; one that makes no sense counts as none.
    """
    try:
        encode, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # it takes a version that is no number for one
        encode, content_type = choose_encoder("")
    return encode(_Measured(families, resource or {})), content_type


class _Measured(Collector):
    """Families that were read, as a collector of `prometheus_client`."""

    def __init__(self, families: Iterable[Family], resource: Mapping[str, str]) -> None:
        self._families = families
        self._resource = resource

    def collect(self) -> Iterator[Metric]:
        """Yield each family."""
        if self._resource:
            named = {_name(label): text for label, text in self._resource.items()}
            yield InfoMetricFamily("target", "What this process is.", named)
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
            metric.add_metric(values, _cumulated(point.value), point.value.sum)
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


def _cumulated(
    buckets: Buckets,
) -> list[tuple[str, float] | tuple[str, float, samples.Exemplar]]:
    """Return the buckets with what is below them; OpenMetrics shows exemplars, text does not."""
    below = 0
    found: list[tuple[str, float] | tuple[str, float, samples.Exemplar]] = []
    limits = (*map(str, buckets.bounds), "+Inf")
    exemplars = buckets.exemplars or (None,) * len(limits)
    for limit, count, exemplar in zip(limits, buckets.counts, exemplars, strict=True):
        below += count
        found.append((limit, below, _shown(exemplar)) if exemplar else (limit, below))
    return found


def _shown(exemplar: Exemplar) -> samples.Exemplar:
    labels = {"trace_id": exemplar.trace_id, "span_id": exemplar.span_id}
    return samples.Exemplar(labels, exemplar.value, exemplar.at)


def _name(name: str) -> str:
    return _UNSAFE.sub("_", name)
