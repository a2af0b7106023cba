"""Response templates: the time to compile and to render one."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from typing import Final

from benchmarks.rows.row import check
from benchmarks.specials.special import Special
from leaseway.templates import engine

__all__ = ["SPECIALS"]

_TEXT: Final = "Name: {{ .data.name }}{{- range $i, $t := .data.tags }} {{ $i }}={{ $t }}{{- end }}"
_DATA: Final = {"data": {"name": "Ann", "tags": ["a", "b", "c"]}}
_EXPECTED: Final = "Name: Ann 0=a 1=b 2=c"
_RENDERS: Final = 10_000


async def _measure() -> Mapping[str, float]:
    start = time.perf_counter()
    template = engine.compiled(_TEXT)
    compiled = time.perf_counter() - start
    templates = {template}
    durations: list[float] = []
    for _ in range(_RENDERS):
        start = time.perf_counter()
        used = engine.compiled(_TEXT)  # as each starting instance does
        text = used.render(_DATA)
        durations.append(time.perf_counter() - start)
        templates.add(used)
        check(text, _EXPECTED)
    durations.sort()
    return {
        "compiles": float(len(templates)),
        "compile_ms": compiled * 1e3,
        "render_median_us": statistics.median(durations) * 1e6,
        "render_p99_us": durations[_RENDERS * 99 // 100] * 1e6,
        "renders": float(_RENDERS),
    }


SPECIALS = (Special("templates", "One response template, compiled once", _measure),)
