"""Which metrics the code declares, by the names that Prometheus sees, with their labels."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from leaseway.wire.span_attributes import Attr

ROOT = Path(__file__).parents[2]
_SOURCES = ("control_plane/leaseway", "data_plane/leaseway", "sdk/leaseway")
_DECLARES = re.compile(r"""\.(?:counter|histogram|observe)\(|["']leaseway\.""")
_UNITS = {"s": "_seconds", "By": "_bytes"}
_SUFFIXES = {
    "counter": ("_total",),
    "gauge": ("",),
    "histogram": ("_bucket", "_count", "_sum"),
}


def declared_names() -> frozenset[str]:
    """Return the names of all metrics, as the code has them."""
    return frozenset(name for name, _ in _declarations())


def declared_metrics() -> dict[str, frozenset[str]]:
    """Return the labels of each series name."""
    return {series: labels for _, found in _declarations() for series, labels in found.items()}


@cache
def _declarations() -> Sequence[tuple[str, Mapping[str, frozenset[str]]]]:
    """Return the name of each metric, with its series and their labels."""
    return [declared for node in _nodes() for declared in _declared_by(node)]


def _declared_by(node: ast.AST) -> Iterator[tuple[str, Mapping[str, frozenset[str]]]]:
    if isinstance(node, ast.Call) and (series := dict(_series(node))):
        yield ast.literal_eval(node.args[0]), series
    elif isinstance(node, ast.Dict):
        yield from _totals(node)


def _nodes() -> Iterator[ast.AST]:
    """Yield the nodes of all files that may declare a metric: to parse every file takes seconds."""
    for source in _SOURCES:
        for path in sorted((ROOT / source).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if _DECLARES.search(text):
                yield from ast.walk(ast.parse(text))


def _series(call: ast.Call) -> Iterator[tuple[str, frozenset[str]]]:
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    kind = {"counter": "counter", "histogram": "histogram", "observe": "gauge"}.get(method)
    texts = [arg.value for arg in call.args[:2] if isinstance(arg, ast.Constant)]
    if kind is None or len(texts) != 2 or not all(isinstance(text, str) for text in texts):
        return
    for keyword in call.keywords:
        if keyword.arg == "kind" and isinstance(keyword.value, ast.Constant):
            kind = str(keyword.value.value)
    name, unit = (str(text) for text in texts)
    labels = frozenset(
        re.sub(r"\W", "_", getattr(Attr, arg.attr, arg.attr))
        for arg in call.args[3:]
        if isinstance(arg, ast.Attribute)
    ) | frozenset(
        re.sub(r"\W", "_", str(arg.value)) for arg in call.args[3:] if isinstance(arg, ast.Constant)
    )
    base = re.sub(r"\W", "_", name) + _UNITS.get(unit, "")
    for suffix in _SUFFIXES[kind]:
        yield base + suffix, labels | ({"le"} if suffix == "_bucket" else set())


def _totals(table: ast.Dict) -> Iterator[tuple[str, Mapping[str, frozenset[str]]]]:
    """Yield the gauges without labels of a table from names to (unit, description)."""
    for key, value in zip(table.keys, table.values, strict=True):
        if (
            isinstance(key, ast.Constant)
            and str(key.value).startswith("leaseway.")
            and isinstance(value, ast.Tuple)
            and isinstance(value.elts[0], ast.Constant)
        ):
            name = str(key.value)
            unit = _UNITS.get(str(value.elts[0].value), "")
            yield name, {re.sub(r"\W", "_", name) + unit: frozenset()}
