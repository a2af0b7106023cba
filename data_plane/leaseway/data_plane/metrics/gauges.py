"""What a worker measures by looking at its own state whenever somebody asks (DESIGN §11)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from leaseway.data_plane.metrics.instruments import MeasuredInstance, WorkerMeters
from leaseway.telemetry.metrics import Reading, Retention
from leaseway.wire.span_attributes import Attr


@dataclass(frozen=True)
class StateReaders:
    """Readers that the owners of a worker's state hand in; each answers at once.

    Attributes:
        served: The ids of servers that are served.
        ready: The instances that are up.
        instance_states: (server id, state) of every instance.
        leases: The server id of every lease that is held.
        totals: Single numbers, each by the name of its instrument in `TOTALS`.
        artifacts_failed: How many artifacts the disk did not take.
    """

    served: Callable[[], Iterable[str]]
    ready: Callable[[], Iterable[MeasuredInstance]]
    instance_states: Callable[[], Iterable[tuple[str, str]]]
    leases: Callable[[], Iterable[str]]
    totals: Mapping[str, Callable[[], float]]
    artifacts_failed: Callable[[], float]


TOTALS: Final[Mapping[str, tuple[str, str]]] = {
    "leaseway.leases.waiting": ("{caller}", "Callers that wait for room for a lease."),
    "leaseway.calls.in_flight": ("{call}", "Calls that have not ended."),
    "leaseway.calls.waiting": ("{call}", "Of these, those that wait for a turn on their server."),
    "leaseway.exchange.streams": ("{stream}", "Open exchange streams."),
    "leaseway.exchange.queue.size": (
        "By",
        "Results and other frames that wait to be sent to callers.",
    ),
    "leaseway.artifacts": ("{artifact}", "Images and sounds of results that are kept."),
    "leaseway.artifacts.size": ("By", "What they have together."),
    "leaseway.registry.version": (
        "{version}",
        "The registry version that this process has reached.",
    ),
}
"""Units and descriptions of the single numbers."""


class StateMeters:
    """Reads a worker's state whenever somebody asks for its metrics.

    Args:
        meters: Where the instruments are; series of servers that are gone are dropped there.
        readers: What is read.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        meters: WorkerMeters,
        readers: StateReaders,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._meters = meters
        self._readers = readers
        self._clock = clock
        self._retention = Retention()
        meter = meters.meter
        meter.before_collecting(self._before)
        meter.observe("leaseway.leases.held", "{lease}", "Leases held.", self._held, Attr.SERVER)
        meter.observe(
            "leaseway.instances",
            "{instance}",
            "MCP clients, by state.",
            self._instances,
            Attr.SERVER,
            Attr.STATE,
        )
        meter.observe(
            "leaseway.artifacts.failed",
            "{artifact}",
            "Images and sounds that the disk did not take; they stay in their results.",
            lambda: _single(readers.artifacts_failed),
            kind="counter",
        )
        for name, read in readers.totals.items():
            unit, description = TOTALS[name]
            meter.observe(name, unit, description, partial(_single, read))

    def _before(self) -> None:
        for live in self._readers.ready():
            self._meters.count_late_replies(live)
        present = {*self._readers.served(), *self._readers.leases()} | self._meters.take_touched()
        wanted = self._retention.wanted(present, self._clock())
        self._meters.keep(wanted)

    def _held(self) -> Reading:
        held = Counter(self._readers.leases())
        return (((server_id,), float(count)) for server_id, count in held.items())

    def _instances(self) -> Iterator[tuple[tuple[str, str], float]]:
        yield from Counter(self._readers.instance_states()).items()


def _single(read: Callable[[], float]) -> Reading:
    return [((), float(read()))]
