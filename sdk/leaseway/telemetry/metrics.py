"""Metrics: counters, histograms and gauges (design.md#traces-metrics-and-logs).

A cell is one series of an instrument. Its writer keeps it, so that a measurement costs a fraction
of a microsecond (0.06 for a counter, 0.26 for a histogram): `prometheus_client` takes a lock, costs
three to five times as much and has no minimum and maximum for OTLP, and OpenTelemetry looks up a
label set at each call. No I/O and not thread-safe: the loop that writes the cells also collects.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar

from leaseway.wire.channels.trace_context import ids_in

MAX_SERIES: Final = 2_000
"""Limit of series per instrument; further label sets share the series `OTHER`."""

OTHER: Final = "other"
"""The value of every label of the series for label sets beyond `MAX_SERIES`."""

DURATIONS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Upper bounds of buckets in seconds, as OpenTelemetry's MCP conventions advise."""


Kind = Literal["counter", "gauge", "histogram"]
Labels = tuple[str, ...]
Reading = Iterable[tuple[Labels, float]]
"""The current series of an observed gauge or counter: label values and number."""


class Counter:
    """One series of a number that only grows, since a Unix time in nanoseconds."""

    __slots__ = ("labels", "since", "value")

    def __init__(self, labels: Mapping[str, str], since: int) -> None:
        self.labels = labels
        self.since = since
        self.value = 0.0

    def add(self, amount: float = 1.0) -> None:
        self.value += amount


class Exemplar(NamedTuple):
    """The last traced amount of a bucket, recorded at a Unix time in seconds."""

    trace_id: str
    span_id: str
    value: float
    at: float


class Histogram:
    """One series of amounts, counted in buckets, since a Unix time in nanoseconds.

    Attributes:
        bounds: The upper bounds of all buckets but the last, which has none.
        exemplars: The last traced amount of each bucket, or None if there is none at all.
    """

    __slots__ = ("bounds", "counts", "exemplars", "labels", "maximum", "minimum", "since", "sum")

    def __init__(self, labels: Mapping[str, str], since: int, bounds: Sequence[float]) -> None:
        self.labels = labels
        self.since = since
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        self.minimum, self.maximum = inf, -inf
        self.exemplars: list[Exemplar | None] | None = None

    def record(self, amount: float, traceparent: str = "") -> None:
        """Record an amount. An amount equal to a bound counts below it.

        Args:
            traceparent: The W3C `traceparent` of its recorded trace, or empty.
        """
        bucket = bisect_left(self.bounds, amount)
        self.counts[bucket] += 1
        if traceparent:
            self._add_exemplar(bucket, amount, traceparent)
        self.sum += amount
        if amount < self.minimum:
            self.minimum = amount
        if amount > self.maximum:
            self.maximum = amount

    def _add_exemplar(self, bucket: int, amount: float, traceparent: str) -> None:
        ids = ids_in(traceparent)
        if ids is None:  # a caller may send any text
            return
        if self.exemplars is None:
            self.exemplars = [None] * len(self.counts)
        self.exemplars[bucket] = Exemplar(ids[0], ids[1], amount, time.time())


class Buckets(NamedTuple):
    """A copy of a histogram: `counts` has one entry more than `bounds`."""

    bounds: Sequence[float]
    counts: tuple[int, ...]
    sum: float
    minimum: float
    maximum: float
    exemplars: tuple[Exemplar | None, ...] = ()
    """Empty, or one for each of `counts`."""

    @property
    def total(self) -> int:
        """The number of amounts."""
        return sum(self.counts)


class Point(NamedTuple):
    """A copy of one series, without the labels that have no value."""

    labels: Mapping[str, str]
    value: float | Buckets
    since: int


@dataclass(frozen=True, slots=True)
class Family:
    """A copy of one instrument and its series.

    Attributes:
        name: Its OpenTelemetry name, such as `mcp.client.operation.duration`.
        unit: `s`, `By`, or the counted thing in braces, such as `{lease}`.
    """

    name: str
    kind: Kind
    unit: str
    description: str
    points: tuple[Point, ...]


CellT = TypeVar("CellT", Counter, Histogram)


class Instrument(Generic[CellT]):
    """The series of one counter or histogram; each has a value, maybe empty, for each label."""

    def __init__(
        self,
        name: str,
        kind: Kind,
        unit: str,
        description: str,
        labels: Labels,
        make: Callable[[Mapping[str, str]], CellT],
    ) -> None:
        self.name = name
        self.labels = labels
        self._kind = kind
        self._unit = unit
        self._description = description
        self._make: Callable[[Mapping[str, str]], CellT] = make
        self._cells: dict[Labels, CellT] = {}

    def cell(self, *values: str) -> CellT:
        """Return the series with these label values. Frequent writers keep it."""
        assert len(values) == len(self.labels), f"{self.name} has the labels {self.labels}"
        cell = self._cells.get(values)
        if cell is None:
            if len(self._cells) >= MAX_SERIES - 1:  # the last one is `OTHER`
                values = (OTHER,) * len(self.labels)
                cell = self._cells.get(values)
            if cell is None:
                cell = self._cells[values] = self._make(_named(self.labels, values))
        return cell

    def remove_unless(self, label: str, is_kept: Callable[[str], bool]) -> None:
        """Remove the series whose value of a label fails a test.

        Series without a value of it stay, and `OTHER`, which counts for many.
        """
        at, other = self.labels.index(label), (OTHER,) * len(self.labels)
        for values in list(self._cells):
            if values[at] and values != other and not is_kept(values[at]):
                del self._cells[values]

    def read(self) -> Family:
        """Return a copy of all series, without empty histograms."""
        points = tuple(
            Point(cell.labels, value, cell.since)
            for cell in self._cells.values()
            if (value := _value(cell)) is not None
        )
        return Family(
            name=self.name,
            kind=self._kind,
            unit=self._unit,
            description=self._description,
            points=points,
        )


