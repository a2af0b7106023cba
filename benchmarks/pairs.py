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
    """Return the ratios of calls/s and of the CPU times of planes and client.

    Each is the geometric mean of the pairs, with the bounds of its 95 % interval. Pairs with a load
    without any CPU time, which a busy machine has not run, say nothing.
    """
    pairs = [pair for pair in pairs if all(load.worker_cpu and load.client_cpu for load in pair)]
    return {
        **_mean("rate_ratio", [first.rate / second.rate for first, second in pairs]),
        **_mean("cpu_ratio", [first.worker_cpu / second.worker_cpu for first, second in pairs]),
        **_mean(
            "client_cpu_ratio", [first.client_cpu / second.client_cpu for first, second in pairs]
        ),
        "calls_s": statistics.median(first.rate for first, _ in pairs),
        "other_calls_s": statistics.median(second.rate for _, second in pairs),
        "cpu_us": statistics.median(first.worker_cpu for first, _ in pairs),
        "other_cpu_us": statistics.median(second.worker_cpu for _, second in pairs),
    }


def _mean(name: str, ratios: Sequence[float]) -> dict[str, float]:
    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.mean(logs)
    half = _STANDARD_ERRORS * statistics.stdev(logs) / math.sqrt(len(logs))
    bounds = {"": mean, "_low": mean - half, "_high": mean + half}
    return {f"{name}{end}": math.exp(value) for end, value in bounds.items()}
