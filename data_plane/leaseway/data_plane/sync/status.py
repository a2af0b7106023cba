"""Messages with the state of a worker: Hello, reports, and held variants on request."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from leaseway.data_plane.calls.executor import Executor
from leaseway.data_plane.core.leases.table import WorkerLease
from leaseway.data_plane.instances.pool import Pool
from leaseway.data_plane.leases.manager import WorkerLeaseManager
from leaseway.data_plane.sync import convert
from leaseway.data_plane.sync.instances import (
    InstanceReports,
    instance_states,
    state_to_proto,
)
from leaseway.spec.codec import key_from_proto
from leaseway.v1 import catalog_pb2, leases_pb2, sync_pb2
from leaseway.wire.channels.endpoint import Endpoints
from leaseway.wire.messages.events import event_to_proto
from leaseway.wire.version import PROTOCOL_VERSION, user_agent


@dataclass(frozen=True)
class Registration:
    """How a worker joins a control plane.

    Attributes:
        worker: Its id, incarnation and address.
        capacity: The limit of leases.
        control_planes: The control planes, of which one leads: the one to join.
        key: The key to join with, or None.
        labels: For placement.
        servers: Patterns of the server ids that it serves; empty means all.
    """

    worker: catalog_pb2.WorkerRef
    capacity: int
    control_planes: Endpoints
    key: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    servers: tuple[str, ...] = ()


@dataclass
class WorkerStatus:
    """Builds messages with the current state of a worker.

    Attributes:
        registration: How the worker joins.
        pool: The served variants and their instances.
        leases: The held leases.
        calls: The calls in flight.
        lease_message: Converts a lease.
        leaving: Whether the worker is shutting down and accepts no new work.
    """

    registration: Registration
    pool: Pool
    leases: WorkerLeaseManager
    calls: Executor
    lease_message: Callable[[WorkerLease], leases_pb2.Lease]
    leaving: bool = False

    def __post_init__(self) -> None:
        self.reported = InstanceReports(self.registration.worker.id)

    def hello(self, highest_epoch: int) -> sync_pb2.Hello:
        """Return the first message of a stream, with the whole state; later changes are reported.

        Args:
            highest_epoch: The highest seen epoch, or 0.
        """
        desired_state = self.pool.desired_state
        self.pool.context.reports.reset_for_new_stream()
        self.reported.reset()
        # A control plane that has just started does not know that this worker is shutting down. It
        # would treat the leases that end here as older twins of their replacements.
        capacity, leases = (
            (0, ()) if self.leaving else (self.registration.capacity, tuple(self.leases.leases))
        )
        worker_id = self.registration.worker.id
        states = instance_states(self.pool.generations).values()
        return sync_pb2.Hello(
            protocol_version=PROTOCOL_VERSION,
            package_version=user_agent(),
            worker=self.registration.worker,
            capacity=capacity,
            labels=self.registration.labels,
            servers=self.registration.servers,
            highest_registry_version=desired_state.registry_version,
            highest_epoch=highest_epoch,
            held_digest=hashlib.sha256(self._held()).digest(),
            leases=[self.lease_message(lease) for lease in leases],
            instances=[state_to_proto(state, worker_id) for state in states],
            lists_subjects=True,
        )

    def held_list(self) -> sync_pb2.HeldList:
        """Return what a hello has named by its digest only."""
        return sync_pb2.HeldList(held=self._held())

    def _held(self) -> bytes:
        # Sorted, so that a control plane sees at once that workers hold the same.
        variants = sorted(self.pool.desired_state.variants.items())
        held = sync_pb2.Hello(held=[convert.hashes_to_proto(variant) for _, variant in variants])
        return held.SerializeToString(deterministic=True)

    def held(self, want: sync_pb2.Want) -> sync_pb2.Held:
        """Return the requested variants that are held."""
        variants = self.pool.desired_state.variants
        held = sync_pb2.Held()
        for key in map(key_from_proto, want.keys):
            if key in variants:
                held.variants.append(convert.sent_to_proto(variants[key]))
        return held

    def report(self) -> sync_pb2.Report:
        """Return the changes since the last report or the Hello."""
        reports = self.pool.context.reports
        leases, ends, instances_changed = reports.pop_changes()
        problems, cleared = reports.problems.pop_changes()
        worker_id = self.registration.worker.id
        report = sync_pb2.Report(
            leases_gained=[self.lease_message(lease) for lease in leases],
            leases_lost=[end.lease.id for end in ends],
            lease_ends=[convert.lease_end_to_proto(end) for end in ends],
            problems=[convert.problem_to_proto(problem, worker_id) for problem in problems],
            cleared=[convert.problem_to_proto(problem, worker_id) for problem in cleared],
            calls_in_flight=self.calls.in_flight,
            draining=self.leaving or self.calls.draining,
            events=[event_to_proto(event) for event in reports.pop_events()],
            probes=[
                sync_pb2.ProbeProgress(id=probe_id, begun=begun)
                for probe_id, begun in reports.pop_probes().items()
            ],
            unused_placements=[
                sync_pb2.UnusedPlacement(
                    tenant=key.tenant, session=key.session, server_id=key.server_id
                )
                for key in self.calls.unsought(reports.pop_unused_placements())
            ],
        )
        if instances_changed:
            self.reported.add_changes(report, instance_states(self.pool.generations))
        return report

    def report_all_instances(self) -> None:
        """Report all instances next: the control plane has missed a change."""
        self.reported.reset()
        self.pool.context.reports.mark_instances_changed()
