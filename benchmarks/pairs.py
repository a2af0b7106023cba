"""Compares two loads in consecutive pairs, so that both run under the same conditions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Awaitable, Callable, Sequence

from benchmarks.figures import Load

__all__ = ["Pair", "compare", "measure_pairs"]

Pair = tuple[Load, Load]
_STANDARD_ERRORS = 2.0
"""Half width of a 95 % interval of a mean, in standard errors."""


async def measure_pairs(
    one: Callable[[], Awaitable[Load]], other: Callable[[], Awaitable[Load]], count: int
) -> list[Pair]:
    """Measure pairs, with alternating order."""
    pairs: list[Pair] = []
    for number in range(count):
        if number % 2:
            second = await other()
            pairs.append((await one(), second))
        else:
            pairs.append((await one(), await other()))
    return pairs


def compare(pairs: Sequence[Pair]) -> dict[str, float]:
    """Return the ratios of calls/s, of the median duration and of the CPU times of a call.

    Each is the geometric mean of the pairs, with the bounds of its 95 % interval. The CPU time is
    that of planes and client, each if both loads have it, and of all together. Pairs with a load
    without any CPU time, which a busy machine has not run, say nothing.
    """
    has_planes = all(any(pair[side].worker_cpu for pair in pairs) for side in (0, 1))
    pairs = [
        pair
        for pair in pairs
        if all(load.client_cpu and (load.worker_cpu or not has_planes) for load in pair)
    ]
    figures: dict[str, Callable[[Load], float]] = {"rate": lambda load: load.rate, "p50": _p50}
    if has_planes:
        figures["cpu"] = lambda load: load.worker_cpu
    figures["client_cpu"] = lambda load: load.client_cpu
    figures["all_cpu"] = _all_cpu
    found: dict[str, float] = {}
    for name, figure in figures.items():
        ratios = [figure(first) / figure(second) for first, second in pairs]
        found |= _mean(f"{name}_ratio", ratios)
    medians = {"calls_s": figures["rate"], "p50_us": _p50, "all_cpu_us": _all_cpu}
    if has_planes:
        medians["cpu_us"] = figures["cpu"]
    for name, figure in medians.items():
        found[name] = statistics.median(figure(first) for first, _ in pairs)
        found[f"other_{name}"] = statistics.median(figure(second) for _, second in pairs)
    return found


def _p50(load: Load) -> float:
    return load.p50


def _all_cpu(load: Load) -> float:
    return load.client_cpu + load.worker_cpu


def _mean(name: str, ratios: Sequence[float]) -> dict[str, float]:
    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.mean(logs)
    half = _STANDARD_ERRORS * statistics.stdev(logs) / math.sqrt(len(logs))
    bounds = {"": mean, "_low": mean - half, "_high": mean + half}
    return {f"{name}{end}": math.exp(value) for end, value in bounds.items()}
