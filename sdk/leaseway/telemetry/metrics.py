"""Numbers that a process keeps about itself: counters, histograms and gauges (DESIGN §11).

A cell is one series of an instrument, made once and kept by whoever writes it, so that noting
something costs a fraction of a microsecond (0.06 for a counter, 0.26 for a histogram);
`prometheus_client`'s children take a lock, cost three to five times that and keep no least and most
for OTLP, and OpenTelemetry's own instruments look a label set up at each call. `Meter.collect`
reads all of them for `prometheus` and `metrics_otlp`, which this module does not know. Pure of
I/O; not for several threads: the loop that writes the cells also collects.

For how long numbers of what is gone are still shown (DESIGN §11).
"""

from __future__ import annotations

import re
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final, Generic, Literal, NamedTuple, TypeVar

MAX_SERIES: Final = 2_000
"""Label sets of one instrument; what comes beyond is noted under `OTHER`."""

OTHER: Final = "other"
"""The value of every label of the series that holds what is beyond `MAX_SERIES`."""

DURATIONS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Upper bounds of buckets in seconds, as OpenTelemetry's MCP conventions advise."""

_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")

Kind = Literal["counter", "gauge", "histogram"]
Labels = tuple[str, ...]
Reading = Iterable[tuple[Labels, float]]
"""What a gauge or counter reads when it is asked: the values of its labels, and the number."""


class Counter:
    """One series that only grows.

    Attributes:
        labels: What it is of.
        since: When it began, Unix time in nanoseconds.
        value: How much so far.
    """

    __slots__ = ("labels", "since", "value")

    def __init__(self, labels: Mapping[str, str], since: int) -> None:
        self.labels = labels
        self.since = since
        self.value = 0.0

    def add(self, amount: float = 1.0) -> None:
        self.value += amount


class Exemplar(NamedTuple):
    """The last traced amount of a bucket.

    Attributes:
        trace_id: 32 hexadecimal digits.
        span_id: 16 of them.
        value: The amount.
        at: When it was noted, Unix time in seconds.
    """

    trace_id: str
    span_id: str
    value: float
    at: float


class Histogram:
    """One series of amounts, by size.

    Attributes:
        labels: What it is of.
        since: When it began, Unix time in nanoseconds.
        bounds: The upper bounds of all buckets but the last, which has none.
        counts: How many amounts each bucket holds.
        sum: All amounts together.
        least: The smallest one.
        most: The largest one.
        exemplars: The last amount of each bucket that belongs to a trace, or None for none at all.
    """

    __slots__ = ("bounds", "counts", "exemplars", "labels", "least", "most", "since", "sum")

    def __init__(self, labels: Mapping[str, str], since: int, bounds: Sequence[float]) -> None:
        self.labels = labels
        self.since = since
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        self.least, self.most = inf, -inf
        self.exemplars: list[Exemplar | None] | None = None

    def record(self, amount: float, traceparent: str = "") -> None:
        """Note an amount; one that equals a bound belongs below it.

        Args:
            amount: The amount.
            traceparent: The recorded trace that it belongs to, in W3C's form, or empty.
        """
        bucket = bisect_left(self.bounds, amount)
        self.counts[bucket] += 1
        if traceparent:
            self._remember(bucket, amount, traceparent)
        self.sum += amount
        if amount < self.least:
            self.least = amount
        if amount > self.most:
            self.most = amount

    def _remember(self, bucket: int, amount: float, traceparent: str) -> None:
        found = _TRACEPARENT.match(traceparent)
        if found is None:  # a caller may send any text
            return
        if self.exemplars is None:
            self.exemplars = [None] * len(self.counts)
        self.exemplars[bucket] = Exemplar(found[1], found[2], amount, time.time())


class Buckets(NamedTuple):
    """What a histogram held: `counts` has one entry more than `bounds`."""

    bounds: Sequence[float]
    counts: tuple[int, ...]
    sum: float
    least: float
    most: float
    exemplars: tuple[Exemplar | None, ...] = ()
    """Empty, or one for each of `counts`."""

    @property
    def total(self) -> int:
        """How many amounts."""
        return sum(self.counts)


