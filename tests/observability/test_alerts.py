"""Alerts and dashboards over the recorded metrics of each fault, as Prometheus evaluates them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.e2e.system import eventually
from tests.observability.declared_metrics import declared_metrics
from tests.observability.faults import FAULTS, staged, work
from tests.observability.record_faults import RECORDED
from tests.observability.recording import (
    RULES,
    dashboard_expressions,
    name_and_labels,
    read_recorded,
    rules,
    scrape,
    series_in_use,
)

_OF_PROMETHEUS = frozenset({"job", "instance"})
_SHOWN = (
    "overload",
    "disk_full",
    "flapping_server",
    "failing_calls",
    "given_up_calls",
    "jammed_server",
)
_UNREAD = "leaseway_frames_dropped_total"  # takes a caller that reads nothing for long
_OF_SPANS = "traces_span_metrics"
_UP = {'up{instance="target-0",job="leaseway-control-plane"}': "1x60"}
_FIRED = 'alertname of count_over_time(ALERTS{alertstate="firing"}[60m])'
_CHOSEN = {"$__rate_interval": "5m", '="$server"': '=~".+"', '="$worker"': '=~".+"'}


def _promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        if "promtool" in os.environ.get("LEASEWAY_REQUIRE", "").split(","):
            pytest.fail("LEASEWAY_REQUIRE names promtool, and there is none on the PATH")
        pytest.skip("promtool is not installed (Debian: prometheus)")
    return found


def _play(folder: Path, tests: list[dict[str, Any]], *more: Path) -> None:
    """Evaluate the rules over series with Prometheus and compare the result."""
    file = folder / "tests.yaml"
    content = {
        "rule_files": [str(RULES), *map(str, more)],
        "evaluation_interval": "1m",
        "tests": tests,
    }
    file.write_text(json.dumps(content), encoding="utf-8")  # JSON is YAML, and written faster
    done = subprocess.run(
        [_promtool(), "test", "rules", str(file)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _test_of(name: str, series: Mapping[str, str], asked: str, answer: set[str]) -> dict[str, Any]:
    """Return a test for the final values of a label."""
    label, expression = asked.split(" of ", 1)
    return {
        "name": name,
        "interval": "1m",
        "input_series": [{"series": sample, "values": values} for sample, values in series.items()],
        "promql_expr_test": [
            {
                "expr": f"clamp_max(count by ({label}) ({expression}), 1)",
                "eval_time": "60m",
                "exp_samples": [
                    {"labels": f'{{{label}="{value}"}}', "value": 1} for value in sorted(answer)
                ],
            }
        ],
    }


def _of_release(fault: str, namespace: str) -> dict[str, str]:
    """Return what was recorded of a fault as Prometheus finds it in a namespace."""
    return {
        sample.replace(
            "{", f'{{namespace="{namespace}",service="{name_and_labels(sample)[1]["job"]}",', 1
        ): values
        for sample, values in read_recorded(RECORDED / f"{fault}.txt").items()
    }


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_raises_its_alerts_and_no_other_all_the_time(fault: str, tmp_path: Path) -> None:
    series = read_recorded(RECORDED / f"{fault}.txt")
    fires = set(FAULTS[fault].fires)
    beside = {**_of_release(fault, "faulty"), **_of_release("none", "healthy")}
    there = _FIRED.replace("{", '{namespace="faulty",')
    elsewhere = _FIRED.replace("{", '{namespace!="faulty",')
    tests = [
        _test_of(fault, series, _FIRED, fires),
        _test_of(f"{fault} beside a healthy release", beside, there, fires),
        _test_of(f"none beside {fault}", beside, elsewhere, set()),
    ]
    _play(tmp_path, tests)


@pytest.mark.parametrize("labels", ["", 'namespace="a",service="leaseway-control-plane",'], ids=str)
def test_a_control_plane_that_vanishes_raises_the_alert_of_one_that_does_not_answer(
    labels: str, tmp_path: Path
) -> None:
    series = {f'up{{{labels}job="leaseway-control-plane"}}': "1x30 stale"}
    _play(tmp_path, [_test_of("vanished", series, _FIRED, {"LeasewayControlPlaneDown"})])


def test_a_replica_that_is_down_beside_one_that_answers_raises_no_alert(tmp_path: Path) -> None:
    labels = 'namespace="a",service="leaseway-control-plane",job="leaseway-control-plane"'
    series = {f'up{{{labels},pod="{pod}"}}': f"{pod}x60" for pod in range(2)}
    _play(tmp_path, [_test_of("replica", series, _FIRED, set())])


def test_a_busy_worker_whose_records_are_shipped_raises_no_alert(tmp_path: Path) -> None:
    series = {
        f'leaseway_audit_unshipped_bytes{{instance="{seed}"}}': " ".join(
            str(Random(f"{seed} {minute}").randint(20_000, 250_000)) for minute in range(61)
        )
        for seed in range(10)
    }
    alert = 'ALERTS{alertname="LeasewayAuditPilesUp",alertstate="firing"}'
    fired = f"alertname of count_over_time({alert}[60m])"
    _play(tmp_path, [_test_of("busy", series, fired, set())])


def test_slots_that_workers_keep_raise_no_alert_while_no_call_is_rejected_for_them(
    tmp_path: Path,
) -> None:
    labels = 'leaseway_quota="concurrent",leaseway_scope="server",leaseway_server="busy"'
    of_a_rate = 'leaseway_limit="limits.calls",leaseway_scope="server",leaseway_server="busy"'
    of_another = of_a_rate.replace("calls", "concurrent").replace("busy", "another")
    series = {
        f"leaseway_limit_remaining{{{labels}}}": "0x60",
        f"leaseway_limits_reached_total{{{of_a_rate}}}": "0+5x60",
        f"leaseway_limits_reached_total{{{of_another}}}": "0+5x60",
    }
    _play(tmp_path, [_test_of("kept", {**series, **_UP}, _FIRED, set())])


def test_a_store_that_fails_is_no_problem_of_the_configuration(tmp_path: Path) -> None:
    labels = 'leaseway_scope="workspace",leaseway_severity="error"'
    series = {f'leaseway_problems{{{labels},leaseway_reason="STORE_UNAVAILABLE"}}': "1x60"}
    _play(tmp_path, [_test_of("store", {**series, **_UP}, _FIRED, {"LeasewayOtherProblem"})])


def test_no_caller_raises_an_alert_by_a_problem_that_it_reports(tmp_path: Path) -> None:
    expressions = " ".join(rule["expr"] for rule in rules() if "leaseway_problems" in rule["expr"])
    named = re.findall(r'leaseway_reason=~?"([^"]*)"', expressions)
    labels = 'leaseway_scope="client",leaseway_severity="error",leaseway_server="a"'
    series = {
        f'leaseway_problems{{{labels},leaseway_reason="{reason}"}}': "1x60"
        for reason in {"PROVIDER_REFUSED", *"|".join(named).split("|")}
    }
    _play(tmp_path, [_test_of("reported", {**series, **_UP}, _FIRED, set())])


def test_a_problem_that_a_rule_names_raises_no_general_alert() -> None:
    problems = {
        rule["alert"]: rule["expr"] for rule in rules() if "leaseway_problems" in rule["expr"]
    }
    left = re.search(r'leaseway_reason!~"([^"]*)"', problems.pop("LeasewayOtherProblem"))
    named = re.findall(r'leaseway_reason=~?"([^"]*)"', " ".join(problems.values()))
    assert left is not None
    by_restarts = "SERVER_LOST"
    assert sorted(left[1].split("|")) == sorted([*"|".join(named).split("|"), by_restarts])


def test_each_alert_has_a_fault_that_raises_it() -> None:
    alerts = {rule["alert"] for rule in rules() if "alert" in rule}
    assert alerts == frozenset[str]().union(*(fault.fires for fault in FAULTS.values()))


def test_each_panel_of_the_dashboards_shows_something_of_some_fault(tmp_path: Path) -> None:
    asked = {
        f"{number}: {place}": expression
        for number, (place, expression) in enumerate(dashboard_expressions())
        if not re.search(f"{_OF_SPANS}|{_UNREAD}", expression)
        and not expression.startswith("label_values")
    }
    for name, text in asked.items():
        for variable, value in _CHOSEN.items():
            text = text.replace(variable, value)
        asked[name] = text
    panels = tmp_path / "panels.yaml"
    records = [
        {"record": "panel", "labels": {"panel": name}, "expr": text} for name, text in asked.items()
    ]
    panels.write_text(json.dumps({"groups": [{"name": "panels", "rules": records}]}))
    series = {
        sample.replace("{", f'{{fault="{fault}",', 1): values
        for fault in _SHOWN
        for sample, values in read_recorded(RECORDED / f"{fault}.txt").items()
    }
    shown = "panel of count_over_time(panel[60m])"
    _play(tmp_path, [_test_of("panels", series, shown, set(asked))], panels)


@pytest.mark.parametrize("fault", FAULTS)
def test_what_was_recorded_has_the_names_and_labels_of_today(fault: str) -> None:
    series = read_recorded(RECORDED / f"{fault}.txt")
    for sample in series:
        name, labels = name_and_labels(sample)
        assert name == "up" or labels.keys() - _OF_PROMETHEUS <= declared_metrics()[name], sample


def test_each_series_that_a_rule_or_a_dashboard_reads_was_recorded() -> None:
    recorded: set[str] = set()
    for fault in FAULTS:
        recorded |= {
            name_and_labels(sample)[0] for sample in read_recorded(RECORDED / f"{fault}.txt")
        }
    assert series_in_use() - recorded <= {_UNREAD}


async def test_a_system_of_today_serves_what_was_recorded(tmp_path: Path) -> None:
    recorded = _shapes(read_recorded(RECORDED / "none.txt"))
    async with staged(FAULTS["none"], tmp_path) as stage:
        await work(stage.client)

        async def is_served() -> bool:
            served = _shapes(await scrape(stage.targets()))
            return recorded <= served

        await eventually(is_served, within=180)


def _shapes(series: Iterable[str]) -> set[tuple[str, ...]]:
    return {(name, *sorted(labels)) for name, labels in map(name_and_labels, series)}
