"""Each alert fires for its fault and for no other: promtool plays the series of each fault."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.observability.declared_metrics import ROOT

_RULES = ROOT / "deploy" / "observability" / "alerts.yaml"
_MINUTES = 90
_CALLS = "mcp_client_operation_duration_seconds"

_HEALTHY = {
    'up{job="leaseway-control-plane"}': f"1x{_MINUTES}",
    'leaseway_workers{leaseway_state="connected"}': f"2x{_MINUTES}",
    'leaseway_workers{leaseway_state="lost"}': f"0x{_MINUTES}",
    'leaseway_sync_lag_seconds{leaseway_worker="worker-1"}': f"0x{_MINUTES}",
    'leaseway_problems{leaseway_scope="server",leaseway_severity="error"}': f"0x{_MINUTES}",
    "leaseway_placements_waiting": f"0x{_MINUTES}",
    'leaseway_placements_total{leaseway_outcome="ok"}': f"0+3x{_MINUTES}",
    'leaseway_leases_held{leaseway_server="files"}': f"3x{_MINUTES}",
    'leaseway_leases_ended_total{leaseway_server="files"}': f"0+3x{_MINUTES}",
    'leaseway_instance_restarts_total{leaseway_server="files"}': f"0x{_MINUTES}",
    f'{_CALLS}_count{{leaseway_server="time"}}': f"0+600x{_MINUTES}",
    f'{_CALLS}_bucket{{leaseway_server="time",le="0.1"}}': f"0+600x{_MINUTES}",
    f'{_CALLS}_bucket{{leaseway_server="time",le="+Inf"}}': f"0+600x{_MINUTES}",
}


def _problem(reason: str, scope: str = "server", severity: str = "error") -> dict[str, str]:
    labels = f'leaseway_scope="{scope}",leaseway_severity="{severity}",leaseway_reason="{reason}"'
    return {f"leaseway_problems{{{labels}}}": f"1x{_MINUTES}"}


# The twelve faults and a few more: what they leave in the metrics, and what has to fire.
_FAULTS: dict[str, tuple[dict[str, str], set[str]]] = {
    "a healthy system": ({}, set()),
    "a command that is not found": (_problem("COMMAND_NOT_FOUND"), {"LeasewayServerDoesNotStart"}),
    "a credential that the server refuses": (
        _problem("START_FAILED"),
        {"LeasewayServerDoesNotStart"},
    ),
    "a bad schema": (_problem("SCHEMA_NOT_COMPILED", severity="warning"), {"LeasewayBadSchema"}),
    "a slow server": (
        {
            f'{_CALLS}_count{{leaseway_server="slow"}}': f"0+60x{_MINUTES}",
            f'{_CALLS}_bucket{{leaseway_server="slow",le="5"}}': f"0x{_MINUTES}",
            f'{_CALLS}_bucket{{leaseway_server="slow",le="10"}}': f"0+60x{_MINUTES}",
            f'{_CALLS}_bucket{{leaseway_server="slow",le="+Inf"}}': f"0+60x{_MINUTES}",
        },
        {"LeasewayServerSlow"},
    ),
    "leases that nobody gives back": (
        {'leaseway_leases_held{leaseway_server="leak"}': f"0+2x{_MINUTES}"},
        {"LeasewayLeasesPileUp"},
    ),
    "two servers that want one name": (
        _problem("TOOL_NAME_CLASH", severity="warning"),
        {"LeasewayNameClash"},
    ),
    "a worker that is lost": (_problem("WORKER_LOST", "worker"), {"LeasewayWorkerLost"}),
    "a disk that is full": (
        {"leaseway_artifacts_failed_total": f"0+1x{_MINUTES}"},
        {"LeasewayArtifactsNotKept"},
    ),
    "a wrong reference": (_problem("MISSING_REFERENCE"), {"LeasewayReferenceMissing"}),
    "a server that flaps": (
        {'leaseway_instance_restarts_total{leaseway_server="flap"}': f"0+2x{_MINUTES}"},
        {"LeasewayServerFlaps"},
    ),
    "overload": (
        {'leaseway_calls_refused_total{leaseway_reason="OVERLOADED"}': f"0+9x{_MINUTES}"},
        {"LeasewayOverloaded"},
    ),
    "a reload that is half broken": (_problem("WRONG_TYPE"), {"LeasewayReloadPartlyRefused"}),
    "a file that is no YAML": (_problem("BAD_YAML", "workspace"), {"LeasewayReloadRefused"}),
    "no room for leases": (
        {'leaseway_placements_total{leaseway_outcome="CAPACITY"}': f"0+5x{_MINUTES}"},
        {"LeasewayNoRoom"},
    ),
    "a worker that does not follow": (
        {'leaseway_sync_lag_seconds{leaseway_worker="worker-2"}': f"60x{_MINUTES}"},
        {"LeasewayWorkerBehind"},
    ),
    "a control plane that is down": (
        {'up{job="leaseway-control-plane"}': f"0x{_MINUTES}"},
        {"LeasewayControlPlaneDown"},
    ),
    "no worker at all": (
        {'leaseway_workers{leaseway_state="connected"}': f"0x{_MINUTES}"},
        {"LeasewayNoWorker"},
    ),
    "a fifth of a server's calls that fail": (
        {
            f'{_CALLS}_count{{leaseway_server="bad"}}': f"0+80x{_MINUTES}",
            f'{_CALLS}_count{{leaseway_server="bad",error_type="SERVER_LOST"}}': f"0+20x{_MINUTES}",
        },
        {"LeasewayErrorBudgetBurnsFast", "LeasewayErrorBudgetBurnsSlowly"},
    ),
    "tools that say that they failed": (
        {
            f'{_CALLS}_count{{leaseway_server="bad"}}': f"0+10x{_MINUTES}",
            f'{_CALLS}_count{{leaseway_server="bad",error_type="tool_error"}}': f"0+90x{_MINUTES}",
        },
        set(),
    ),
}


def _promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        if "promtool" in os.environ.get("LEASEWAY_REQUIRE", "").split(","):
            pytest.fail("LEASEWAY_REQUIRE names promtool, and there is none on the PATH")
        pytest.skip("promtool is not installed (Debian: prometheus)")
    return found


def _alerts() -> list[str]:
    groups = yaml.safe_load(_RULES.read_text(encoding="utf-8"))["groups"]
    return [rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule]


def _test_of(fault: str) -> dict[str, Any]:
    """Return a test of one fault: which alerts fire in the end."""
    series, fires = _FAULTS[fault]
    together = {**_HEALTHY, **series}
    return {
        "name": fault,
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in together.items()],
        "promql_expr_test": [
            {
                "expr": 'clamp_max(count by (alertname) (ALERTS{alertstate="firing"}), 1)',
                "eval_time": f"{_MINUTES - 5}m",
                "exp_samples": [
                    {"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in sorted(fires)
                ],
            }
        ],
    }


def test_the_alert_of_each_fault_fires_and_no_other(tmp_path: Path) -> None:
    promtool = _promtool()
    tests = tmp_path / "tests.yaml"
    content = {
        "rule_files": [str(_RULES)],
        "evaluation_interval": "1m",
        "tests": [_test_of(fault) for fault in _FAULTS],
    }
    tests.write_text(yaml.safe_dump(content), encoding="utf-8")
    done = _run(promtool, "test", "rules", str(tests))
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_fault_that_it_fires_for() -> None:
    assert set(_alerts()) == set().union(*(fires for _series, fires in _FAULTS.values()))


def test_prometheus_takes_the_rules_and_the_expressions_of_the_dashboards(tmp_path: Path) -> None:
    from tests.observability.test_expressions import _dashboard_expressions

    promtool = _promtool()
    records = [
        {"record": f"panel:number:{number}", "expr": _filled(expression)}
        for number, (_place, expression) in enumerate(_dashboard_expressions())
        if not expression.startswith("label_values")
    ]
    panels = tmp_path / "panels.yaml"
    panels.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": records}]}))
    done = _run(promtool, "check", "rules", str(_RULES), str(panels))
    assert done.returncode == 0, done.stdout + done.stderr


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


def _filled(expression: str) -> str:
    return expression.replace("$__rate_interval", "5m")
