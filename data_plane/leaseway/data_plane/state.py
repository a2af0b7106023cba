"""The state of a worker in numbers, as metrics and diagnostics read it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from leaseway.data_plane.artifacts.store import ArtifactStore
from leaseway.data_plane.calls.executor import Executor
from leaseway.data_plane.calls.load import CallLoad
from leaseway.data_plane.instances.live_instance import LiveInstance
from leaseway.data_plane.instances.pool import Pool
from leaseway.data_plane.leases.manager import WorkerLeaseManager
from leaseway.data_plane.metrics.gauges import Amounts, Quota
from leaseway.data_plane.services.exchange import Exchanges
from leaseway.data_plane.sync.instances import instance_states
from leaseway.spec.policy import TenantLimits


@dataclass(frozen=True)
class WorkerState:
    """Reads the parts of a worker (`MeasuredState`)."""

    pool: Pool
    leases: WorkerLeaseManager
    executor: Executor
    exchanges: Exchanges
    artifacts: ArtifactStore

    def served(self) -> Iterator[str]:
        return (generation.key.server_id for generation in self.pool.generations)

    def ready(self) -> Iterator[LiveInstance]:
        for generation in self.pool.generations:
            yield from (live for live in generation.instances if live.is_ready)

    def instance_states(self) -> Iterator[tuple[str, str]]:
        for state in instance_states(self.pool.generations).values():
            yield state.variant.server_id, state.state

    def leased(self) -> Iterator[str]:
        return (lease.key.server_id for lease in self.leases.leases)

    def loads(self) -> Mapping[str, CallLoad]:
        return self.executor.loads()

    def totals(self) -> Mapping[str, float]:
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

    def failed_artifacts(self) -> float:
        return self.artifacts.failed

    def limits(self) -> Iterator[Mapping[str, TenantLimits]]:
        return (generation.variant.spec.policy.limits for generation in self.pool.generations)

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