class Point(NamedTuple):
    """One series as it was read; labels without a value are left out."""

    labels: Mapping[str, str]
    value: float | Buckets
    since: int


@dataclass(frozen=True, slots=True)
class Family:
    """One instrument as it was read.

    Attributes:
        name: In OpenTelemetry's way, such as `mcp.client.operation.duration`.
        kind: What its points are.
        unit: `s`, `By`, or what is counted in braces, such as `{lease}`.
        description: One sentence.
        points: Its series.
    """

    name: str
    kind: Kind
    unit: str
    description: str
    points: tuple[Point, ...]


CellT = TypeVar("CellT", Counter, Histogram)


class Instrument(Generic[CellT]):
    """The series of one counter or histogram.

    Args:
        name: See `Family`.
        kind: See `Family`.
        unit: See `Family`.
        description: See `Family`.
        labels: The names of its labels; a series has a value for each, perhaps an empty one.
        make: Makes a cell of some labels.
    """

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
        """Return the series of some label values, to be kept by who writes it often."""
        assert len(values) == len(self.labels), f"{self.name} has the labels {self.labels}"
        cell = self._cells.get(values)
        if cell is None:
            if len(self._cells) >= MAX_SERIES - 1:  # the last place is that of all others
                values = (OTHER,) * len(self.labels)
                cell = self._cells.get(values)
            if cell is None:
                cell = self._cells[values] = self._make(_named(self.labels, values))
        return cell

    def keep(self, label: str, wanted: Callable[[str], bool]) -> None:
        """Drop the series whose value of a label is not wanted any more."""
        at = self.labels.index(label)
        gone = [values for values in self._cells if not wanted(values[at])]
        for values in gone:
            del self._cells[values]

    def read(self) -> Family:
        """Return all series as they are now; a histogram without any amount is none yet."""
        points = tuple(
            Point(cell.labels, value, cell.since)
            for cell in self._cells.values()
            if (value := _value(cell)) is not None
        )
        return Family(self.name, self._kind, self._unit, self._description, points)


class Meter:
    """All instruments of a process.

    Args:
        clock: Unix time in nanoseconds.
    """

    def __init__(self, clock: Callable[[], int] = time.time_ns) -> None:
        self._clock = clock
        self._since = clock()
        self._families: dict[str, Callable[[], Family]] = {}
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
        """Read a number from the process's state whenever somebody looks.

        Numbers with the same label values are added up.
        """

        def family() -> Family:
            points = tuple(
                Point(_named(labels, values), number, self._since)
                for values, number in _bounded(read(), len(labels)).items()
            )
            return Family(name, kind, unit, description, points)

        self._register(name, family)

    def before_collecting(self, work: Callable[[], None]) -> None:
        """Do something before each reading, such as dropping what is gone."""
        self._before.append(work)

    def collect(self) -> tuple[Family, ...]:
        """Read everything; what is returned does not change any more."""
        for work in self._before:
            work()
        return tuple(family() for family in self._families.values())

    def _add(self, instrument: Instrument[CellT]) -> Instrument[CellT]:
        self._register(instrument.name, instrument.read)
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
    if cell.least > cell.most:
        return None
    exemplars = tuple(cell.exemplars or ())
    return Buckets(cell.bounds, tuple(cell.counts), cell.sum, cell.least, cell.most, exemplars)


SHOWN_FOR: Final = 300.0
"""Seconds that series of something removed stay, so that its last numbers are still collected."""


class Retention:
    """Remembers since when names are gone."""

    def __init__(self) -> None:
        self._seen: dict[str, float] = {}

    def wanted(self, present: Collection[str], now: float) -> Callable[[str], bool]:
        """Return what says whether a name is there, or was within the last 300 s.

        Args:
            present: The names that are there.
            now: Seconds on a monotonic clock.
        """
        self._seen.update(dict.fromkeys(present, now))
        for name in [name for name, last in self._seen.items() if now - last > SHOWN_FOR]:
            del self._seen[name]
        return self._seen.__contains__
