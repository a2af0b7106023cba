"""Metrics that read a worker's state at collection: totals, and usage of tenants' limits."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, Protocol

from leaseway.data_plane.metrics.instruments import MeasuredInstance, WorkerMeters
from leaseway.spec.policy import OTHER_TENANTS, TenantLimits
from leaseway.telemetry.metrics import Meter, Reading, Retention
from leaseway.wire.span_attributes import Attr


class MeasuredLoad(Protocol):
    """The calls in flight of one server."""

    @property
    def in_flight(self) -> int:
        """How many have not ended."""

    @property
    def waiting(self) -> int:
        """How many of them were not sent."""

    @property
    def oldest_wait(self) -> float:
        """Seconds that the oldest of these has waited."""


@dataclass(frozen=True)
class StateReaders:
    """Readers of a worker's state. None of them may block.

    Attributes:
        served: The ids of all servers.
        ready: All ready instances.
        instance_states: (server id, state) of every instance.
        leases: The server id of every held lease.
        loads: The calls in flight by server.
        totals: Numbers by the name of their instrument in `TOTALS`.
        artifacts_failed: Number of artifacts that could not be written.
    """

    served: Callable[[], Iterable[str]]
    ready: Callable[[], Iterable[MeasuredInstance]]
    instance_states: Callable[[], Iterable[tuple[str, str]]]
    leases: Callable[[], Iterable[str]]
    loads: Callable[[], Mapping[str, MeasuredLoad]]
    totals: Mapping[str, Callable[[], float]]
    artifacts_failed: Callable[[], float]


TOTALS: Final[Mapping[str, tuple[str, str]]] = {
    "leaseway.exchange.streams": ("{stream}", "Open exchange streams."),
    "leaseway.exchange.queue.size": (
        "By",
        "Results and other frames that wait to be sent to callers.",
    ),
    "leaseway.artifacts": ("{artifact}", "Artifacts: stored images and sounds of results."),
    "leaseway.artifacts.size": ("By", "Size of all artifacts together."),
    "leaseway.registry.version": (
        "{version}",
        "The registry version that this process has reached.",
    ),
}
"""Units and descriptions by instrument name."""


class StateMeters:
    """Reads a worker's state at collection.

    Args:
        meters: Registers the instruments, and drops the series of removed servers.
        readers: Read the state.
        clock: Monotonic seconds.
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
        meter.before_collecting(self._prune)
        meter.observe("leaseway.leases.held", "{lease}", "Leases held.", self._leases, Attr.SERVER)
        meter.observe(
            "leaseway.calls.in_flight",
            "{call}",
            "Calls that have not ended.",
            self._in_flight,
            Attr.SERVER,
        )
        meter.observe(
            "leaseway.calls.waiting",
            "{call}",
            "Calls in flight that wait for a turn, an instance, a lease or an approval.",
            self._waiting,
            Attr.SERVER,
        )
        meter.observe(
            "leaseway.calls.wait.oldest",
            "s",
            "How long the oldest waiting call has waited.",
            self._oldest_wait,
            Attr.SERVER,
        )
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
            "Images and sounds that could not be written and remain in their results.",
            lambda: _single(readers.artifacts_failed),
            kind="counter",
        )
        for name, read in readers.totals.items():
            unit, description = TOTALS[name]
            meter.observe(name, unit, description, partial(_single, read))

    def _prune(self) -> None:
        for live in self._readers.ready():
            self._meters.count_late_replies(live)
        present = {*self._readers.served(), *self._readers.leases()} | self._meters.take_touched()
        self._meters.keep(self._retention.retained(present, self._clock()))

    def _leases(self) -> Reading:
        held = Counter(self._readers.leases())
        return (((server_id,), float(count)) for server_id, count in held.items())

    def _in_flight(self) -> Reading:
        loads = self._readers.loads().items()
        return [((server_id,), float(load.in_flight)) for server_id, load in loads]

    def _waiting(self) -> Reading:
        loads = self._readers.loads().items()
        return [((server_id,), float(load.waiting)) for server_id, load in loads]

    def _oldest_wait(self) -> Reading:
        loads = self._readers.loads().items()
        return [((server_id,), load.oldest_wait) for server_id, load in loads]

    def _instances(self) -> Iterator[tuple[tuple[str, str], float]]:
        yield from Counter(self._readers.instance_states()).items()


def _single(read: Callable[[], float]) -> Reading:
    return [((), float(read()))]


Quota = Literal["calls", "concurrent", "external", "leases", "artifact_bytes"]
Amounts = Mapping[str, float]
"""Usage by tenant."""
_Series = Iterator[tuple[tuple[str, str], float]]
_HELD: Final[tuple[Quota, ...]] = ("concurrent", "leases", "artifact_bytes")


@dataclass(frozen=True)
class QuotaReaders:
    """Readers of tenants' limits and usage. None of them may block.

    Attributes:
        limits: The tenants' limits in each server's policy; they are the same in all policies.
        used: Current usage by quota.
        refused: (tenant, quota, count) of rejections since the worker's start.
    """

    limits: Callable[[], Iterable[Mapping[str, TenantLimits]]]
    used: Mapping[Quota, Callable[[], Amounts]]
    refused: Callable[[], Iterable[tuple[str, Quota, int]]]


class QuotaMeters:
    """Reads tenants' limits and usage at collection.

    Labels are the tenants in the configuration. All others share the label `*`, with the usage of
    the largest of them, because the limits of `*` apply to each tenant separately.
    """

    def __init__(self, meter: Meter, readers: QuotaReaders) -> None:
        self._readers = readers
        labels = Attr.TENANT, Attr.QUOTA
        meter.observe(
            "leaseway.tenant.limit",
            "1",
            "A tenant's limits on this worker; for `calls`, calls per second.",
            self._limits,
            *labels,
        )
        meter.observe("leaseway.tenant.used", "1", "A tenant's current usage.", self._used, *labels)
        meter.observe(
            "leaseway.tenant.refused",
            "{request}",
            "Calls and leases that a tenant was refused because of its limits.",
            self._refused,
            *labels,
            kind="counter",
        )

    def _configured(self) -> Mapping[str, TenantLimits]:
        configured: dict[str, TenantLimits] = {}
        for limits in self._readers.limits():
            configured.update(limits)
        return configured

    def _limits(self) -> _Series:
        for tenant, limits in self._configured().items():
            if limits.calls is not None:
                yield (tenant, "calls"), limits.calls.calls / limits.calls.seconds
            for quota in _HELD:
                limit = getattr(limits, quota)
                if limit is not None:
                    yield (tenant, quota), float(limit)

    def _used(self) -> _Series:
        configured = self._configured()
        for quota, read in self._readers.used.items():
            amounts = read()
            for tenant, limits in configured.items():
                if getattr(limits, quota) is None:
                    continue
                if tenant == OTHER_TENANTS:
                    others = (used for name, used in amounts.items() if name not in configured)
                    yield (tenant, quota), float(max(others, default=0))
                else:
                    yield (tenant, quota), float(amounts.get(tenant, 0))

    def _refused(self) -> _Series:
        configured = self._configured()
        for tenant, quota, count in self._readers.refused():
            yield (tenant if tenant in configured else OTHER_TENANTS, quota), float(count)
