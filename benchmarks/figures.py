"""What one row measured, over several rounds: medians, spread and ratios. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Figures", "Load", "Spread", "figures_from_json", "percentile", "ratio", "spread"]


@dataclass(frozen=True)
class Load:
    """One closed loop of calls: `in_flight` callers, each waiting for its answer.

    Attributes:
        in_flight: How many callers.
        calls: How many calls ended.
        seconds: How long it took.
        p50: The median time of a call, in microseconds.
        p99: 99 of 100 calls took at most this, in microseconds.
        client_cpu: CPU microseconds a call of the process that calls.
        worker_cpu: CPU microseconds a call of the processes between caller and server.
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
        """Calls a second."""
        return self.calls / self.seconds


@dataclass(frozen=True)
class Figures:
    """What one row measured in one round.

    Attributes:
        row: Its name.
        loads: By callers in flight.
        rss: Resident MiB of the processes between caller and server, after the loads.
        more: Other figures, by name.
    """

    row: str
    loads: Mapping[int, Load] = field(default_factory=dict)
    rss: float = 0.0
    more: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Spread:
    """A figure over the rounds."""

    low: float
    median: float
    high: float


def figures_from_json(document: Mapping[str, Any]) -> Figures:
    """Return figures from what `dataclasses.asdict` made of them and JSON kept."""
    loads = {int(count): Load(**load) for count, load in document["loads"].items()}
    return Figures(document["row"], loads, document["rss"], document["more"])


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that `share` (0 to 1) of the sorted values do not exceed."""
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, max(0, round(share * len(ordered)) - 1))]


def spread(values: Iterable[float]) -> Spread | None:
    """Return the spread of a figure, or None where it was never measured."""
    known = sorted(values)
    if not known:
        return None
    return Spread(known[0], statistics.median(known), known[-1])


def ratio(
    above: Sequence[Figures],
    below: Sequence[Figures],
    figure: Callable[[Figures], float | None],
    other: Callable[[Figures], float | None] | None = None,
) -> Spread | None:
    """Return a figure of one row divided by one of another, round by round.

    Args:
        above: A row's rounds.
        below: The rounds of the row that it is compared with.
        figure: Of both, or of the first where `other` is given.
        other: Of the second.
    """
    values = []
    for first, second in zip(above, below, strict=False):
        top, bottom = figure(first), (other or figure)(second)
        if top is not None and bottom:
            values.append(top / bottom)
    return spread(values)
