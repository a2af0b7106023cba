"""Records of workers, made from their messages, and the view of them that watchers follow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

from leaseway.control_plane.core.catalog.variants import Hashes
from leaseway.control_plane.core.catalog.worker_scope import WorkerScope
from leaseway.control_plane.core.placement.table import HeldLease
from leaseway.control_plane.core.problems import Problem
from leaseway.control_plane.core.workers.instances import (
    InstanceChanges,
    InstanceTable,
    Launched,
    ReportedInstance,
)
from leaseway.control_plane.core.workers.subscription import Subscription, VariantRefusal
from leaseway.spec.model import VariantKey
from leaseway.wire import bounds
from leaseway.wire.messages.states import WorkerState
from leaseway.wire.names import LeaseKey

_SUSPECT_AFTER: Final = 2.0
"""Seconds without an answer after which a worker is suspect."""
_SUSPECT_UNTIL: Final = 30.0
"""Seconds of silence after which it no longer is: the caller may never have contacted it."""


@dataclass(frozen=True)
class WorkerIdentity:
    """A worker's id, its run (incarnation) and where callers reach it."""

    id: str
    incarnation: str
    address: str
    unix_socket: str = ""


class VisibleWorker(NamedTuple):
    """A worker that accepts new work, and the launches of its shared instances."""

    address: WorkerIdentity
    shares: frozenset[Launched]


class VisibleState(NamedTuple):
    """The registry version that callers see, and the workers that accept work with it.

    `subjects` counts the changes of what servers list for one tenant or user only.
    """

    version: int = 0
    workers: frozenset[VisibleWorker] = frozenset()
    subjects: int = 0


@dataclass(frozen=True)
class WorkerHello:
    """A worker's first message on a stream."""

    address: WorkerIdentity
    capacity: int
    package_version: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    highest_version: int = 0
    highest_epoch: int = 0
    held: Mapping[VariantKey, Hashes] = field(default_factory=dict)
    leases: tuple[HeldLease, ...] = ()
    instances: tuple[ReportedInstance, ...] = ()
    servers: tuple[str, ...] = ()
    lists_subjects: bool = False

    @cached_property
    def scope(self) -> WorkerScope:
        """Which servers the worker accepts."""
        return WorkerScope.of(self.labels, self.servers)


@dataclass(frozen=True)
class WorkerReport:
    """Changes on a worker.

    Attributes:
        instances: All instances, from a worker that reports them whole; None if none has changed.
        instance_changes: What has changed of them, from another worker.
        unused: Leases that were placed on it and have not come to be.
        probes: The probes that have arrived or begun, from a worker that reports them; by id,
            whether they have begun.
    """

    gained: tuple[HeldLease, ...] = ()
    lost: tuple[str, ...] = ()
    instances: tuple[ReportedInstance, ...] | None = None
    instance_changes: InstanceChanges | None = None
    problems: tuple[Problem, ...] = ()
    cleared: tuple[Problem, ...] = ()
    calls_in_flight: int = 0
    draining: bool = False
    unused: tuple[LeaseKey, ...] = ()
    probes: Mapping[int, bool] = field(default_factory=dict)


class WorkerRefused(Exception):
    """A worker may not join; the message contains the reason and what to do."""


@dataclass
class WorkerRecord:
    """One worker; owned by the coordinator.

    Attributes:
        disconnected_at: When its stream ended, or None while it is connected.
        pushed_at: When the last delta was sent.
        refusals_shown: Refusals that are reported as open problems.
        revoked_duplicates: Ids of duplicate leases that were revoked on this stream.
    """

    hello: WorkerHello
    subscription: Subscription
    disconnected_at: float | None = None
    pushed_at: float = 0.0
    draining: bool = False
    instances: InstanceTable = field(default_factory=InstanceTable)
    calls_in_flight: int = 0
    refusals_shown: list[VariantRefusal] = field(default_factory=list)
    revoked_duplicates: set[str] = field(default_factory=set)

    def is_up(self, key: VariantKey, launch_hash: str) -> bool:
        """Return whether the worker has a ready shared or spare instance of a launch."""
        return (key, launch_hash) in self.instances.launches.usable

    def is_failing(self, key: VariantKey, launch_hash: str) -> bool:
        """Return whether the worker's last attempt to start a launch failed."""
        return (key, launch_hash) in self.instances.launches.failing

    @property
    def id(self) -> str:
        return self.hello.address.id

    @property
    def connected(self) -> bool:
        return self.disconnected_at is None

    @property
    def lost_at(self) -> float | None:
        """When it counts as lost unless it reconnects, or None while it is connected."""
        return (
            None
            if self.disconnected_at is None
            else self.disconnected_at + bounds.WORKER_LOST_AFTER
        )

    @property
    def accepts_work(self) -> bool:
        """Whether it can get new leases and probes."""
        return self.connected and not self.draining

    def is_suspect(self, unanswered_since: float | None, now: float) -> bool:
        """Return whether the worker may hang although its stream is open (design.md#leases).

        Args:
            unanswered_since: When it was first chosen for a caller after its last message, or None.
            now: The time on the monotonic clock.
        """
        if self.subscription.pending is not None and now - self.pushed_at >= _SUSPECT_AFTER:
            return True
        silence = 0.0 if unanswered_since is None else now - unanswered_since
        return _SUSPECT_AFTER <= silence < _SUSPECT_UNTIL

    @property
    def state(self) -> WorkerState:
        """`connected`, `draining` or `lost`: also before `lost_at`, it may reconnect until then."""
        if not self.connected:
            return "lost"
        return "draining" if self.draining else "connected"


class Visibility:
    """Maintains the state that watchers follow; owned by the coordinator.

    It is updated for the workers that have changed, not computed from the whole fleet.

    Attributes:
        state: The current state; a new object only when it changes.
    """

    def __init__(self) -> None:
        self.state = VisibleState()
        self._listed: dict[str, VisibleWorker] = {}

    def update(
        self,
        version: int,
        workers: Mapping[str, WorkerRecord],
        changed: Iterable[str],
        subjects: int = 0,
    ) -> None:
        """Update the state for a version and for the workers that may have changed."""
        listed = self.state.workers
        for worker_id in [*workers, *self._listed] if version != self.state.version else changed:
            was, is_now = self._listed.get(worker_id), _visible(version, workers.get(worker_id))
            if was == is_now:
                continue
            if was is not None:
                del self._listed[worker_id]
                listed = listed - {was}
            if is_now is not None:
                self._listed[worker_id] = is_now
                listed = listed | {is_now}
        if listed is not self.state.workers or (version, subjects) != self.state[::2]:
            self.state = VisibleState(version, listed, subjects)


def _visible(version: int, record: WorkerRecord | None) -> VisibleWorker | None:
    if record is None or not record.accepts_work or record.subscription.acked_version < version:
        return None
    return VisibleWorker(record.hello.address, record.instances.launches.shares)
