"""Metrics of processes over time: scraped, kept as text, and told to promtool.

One scrape counts as a minute, whatever time lay between two: rules that look at hours can be
tried on a system that ran for one. A file has one series a line with its values as promtool
writes them: `3x2` is three threes, `_` no sample yet, `stale` the scrape after the last one.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import yaml
from prometheus_client.parser import text_string_to_metric_families
from tests.observability.declared_metrics import ROOT, declared_metrics

RULES = ROOT / "deploy" / "chart" / "leaseway" / "alerts.yaml"
_DASHBOARDS = ROOT / "deploy" / "observability" / "dashboards"
_PATIENCE = 1.5
_DIGITS = 4
_SHORTEST_RUN = 3

Values = list[float | None]


def rules() -> list[dict[str, Any]]:
    """Return the rules, alerts and recording rules."""
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboard_expressions() -> Iterator[tuple[str, str]]:
    """Yield the dashboards' expressions, each with its place."""
    for path in sorted(_DASHBOARDS.glob("*.json")):
        board = json.loads(path.read_text(encoding="utf-8"))
        for panel in board["panels"]:
            for target in panel["targets"]:
                yield f"{path.name}: {panel['title']}: {target['legendFormat']}", target["expr"]
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                yield f"{path.name}: {variable['name']}", variable["query"]


@cache
def series_in_use() -> frozenset[str]:
    """Return the names of series that a rule or a dashboard reads."""
    texts = [rule["expr"] for rule in rules()] + [text for _, text in dashboard_expressions()]
    words = {word for text in texts for word in re.findall(r"[a-z_]\w*", text)}
    return frozenset(words & declared_metrics().keys())


@dataclass
class Recording:
    """The samples of all series, one a minute."""

    minutes: int = 0
    series: dict[str, Values] = field(default_factory=dict)

    def add(self, samples: Mapping[str, float]) -> None:
        """Add the samples of one minute."""
        for name in samples:
            self.series.setdefault(name, [None] * self.minutes)
        self.minutes += 1
        for name, values in self.series.items():
            values.append(samples.get(name))

    def lines(self) -> Iterator[str]:
        """Yield each series with its values."""
        for name in sorted(self.series):
            yield f"{name} {' '.join(_notation(self.series[name]))}"

    def write(self, path: Path) -> None:
        """Write it to a file."""
        path.write_text("\n".join(self.lines()) + "\n", encoding="utf-8")


def read_recorded(path: Path) -> dict[str, str]:
    """Return promtool's values for each series of a file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return {series + "}": values for series, _, values in (line.rpartition("} ") for line in lines)}


def name_and_labels(series: str) -> tuple[str, dict[str, str]]:
    """Return the parts of a series as it stands in a file."""
    name, _, rest = series.partition("{")
    return name, {
        label: json.loads(value)
        for label, value in re.findall(r'(\w+)=("(?:[^"\\]|\\.)*")', rest.removesuffix("}"))
    }


def _notation(values: Values) -> Iterator[str]:
    at = 0
    while at < len(values):
        value = values[at]
        if value is None and at and values[at - 1] is not None:
            yield "stale"  # as Prometheus marks a series that a scrape has not any more
            at += 1
            continue
        step, count = _run(values[at:])
        if value is None:
            yield f"_x{count}" if count > 1 else "_"
        elif count < _SHORTEST_RUN or value != int(value):
            yield _number(value)
            count = 1
        else:
            yield f"{int(value)}{f'+{int(step)}' if step else ''}x{count - 1}"
        at += count


def _run(values: Values) -> tuple[float, int]:
    """Return the step between the first values and how many values have it."""
    first, second = values[0], values[1] if len(values) > 1 else None
    if first is None or second is None or second < first:
        return 0, next((n for n, value in enumerate(values) if value != first), len(values))
    step = second - first
    count = 2
    while count < len(values) and values[count] == first + step * count:
        count += 1
    return step, count


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else str(round(value, _DIGITS))


async def scrape(targets: Mapping[str, str]) -> dict[str, float]:
    """Scrape each target as Prometheus does; one that does not answer is not `up`.

    Args:
        targets: Jobs by `HOST:PORT`.
    """
    found: dict[str, float] = {}
    pages = await asyncio.gather(*(asyncio.to_thread(_page, target) for target in targets))
    for number, ((_address, job), text) in enumerate(zip(targets.items(), pages, strict=True)):
        # Ports differ from run to run; the place in the list does not.
        of_target = {"instance": f"target-{number}", "job": job}
        found[_series("up", of_target)] = float(text is not None)
        for family in text_string_to_metric_families(text or ""):
            for sample in family.samples:
                if sample.name in series_in_use():
                    found[_series(sample.name, {**sample.labels, **of_target})] = sample.value
    return found


def _page(address: str) -> str | None:
    try:
        with urlopen(f"http://{address}/metrics", timeout=_PATIENCE) as answer:
            return str(answer.read().decode())
    except OSError:
        return None


def _series(name: str, labels: Mapping[str, str]) -> str:
    inside = ",".join(f"{label}={json.dumps(value)}" for label, value in sorted(labels.items()))
    return f"{name}{{{inside}}}"
