"""Write the Grafana dashboards to `dashboards/`, from lists of panels.

    python deploy/observability/dashboards.py

Grafana can import the files; it asks for the Prometheus data source.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).parent / "dashboards"

_CALLS: Final = "mcp_client_operation_duration_seconds"
_FAILED: Final = 'error_type!="",error_type!="tool_error",error_type!="CANCELLED"'
_SPANS: Final = "traces_span_metrics"


@dataclass(frozen=True)
class Panel:
    """A panel: its title, its queries with their legends, its unit, and its type in Grafana."""

    title: str
    queries: Sequence[tuple[str, str]]
    unit: str = "short"
    kind: str = "timeseries"


@dataclass(frozen=True)
class Dashboard:
    """A dashboard file; the reader selects a value of the variable."""

    name: str
    title: str
    panels: Sequence[Panel]
    variable: tuple[str, str] | None = None


def _quantiles(selector: str, by: str = "") -> list[tuple[str, str]]:
    return [
        (
            f"histogram_quantile({share}, sum by (le{by}) (rate({selector}[$__rate_interval])))",
            f"{share:.0%}",
        )
        for share in (0.5, 0.95, 0.99)
    ]


FLEET: Final = Dashboard(
    "fleet",
    "Leaseway: fleet",
    [
        Panel(
            "Workers",
            [("sum by (leaseway_state) (leaseway_workers)", "{{leaseway_state}}")],
            kind="stat",
        ),
        Panel(
            "Open problems",
            [("sum by (leaseway_severity) (leaseway_problems)", "{{leaseway_severity}}")],
            kind="stat",
        ),
        Panel("Leases held", [("sum(leaseway_leases_held)", "leases")], kind="stat"),
        Panel("Calls in flight", [("sum(leaseway_calls_in_flight)", "calls")], kind="stat"),
        Panel(
            "Calls per second",
            [
                (
                    f"sum by (leaseway_server) (rate({_CALLS}_count[$__rate_interval]))",
                    "{{leaseway_server}}",
                )
            ],
            "reqps",
        ),
        Panel(
            "Failed calls per second",
            [
                (
                    f"sum by (leaseway_server, error_type) (rate({_CALLS}_count{{{_FAILED}}}[$__rate_interval]))",
                    "{{leaseway_server}} {{error_type}}",
                )
            ],
            "reqps",
        ),
        Panel("Call duration", _quantiles(f"{_CALLS}_bucket"), "s"),
        Panel(
            "Calls rejected before reaching a server",
            [
                (
                    "sum by (leaseway_reason) (rate(leaseway_calls_refused_total[$__rate_interval]))",
                    "{{leaseway_reason}}",
                )
            ],
            "reqps",
        ),
        Panel(
            "Problems by reason",
            [
                (
                    'sum by (leaseway_reason) (leaseway_problems{leaseway_reason!=""})',
                    "{{leaseway_reason}}",
                )
            ],
        ),
        Panel(
            "Reloads",
            [
                (
                    "sum by (leaseway_outcome) (increase(leaseway_config_reloads_total[$__rate_interval]))",
                    "{{leaseway_outcome}}",
                )
            ],
        ),
        Panel(
            "Placements",
            [
                (
                    "sum by (leaseway_outcome) (rate(leaseway_placements_total[$__rate_interval]))",
                    "{{leaseway_outcome}}",
                ),
                ("sum(leaseway_placements_waiting)", "waiting"),
            ],
            "reqps",
        ),
        Panel("Registry versions", [("max by (job) (leaseway_registry_version)", "{{job}}")]),
    ],
)

SERVER: Final = Dashboard(
    "server",
    "Leaseway: one server",
    [
        Panel(
            "Calls per second by tool",
            [
                (
                    f'sum by (gen_ai_tool_name) (rate({_CALLS}_count{{leaseway_server="$server"}}[$__rate_interval]))',
                    "{{gen_ai_tool_name}}",
                )
            ],
            "reqps",
        ),
        Panel(
            "Failed calls per second",
            [
                (
                    f'sum by (gen_ai_tool_name, error_type) (rate({_CALLS}_count{{leaseway_server="$server",error_type!=""}}[$__rate_interval]))',
                    "{{gen_ai_tool_name}} {{error_type}}",
                )
            ],
            "reqps",
        ),
        Panel("Call duration", _quantiles(f'{_CALLS}_bucket{{leaseway_server="$server"}}'), "s"),
        Panel(
            "95th percentile by tool",
            [
                (
                    f'histogram_quantile(0.95, sum by (le, gen_ai_tool_name) (rate({_CALLS}_bucket{{leaseway_server="$server"}}[$__rate_interval])))',
                    "{{gen_ai_tool_name}}",
                )
            ],
            "s",
        ),
        Panel(
            "Instances",
            [
                (
                    'sum by (leaseway_state) (leaseway_instances{leaseway_server="$server"})',
                    "{{leaseway_state}}",
                )
            ],
        ),
        Panel(
            "Restarts",
            [
                (
                    'sum(increase(leaseway_instance_restarts_total{leaseway_server="$server"}[$__rate_interval]))',
                    "restarts",
                )
            ],
        ),
        Panel(
            "Calls in flight",
            [
                ('sum(leaseway_calls_in_flight{leaseway_server="$server"})', "in flight"),
                ('sum(leaseway_calls_waiting{leaseway_server="$server"})', "waiting"),
            ],
        ),
        Panel(
            "Oldest waiting call",
            [('max(leaseway_calls_wait_oldest_seconds{leaseway_server="$server"})', "wait")],
            "s",
        ),
        Panel(
            "Start duration",
            _quantiles(
                'leaseway_instance_start_duration_seconds_bucket{leaseway_server="$server"}',
                ", leaseway_outcome",
            ),
            "s",
        ),
        Panel("Leases held", [('sum(leaseway_leases_held{leaseway_server="$server"})', "leases")]),
        Panel(
            "Ended leases by outcome",
            [
                (
                    'sum by (leaseway_outcome) (rate(leaseway_leases_ended_total{leaseway_server="$server"}[$__rate_interval]))',
                    "{{leaseway_outcome}}",
                )
            ],
            "reqps",
        ),
        Panel(
            "Wait for a lease",
            _quantiles(
                'leaseway_lease_wait_duration_seconds_bucket{leaseway_server="$server"}',
                ", leaseway_lease_start",
            ),
            "s",
        ),
        Panel(
            "Client lifetime",
            _quantiles('mcp_client_session_duration_seconds_bucket{leaseway_server="$server"}'),
            "s",
        ),
        Panel(
            "Late responses",
            [
                (
                    'sum(rate(leaseway_replies_late_total{leaseway_server="$server"}[$__rate_interval]))',
                    "late",
                )
            ],
            "reqps",
        ),
    ],
    ("server", f"label_values({_CALLS}_count, leaseway_server)"),
)

WORKER: Final = Dashboard(
    "worker",
    "Leaseway: one worker",
    [
        Panel(
            "Calls in flight",
            [
                (
                    'sum by (leaseway_server) (leaseway_calls_in_flight{instance="$worker"})',
                    "{{leaseway_server}}",
                )
            ],
        ),
        Panel(
            "Leases held",
            [('sum(leaseway_leases_held{instance="$worker"})', "held")],
        ),
        Panel(
            "Instances",
            [
                (
                    'sum by (leaseway_state) (leaseway_instances{instance="$worker"})',
                    "{{leaseway_state}}",
                )
            ],
        ),
        Panel("Exchange streams", [('leaseway_exchange_streams{instance="$worker"}', "streams")]),
        Panel(
            "Bytes queued for callers",
            [('leaseway_exchange_queue_size_bytes{instance="$worker"}', "bytes")],
            "bytes",
        ),
        Panel(
            "Frames dropped for slow callers",
            [
                (
                    'sum by (leaseway_frame) (rate(leaseway_frames_dropped_total{instance="$worker"}[$__rate_interval]))',
                    "{{leaseway_frame}}",
                )
            ],
            "reqps",
        ),
        Panel(
            "Stored artifacts",
            [('leaseway_artifacts_size_bytes{instance="$worker"}', "bytes")],
            "bytes",
        ),
        Panel(
            "Artifacts not stored",
            [
                (
                    'rate(leaseway_artifacts_failed_total{instance="$worker"}[$__rate_interval])',
                    "failed",
                )
            ],
            "reqps",
        ),
        Panel(
            "CPU time",
            [
                (
                    'sum by (cpu_mode) (rate(process_cpu_time_seconds_total{instance="$worker"}[$__rate_interval]))',
                    "{{cpu_mode}}",
                )
            ],
            "percentunit",
        ),
        Panel("Memory", [('process_memory_usage_bytes{instance="$worker"}', "bytes")], "bytes"),
        Panel(
            "Sync lag",
            [("max by (leaseway_worker) (leaseway_sync_lag_seconds)", "{{leaseway_worker}}")],
            "s",
        ),
    ],
    ("worker", "label_values(leaseway_calls_in_flight, instance)"),
)

TENANT: Final = Dashboard(
    "tenant",
    "Leaseway: one tenant (requires the collector's span metrics)",
    [
        Panel(
            "Calls per second by server",
            [
                (
                    f'sum by (leaseway_server) (rate({_SPANS}_calls_total{{leaseway_tenant="$tenant"}}[$__rate_interval]))',
                    "{{leaseway_server}}",
                )
            ],
            "reqps",
        ),
        Panel(
            "Failed calls per second",
            [
                (
                    f'sum by (leaseway_server) (rate({_SPANS}_calls_total{{leaseway_tenant="$tenant",status_code="STATUS_CODE_ERROR"}}[$__rate_interval]))',
                    "{{leaseway_server}}",
                )
            ],
            "reqps",
        ),
        Panel(
            "Call duration",
            _quantiles(f'{_SPANS}_duration_milliseconds_bucket{{leaseway_tenant="$tenant"}}'),
            "ms",
        ),
        Panel(
            "95th percentile by server",
            [
                (
                    f'histogram_quantile(0.95, sum by (le, leaseway_server) (rate({_SPANS}_duration_milliseconds_bucket{{leaseway_tenant="$tenant"}}[$__rate_interval])))',
                    "{{leaseway_server}}",
                )
            ],
            "ms",
        ),
    ],
    ("tenant", f"label_values({_SPANS}_calls_total, leaseway_tenant)"),
)

DASHBOARDS: Final = (FLEET, SERVER, WORKER, TENANT)


def render(dashboard: Dashboard) -> str:
    """Return a dashboard as Grafana imports it."""
    panels = [_panel(number, panel) for number, panel in enumerate(dashboard.panels)]
    variables: list[dict[str, Any]] = [
        {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
    ]
    if dashboard.variable is not None:
        name, query = dashboard.variable
        variables.append(
            {
                "name": name,
                "label": name.capitalize(),
                "type": "query",
                "query": query,
                "datasource": _SOURCE,
                "refresh": 2,
                "sort": 1,
            }
        )
    whole = {
        "uid": f"leaseway-{dashboard.name}",
        "title": dashboard.title,
        "tags": ["leaseway"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": variables},
        "panels": panels,
    }
    return json.dumps(whole, indent=1) + "\n"


_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    small = panel.kind == "stat"
    width, height = (6, 5) if small else (12, 8)
    row, column = divmod(number * width, 24)
    return {
        "id": number + 1,
        "type": panel.kind,
        "title": panel.title,
        "datasource": _SOURCE,
        "gridPos": {"x": column, "y": row * height, "w": width, "h": height},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + at),
                "expr": expression,
                "legendFormat": legend,
                "datasource": _SOURCE,
                "exemplar": "_bucket" in expression,
            }
            for at, (expression, legend) in enumerate(panel.queries)
        ],
    }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for dashboard in DASHBOARDS:
        path = FOLDER / f"{dashboard.name}.json"
        path.write_text(render(dashboard), encoding="utf-8")
        print(path)
