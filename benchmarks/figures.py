"""Figures of rows over several rounds: medians, spread and ratios. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Figures", "Load", "Spread", "figures_from_json", "percentile", "ratio", "spread"]


@dataclass(frozen=True)
class Load:
    """A closed loop of calls: `in_flight` callers with one call each.

    Attributes:
        calls: The number of finished calls.
        p50: The median duration of a call, in microseconds.
        p99: The 99th percentile, in microseconds.
        client_cpu: CPU time per call of the calling process, in microseconds.
        worker_cpu: CPU time per call of the processes between caller and server, in microseconds.
    """

    in_flight: int
    calls: int
    seconds: float
    p50: float
    p99: float
    client_cpu: float
    worker_cpu: float

    @property
    def rate(self) -> float:
        """Calls per second."""
        return self.calls / self.seconds


@dataclass(frozen=True)
class Figures:
    """The figures of one row in one round.

    Attributes:
        row: The row's name.
        loads: Loads by callers in flight.
        rss: Resident MiB of the processes between caller and server, after the loads.
        more: Other figures, by name.
    """

    row: str
    loads: Mapping[int, Load] = field(default_factory=dict)
    rss: float = 0.0
    more: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Spread:
    """The lowest, median and highest value of a figure over the rounds."""

    low: float
    median: float
    high: float


def figures_from_json(document: Mapping[str, Any]) -> Figures:
    """Return figures from the JSON of `dataclasses.asdict`."""
    loads = {int(count): Load(**load) for count, load in document["loads"].items()}
    return Figures(document["row"], loads, document["rss"], document["more"])


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the percentile of sorted values for a share from 0 to 1; 0 for no values."""
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, max(0, round(share * len(ordered)) - 1))]


def spread(values: Iterable[float]) -> Spread | None:
    """Return the spread of a figure, or None if it was never measured."""
    ordered = sorted(values)
    if not ordered:
        return None
    return Spread(ordered[0], statistics.median(ordered), ordered[-1])


def ratio(
    rounds: Sequence[Figures],
    other_rounds: Sequence[Figures],
    figure: Callable[[Figures], float | None],
) -> Spread | None:
    """Return a figure of one row divided by that of another, round by round."""
    values = []
    for first, second in zip(rounds, other_rounds, strict=False):
        dividend, divisor = figure(first), figure(second)
        if dividend is not None and divisor:
            values.append(dividend / divisor)
    return spread(values)
