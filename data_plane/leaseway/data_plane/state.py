"""The state of a worker in numbers, as metrics and diagnostics read it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

from leaseway.data_plane.artifacts.store import ArtifactStore
from leaseway.data_plane.audit.backlog import Backlog
from leaseway.data_plane.calls.executor import Executor
from leaseway.data_plane.instances.pool import Pool
from leaseway.data_plane.leases.manager import WorkerLeaseManager
from leaseway.data_plane.metrics.instruments import WorkerMeters
from leaseway.data_plane.services.exchange import Exchanges
from leaseway.data_plane.sync.instances import instance_states
from leaseway.spec.policy import OTHER_TENANTS, TenantLimits
from leaseway.telemetry.metrics import Meter, Reading, Retention
from leaseway.wire.sharing.limits import CallQuota
from leaseway.wire.span_attributes import Attr

Quota = CallQuota | Literal["leases", "artifact_bytes"]
Amounts = Mapping[str, float]
"""Usage by tenant."""


@dataclass(frozen=True)
class WorkerState:
    """Reads the parts of a worker. That never blocks."""

    pool: Pool
    leases: WorkerLeaseManager
    executor: Executor
    exchanges: Exchanges
    artifacts: ArtifactStore

    def leased(self) -> Iterator[str]:
        return (lease.key.server_id for lease in self.leases.leases)

    def totals(self) -> Mapping[str, float]:
        """Return numbers by the name of their instrument in `TOTALS`."""
        starts = self.pool.context.starts
        return {
            "leaseway.exchange.streams": self.exchanges.open_streams,
            "leaseway.exchange.queue.size": self.exchanges.queued_bytes,
            "leaseway.artifacts": len(self.artifacts),
            "leaseway.artifacts.size": self.artifacts.total_bytes,
            "leaseway.registry.version": self.pool.registry_version,
            "leaseway.starts.waiting": starts.waiting,
            "leaseway.starts.wait.oldest": starts.oldest_wait,
        }

    def used(self) -> Mapping[Quota, Amounts]:
        return {
            "concurrent": self.executor.usage.in_flight,
            "leases": self.leases.held_by_tenants,
            "artifact_bytes": self.artifacts.bytes_by_tenant,
        }

    def refused(self) -> Iterable[tuple[str, Quota, int]]:
        for (tenant, quota), count in self.executor.usage.refused.items():
            yield tenant, quota, count
        for tenant, count in self.leases.refusals.items():
            yield tenant, "leases", count

    def counts(self) -> dict[str, int]:
        """Return the numbers of leases, instances and calls, for diagnostics."""
        return {
            "leases": len(tuple(self.leases.leases)),
            "instances": sum(len(generation.instances) for generation in self.pool.generations),
            "calls": self.executor.in_flight,
        }


TOTALS: Final[Mapping[str, tuple[str, str]]] = {
    "leaseway.exchange.streams": ("{stream}", "Open exchange streams."),
    "leaseway.exchange.queue.size": (
        "By",
        "Results and other frames that wait to be sent to callers.",
    ),
    "leaseway.artifacts": ("{artifact}", "Artifacts: stored images and sounds of results."),
    "leaseway.artifacts.size": ("By", "Size of all artifacts together."),
    "leaseway.starts.waiting": (
        "{start}",
        "Starts of servers' processes that wait for others to be over.",
    ),
    "leaseway.starts.wait.oldest": ("s", "How long the oldest of them has waited."),
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
        state: The state of the worker.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        meters: WorkerMeters,
        state: WorkerState,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._meters = meters
        self._state = state
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
            self._failed_artifacts,
            kind="counter",
        )
        for name, (unit, description) in TOTALS.items():
            meter.observe(name, unit, description, partial(self._total, name))

    def _prune(self) -> None:
        served = set()
        for generation in self._state.pool.generations:
            served.add(generation.key.server_id)
            for live in generation.instances:
                if live.is_ready:
                    self._meters.count_late_replies(live)
        present = served.union(self._state.leased(), self._meters.take_touched())
        self._meters.keep(self._retention.retained(present, self._clock()))

    def _leases(self) -> Reading:
        held = Counter(self._state.leased())
        return _or_zero([((server_id,), float(count)) for server_id, count in held.items()])

    def _in_flight(self) -> Reading:
        loads = self._state.executor.loads().items()
        return _or_zero([((server_id,), float(load.in_flight)) for server_id, load in loads])

    def _waiting(self) -> Reading:
        loads = self._state.executor.loads().items()
        return [((server_id,), float(load.waiting)) for server_id, load in loads]

    def _oldest_wait(self) -> Reading:
        loads = self._state.executor.loads().items()
        return [((server_id,), load.oldest_wait) for server_id, load in loads]

    def _failed_artifacts(self) -> Reading:
        return [((), float(self._state.artifacts.failed))]

    def _total(self, name: str) -> Reading:
        return [((), float(self._state.totals()[name]))]

    def _instances(self) -> Iterator[tuple[tuple[str, str], float]]:
        states = instance_states(self._state.pool.generations).values()
        yield from Counter((state.variant.server_id, state.state) for state in states).items()


def _or_zero(numbers: list[tuple[tuple[str], float]]) -> Reading:
    """Return numbers by server, or a zero of none.

    The chart scales workers by them. Kubernetes takes one without a number for a full one, and
    stops none while no worker has any.
    """
    return numbers or [(("",), 0.0)]


_Series = Iterator[tuple[tuple[str, str], float]]
_HELD: Final[tuple[Quota, ...]] = ("concurrent", "leases", "artifact_bytes")


class AuditMeters:
    """Reads at collection what waits for the audit's sink."""

    def __init__(self, meter: Meter, backlog: Backlog) -> None:
        self._backlog = backlog
        meter.observe(
            "leaseway.audit.unshipped",
            "By",
            "Bytes of audit files that the sink has not acknowledged.",
            self._unshipped,
        )

    def _unshipped(self) -> Reading:
        return [((), float(self._backlog.size))]


class QuotaMeters:
    """Reads tenants' limits and usage at collection.

    Labels are the tenants in the configuration. All others share the label `*`, with the usage of
    the largest of them, because the limits of `*` apply to each tenant separately.
    """

    def __init__(self, meter: Meter, state: WorkerState) -> None:
        self._state = state
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
        for generation in self._state.pool.generations:  # the same in all policies
            configured.update(generation.variant.spec.policy.limits)
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
        for quota, amounts in self._state.used().items():
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
        for tenant, quota, count in self._state.refused():
            yield (tenant if tenant in configured else OTHER_TENANTS, quota), float(count)
