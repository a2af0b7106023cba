"""What was measured, in Prometheus' text format 0.0.4 (DESIGN §11).

Names are OpenTelemetry's, translated as its specification says: `mcp.client.operation.duration`
in seconds becomes `mcp_client_operation_duration_seconds`, and counters end in `_total`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from leaseway.wire.metrics import Buckets, Family, Point

__all__ = ["CONTENT_TYPE", "render"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_UNITS: Final = {"s": "_seconds", "By": "_bytes"}
_UNSAFE: Final = re.compile(r"[^a-zA-Z0-9_]")


def render(families: Iterable[Family], resource: Mapping[str, str] | None = None) -> str:
    """Return a page of metrics.

    Args:
        families: What was measured; those without series are at least described.
        resource: What the process is, such as `service.name`; the labels of `target_info`.

    """
    lines: list[str] = []
    if resource:
        lines += ["# HELP target_info What this process is.", "# TYPE target_info gauge"]
        lines.append(f"target_info{_labels(resource)} 1")
    for family in families:
        lines.extend(_family(family))
    return "\n".join(lines) + "\n"


def _family(family: Family) -> Iterator[str]:
    name = _name(family)
    yield f"# HELP {name} {_escaped(family.description)}"
    yield f"# TYPE {name} {family.kind}"
    for point in family.points:
        if isinstance(point.value, Buckets):
            yield from _histogram(name, point, point.value)
        else:
            yield f"{name}{_labels(point.labels)} {_number(point.value)}"


def _histogram(name: str, point: Point, buckets: Buckets) -> Iterator[str]:
    labels = _labels(point.labels)
    opened = f"{labels[:-1]}," if labels else "{"
    below = 0
    for bound, count in zip((*buckets.bounds, None), buckets.counts, strict=True):
        below += count
        limit = "+Inf" if bound is None else _number(bound)
        yield f'{name}_bucket{opened}le="{limit}"}} {below}'
    yield f"{name}_sum{labels} {_number(buckets.sum)}"
    yield f"{name}_count{labels} {below}"


def _name(family: Family) -> str:
    suffix = _UNITS.get(family.unit, "")
    total = "_total" if family.kind == "counter" else ""
    return f"{_UNSAFE.sub('_', family.name)}{suffix}{total}"


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    pairs = (f'{_UNSAFE.sub("_", name)}="{_quoted(text)}"' for name, text in labels.items())
    return "{" + ",".join(pairs) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', '\\"')


def _number(value: float) -> str:
    number = float(value)
    return str(int(number)) if number.is_integer() else repr(number)
