"""Dashboards, alert rules and the collector use only existing names."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from tests.observability.declared_metrics import ROOT, declared_metrics, declared_names
from tests.observability.recording import RULES, dashboard_expressions, rules
from tests.observability.span_metrics import FOLDER, span_metrics

_OF_PROMETHEUS = frozenset({"job", "instance", "namespace", "service", "le"})
_WORDS = frozenset(
    [
        "absent",
        "sum",
        "by",
        "rate",
        "increase",
        "delta",
        "histogram_quantile",
        "max",
        "min",
        "label_replace",
        "label_values",
        "and",
        "or",
        "unless",
        "min",
        "min_over_time",
        "max_over_time",
        "on",
        "without",
        "up",
        "bool",
        "ignoring",
    ]
)
_OF_ITS_REASON = "{{ $labels.leaseway_reason | toLower }}"
"""A reason's heading, which each has."""
_RECORDED = re.compile(r"leaseway:\w+:\w+")


def _dashboards() -> ModuleType:
    path = FOLDER / "dashboards.py"
    spec = importlib.util.spec_from_file_location("observability_dashboards", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _expressions() -> list[tuple[str, str]]:
    named = [(rule.get("alert") or rule["record"], rule["expr"]) for rule in rules()]
    return [*named, *dashboard_expressions()]


@pytest.mark.parametrize(("place", "expression"), _expressions())
def test_an_expression_names_series_and_labels_that_exist(place: str, expression: str) -> None:
    known = {**declared_metrics(), **span_metrics()}
    bare = _RECORDED.sub("", expression)
    bare = re.sub(r'"[^"]*"', '""', bare)
    labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", bare))
    for group in re.findall(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)", bare):
        labels |= set(re.findall(r"\w+", group))
    outside = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\boffset \w+|\b(?:by|on)\s*\([^)]*\)", " ", bare)
    if outside.strip().startswith("label_values"):
        series, label = re.findall(r"\(([^,]+),\s*(\w+)\)", outside)[0]
        labels.add(label)
        outside = series
    names = {word for word in re.findall(r"[a-zA-Z_]\w*", outside) if word not in _WORDS}
    assert names or "up{" in expression or _RECORDED.search(expression), place
    assert names <= set(known), f"{place}: {sorted(names - set(known))}"
    allowed = _OF_PROMETHEUS.union(*(known[name] for name in names)) | {"leaseway_server"}
    assert labels <= allowed, f"{place}: {sorted(labels - allowed)}"


def test_the_operating_page_has_a_row_for_each_metric() -> None:
    page = (ROOT / "docs/operating.md").read_text(encoding="utf-8")
    table = page.partition("| metric | kind | attributes | exported by |")[2].partition("\n\n")[0]
    cells = [row.split("|")[1] for row in table.splitlines() if row]
    assert declared_names() == {name for cell in cells for name in re.findall(r"`(.+?)`", cell)}


def test_the_dashboards_are_those_that_are_written_from_their_panels() -> None:
    module = _dashboards()
    for dashboard in module.DASHBOARDS:
        path = FOLDER / "dashboards" / f"{dashboard.name}.json"
        assert path.read_text(encoding="utf-8") == module.render(dashboard), path.name


def test_each_alert_links_to_a_place_in_the_runbook() -> None:
    page = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
    headings = re.findall(r"^##+ (.+)$", page, re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    for rule in rules():
        if "alert" in rule:
            file, _, anchor = rule["annotations"]["runbook"].partition("#")
            assert file == "docs/runbook.md"
            assert anchor in anchors | {_OF_ITS_REASON}, rule["alert"]


def test_each_pipeline_of_the_collector_uses_what_is_configured() -> None:
    collector = yaml.safe_load((FOLDER / "collector.yaml").read_text(encoding="utf-8"))
    for name, pipeline in collector["service"]["pipelines"].items():
        for part in ("receivers", "processors", "exporters"):
            known = {*collector[part], *collector["connectors"]}
            assert set(pipeline[part]) <= known, f"{name}: {part}"


def test_the_rules_that_prometheus_reads_are_there() -> None:
    prometheus = yaml.safe_load((FOLDER / "prometheus.yaml").read_text(encoding="utf-8"))
    for name in prometheus["rule_files"]:
        assert (FOLDER / name).is_file()
    jobs = {scrape_config["job_name"] for scrape_config in prometheus["scrape_configs"]}
    text = RULES.read_text(encoding="utf-8")
    assert set(re.findall(r'job="([^"]+)"', text)) <= jobs


def test_a_name_that_does_not_exist_is_noticed() -> None:
    assert "leaseway_leases_held" in declared_metrics()
    assert "leaseway_leases_held_total" not in declared_metrics()
    assert Path(FOLDER / "README.md").is_file()