class Meter:
    """All instruments of a process.

    Args:
        clock: Unix time in nanoseconds.
    """

    def __init__(self, clock: Callable[[], int] = time.time_ns) -> None:
        self._clock = clock
        self._since = clock()
        self._families: dict[str, Callable[[], Family]] = {}
        self._instruments: list[Instrument[Any]] = []
        self._before: list[Callable[[], None]] = []

    def counter(self, name: str, unit: str, description: str, *labels: str) -> Instrument[Counter]:
        def make(labels: Mapping[str, str]) -> Counter:
            return Counter(labels, self._clock())

        return self._add(Instrument(name, "counter", unit, description, labels, make))

    def histogram(
        self,
        name: str,
        unit: str,
        description: str,
        *labels: str,
        bounds: Sequence[float] = DURATIONS,
    ) -> Instrument[Histogram]:
        def make(labels: Mapping[str, str]) -> Histogram:
            return Histogram(labels, self._clock(), bounds)

        return self._add(Instrument(name, "histogram", unit, description, labels, make))

    def observe(
        self,
        name: str,
        unit: str,
        description: str,
        read: Callable[[], Reading],
        *labels: str,
        kind: Literal["gauge", "counter"] = "gauge",
    ) -> None:
        """Add an instrument whose numbers are read from the process's state at each collection.

        Numbers with the same label values are summed.
        """

        def family() -> Family:
            points = tuple(
                Point(_named(labels, values), number, self._since)
                for values, number in _bounded(read(), len(labels)).items()
            )
            return Family(name=name, kind=kind, unit=unit, description=description, points=points)

        self._register(name, family)

    def before_collecting(self, work: Callable[[], None]) -> None:
        """Run a function before each collection, for example to remove old series."""
        self._before.append(work)

    def collect(self) -> tuple[Family, ...]:
        """Return an immutable copy of all instruments."""
        for work in self._before:
            work()
        return tuple(family() for family in self._families.values())

    def remove_unless(self, label: str, is_kept: Callable[[str], bool]) -> None:
        """Remove from each instrument that has a label the series whose value fails a test."""
        for instrument in self._instruments:
            if label in instrument.labels:
                instrument.remove_unless(label, is_kept)

    def _add(self, instrument: Instrument[CellT]) -> Instrument[CellT]:
        self._register(instrument.name, instrument.read)
        self._instruments.append(instrument)
        return instrument

    def _register(self, name: str, read: Callable[[], Family]) -> None:
        assert name not in self._families, f"there are two instruments named {name}"
        self._families[name] = read


def _bounded(readings: Reading, labels: int) -> dict[Labels, float]:
    found: dict[Labels, float] = {}
    for values, number in readings:
        if values not in found and len(found) >= MAX_SERIES - 1:
            values = (OTHER,) * labels
        found[values] = found.get(values, 0.0) + number
    return found


def _named(labels: Labels, values: Labels) -> dict[str, str]:
    return {label: value for label, value in zip(labels, values, strict=True) if value}


def _value(cell: Counter | Histogram) -> float | Buckets | None:
    if isinstance(cell, Counter):
        return cell.value
    if cell.minimum > cell.maximum:
        return None
    exemplars = tuple(cell.exemplars or ())
    return Buckets(
        bounds=cell.bounds,
        counts=tuple(cell.counts),
        sum=cell.sum,
        minimum=cell.minimum,
        maximum=cell.maximum,
        exemplars=exemplars,
    )


SHOWN_FOR: Final = 300.0
"""Seconds that the series of a removed server stay, so that its last numbers are collected."""


class Retention:
    """Remembers when each name was last present, to keep its series for `SHOWN_FOR`."""

    def __init__(self) -> None:
        self._seen: dict[str, float] = {}

    def retained(self, present: Collection[str], now: float) -> Callable[[str], bool]:
        """Return a test for names that are present, or were within the last 300 s.

        Args:
            now: Seconds on a monotonic clock.
        """
        self._seen.update(dict.fromkeys(present, now))
        for name in [name for name, last in self._seen.items() if now - last > SHOWN_FOR]:
            del self._seen[name]
        return self._seen.__contains__
