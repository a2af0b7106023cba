"""Response templates: how long one takes to compile and to render."""

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
_WANTED: Final = "Name: Ann 0=a 1=b 2=c"
_RENDERS: Final = 10_000


async def _measure() -> Mapping[str, float]:
    began = time.perf_counter()
    template = engine.compiled(_TEXT)
    compiled = time.perf_counter() - began
    seen = {template}
    took: list[float] = []
    for _ in range(_RENDERS):
        began = time.perf_counter()
        used = engine.compiled(_TEXT)  # as an instance that starts takes it
        text = used.render(_DATA)
        took.append(time.perf_counter() - began)
        seen.add(used)
        check(text, _WANTED)
    took.sort()
    return {
        "compiles": float(len(seen)),
        "compile_ms": compiled * 1e3,
        "render_median_us": statistics.median(took) * 1e6,
        "render_p99_us": took[_RENDERS * 99 // 100] * 1e6,
        "renders": float(_RENDERS),
    }


SPECIALS = (Special("templates", "One response template, compiled once", _measure),)
