"""Which metrics the collector creates from spans."""

from __future__ import annotations

import yaml
from tests.observability.declared_metrics import ROOT

FOLDER = ROOT / "deploy" / "observability"


def span_metrics() -> dict[str, frozenset[str]]:
    """Return the series that the collector creates from spans."""
    collector = yaml.safe_load((FOLDER / "collector.yaml").read_text(encoding="utf-8"))
    connector = collector["connectors"]["span_metrics"]
    base = connector["namespace"].replace(".", "_")
    labels = {dimension["name"].replace(".", "_") for dimension in connector["dimensions"]}
    labels |= {"service_name", "span_name", "span_kind", "status_code"}
    return {
        f"{base}_calls_total": frozenset(labels),
        f"{base}_duration_milliseconds_bucket": frozenset(labels | {"le"}),
        f"{base}_duration_milliseconds_count": frozenset(labels),
    }
