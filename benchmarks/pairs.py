"""Compares two ways in pairs that follow each other, so that both see the same machine."""

from __future__ import annotations

import math
import statistics
from collections.abc import Awaitable, Callable, Sequence

from benchmarks.figures import Load

__all__ = ["Pair", "compared", "paired"]

Pair = tuple[Load, Load]
_SURE = 2.0
"""Standard errors on both sides of a mean that it lies in at 95 %."""


async def paired(
    one: Callable[[], Awaitable[Load]], other: Callable[[], Awaitable[Load]], count: int
) -> list[Pair]:
    """Measure pairs; every second one the other way round."""
    pairs: list[Pair] = []
    for number in range(count):
        if number % 2:
            second = await other()
            pairs.append((await one(), second))
        else:
            pairs.append((await one(), await other()))
    return pairs


def compared(pairs: Sequence[Pair]) -> dict[str, float]:
    """Return how calls/s and CPU time of the first, of planes and client, relate to the second's.

    Each is the geometric mean of the pairs' ratios, with the bounds of its 95 % interval.
    """
    return {
        **_mean("rate_ratio", [one.rate / other.rate for one, other in pairs]),
        **_mean("cpu_ratio", [one.worker_cpu / other.worker_cpu for one, other in pairs]),
        **_mean("client_cpu_ratio", [one.client_cpu / other.client_cpu for one, other in pairs]),
        "calls_s": statistics.median(one.rate for one, _ in pairs),
        "other_calls_s": statistics.median(other.rate for _, other in pairs),
        "cpu_us": statistics.median(one.worker_cpu for one, _ in pairs),
        "other_cpu_us": statistics.median(other.worker_cpu for _, other in pairs),
    }


def _mean(name: str, ratios: Sequence[float]) -> dict[str, float]:
    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.mean(logs)
    half = _SURE * statistics.stdev(logs) / math.sqrt(len(logs))
    bounds = {"": mean, "_low": mean - half, "_high": mean + half}
    return {f"{name}{end}": math.exp(value) for end, value in bounds.items()}
