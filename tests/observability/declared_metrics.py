"""Which metrics the code declares, by the names that Prometheus sees, with their labels."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from leaseway.wire.span_attributes import Attr

ROOT = Path(__file__).parents[2]
_SOURCES = ("control_plane/leaseway", "data_plane/leaseway", "sdk/leaseway")
_UNITS = {"s": "_seconds", "By": "_bytes"}
_SUFFIXES = {
    "counter": ("_total",),
    "gauge": ("",),
    "histogram": ("_bucket", "_count", "_sum"),
}


def declared_names() -> frozenset[str]:
    """Return the names of all metrics, as the code has them."""
    return frozenset(str(name.value) for name in _names() if isinstance(name, ast.Constant))


def _names() -> Iterator[ast.expr | None]:
    for node in _nodes():
        if isinstance(node, ast.Call) and any(True for _ in _series(node)):
            yield node.args[0]
        elif isinstance(node, ast.Dict) and any(True for _ in _totals(node)):
            yield from node.keys


@cache
def declared_metrics() -> dict[str, frozenset[str]]:
    """Return the labels of each series name."""
    found: dict[str, frozenset[str]] = {}
    for node in _nodes():
        if isinstance(node, ast.Call):
            found.update(_series(node))
        elif isinstance(node, ast.Dict):
            found.update(_totals(node))
    return found


def _nodes() -> Iterator[ast.AST]:
    for source in _SOURCES:
        for path in sorted((ROOT / source).rglob("*.py")):
            yield from ast.walk(ast.parse(path.read_text(encoding="utf-8")))


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


def _totals(table: ast.Dict) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield the gauges without labels of a table from names to (unit, description)."""
    for key, value in zip(table.keys, table.values, strict=True):
        if (
            isinstance(key, ast.Constant)
            and str(key.value).startswith("leaseway.")
            and isinstance(value, ast.Tuple)
            and isinstance(value.elts[0], ast.Constant)
        ):
            unit = _UNITS.get(str(value.elts[0].value), "")
            yield re.sub(r"\W", "_", str(key.value)) + unit, frozenset()
