"""What a worker tells its control plane of itself: at first, when asked, and as it changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from leaseway.data_plane.core.leases.table import WorkerLease
from leaseway.data_plane.instances.pool import Pool
from leaseway.data_plane.leases.manager import WorkerLeaseManager
from leaseway.data_plane.sync import convert
from leaseway.spec.protobuf import key_from_wire
from leaseway.v1 import admin_pb2, catalog_pb2, leases_pb2, sync_pb2
from leaseway.wire.channels.endpoint import Endpoint
from leaseway.wire.messages.events import event_to_wire
from leaseway.wire.version import PROTOCOL_VERSION, user_agent


@dataclass(frozen=True)
class Introduction:
    """What a worker says of itself.

    Attributes:
        worker: Its id, incarnation and address.
        capacity: The most leases that it takes.
        labels: For placement.
        servers: Patterns over the ids of the servers that it takes; none: any.
        control_plane: Whom it joins.
        key: The shared key, or None.
        standbys: Control planes of which one may lead in the first one's place.
    """

    worker: catalog_pb2.WorkerRef
    capacity: int
    control_plane: Endpoint
    key: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    servers: tuple[str, ...] = ()
    standbys: tuple[Endpoint, ...] = ()


class WorkerStatus:
    """Writes what a worker says of itself, as it is at that moment.

    Args:
        introduction: Who joins whom.
        pool: What is served.
        leases: What is held.
        in_flight: How many calls have not ended.
        draining: Whether calls are refused because the worker ends.
        lease_message: Describes a lease.

    Attributes:
        leaving: Whether it takes no more work, and says so.
    """

    def __init__(
        self,
        introduction: Introduction,
        pool: Pool,
        leases: WorkerLeaseManager,
        in_flight: Callable[[], int],
        draining: Callable[[], bool],
        lease_message: Callable[[WorkerLease], leases_pb2.Lease],
    ) -> None:
        self._me = introduction
        self._pool = pool
        self._leases = leases
        self._in_flight = in_flight
        self._draining = draining
        self._lease_message = lease_message
        self._reports = pool.context.reports
        self.leaving = False

    def hello(self, highest_epoch: int) -> sync_pb2.Hello:
        """Return what begins a stream: all that is held; changes are counted from here on.

        Args:
            highest_epoch: The highest that it has seen, or 0.
        """
        desired_state = self._pool.desired_state
        self._reports.reset_for_new_stream()
        # A control plane that has just started knows nothing of this worker's leaving. It would
        # take the leases that end here for the older twins of those that took their place.
        capacity, leases = (
            (0, ()) if self.leaving else (self._me.capacity, tuple(self._leases.leases))
        )
        return sync_pb2.Hello(
            protocol_version=PROTOCOL_VERSION,
            package_version=user_agent(),
            worker=self._me.worker,
            capacity=capacity,
            labels=self._me.labels,
            servers=self._me.servers,
            highest_registry_version=desired_state.registry_version,
            highest_epoch=highest_epoch,
            held=[convert.hashes(variant) for variant in desired_state.variants.values()],
            leases=[self._lease_message(lease) for lease in leases],
            instances=self._instances(),
        )

    def held(self, want: sync_pb2.Want) -> sync_pb2.Held:
        """Return the content that is asked for, as far as it is held."""
        variants = self._pool.desired_state.variants
        held = sync_pb2.Held()
        for key in map(key_from_wire, want.keys):
            if key in variants:
                held.variants.append(sync_pb2.Upsert.FromString(variants[key].sent))
        return held

    def report(self) -> sync_pb2.Report:
        """Return what has changed since the last one, or since the Hello."""
        gained, lost, instances_changed = self._reports.pop_changes()
        seen, mended = self._reports.problems.pop_changes()
        worker_id = self._me.worker.id
        return sync_pb2.Report(
            leases_gained=[self._lease_message(lease) for lease in gained],
            leases_lost=[end.lease_id for end in lost],
            lease_ends=[admin_pb2.LeaseEnd(**end._asdict()) for end in lost],
            instances=self._instances() if instances_changed else (),
            instances_changed=instances_changed,
            problems=[convert.problem_message(problem, worker_id) for problem in seen],
            cleared=[convert.problem_message(problem, worker_id) for problem in mended],
            calls_in_flight=self._in_flight(),
            draining=self.leaving or self._draining(),
            events=[event_to_wire(event) for event in self._reports.pop_events()],
        )

    def _instances(self) -> list[catalog_pb2.InstanceStatus]:
        return convert.instance_statuses(list(self._pool.generations), self._me.worker.id)
