"""The workers as the control plane knows them: all of it comes from the workers (DESIGN §8)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

from leaseway.control_plane.core.catalog.variants import Hashes
from leaseway.control_plane.core.catalog.worker_scope import WorkerScope
from leaseway.control_plane.core.placement.table import HeldLease
from leaseway.control_plane.core.problems import Problem
from leaseway.control_plane.core.workers.subscription import Subscription, VariantRefusal
from leaseway.spec.model import VariantKey
from leaseway.wire import bounds

_ANSWERS_WITHIN: Final = 2.0
"""Seconds that a worker may owe an answer before it is suspect."""
_DOUBTED_FOR: Final = 30.0
"""Seconds after which silence is forgiven: whoever was sent there may never have asked it."""


@dataclass(frozen=True)
class WorkerIdentity:
    """Where callers reach a worker, and which run of it this is."""

    id: str
    incarnation: str
    address: str
    unix_socket: str = ""


Launched = tuple[VariantKey, str]
"""A variant and one of its launch hashes."""


class VisibleWorker(NamedTuple):
    """A worker that takes new work, and what it has shared instances of."""

    address: WorkerIdentity
    shares: frozenset[Launched]


class VisibleState(NamedTuple):
    """The version that callers see, and who takes new work of it."""

    version: int = 0
    workers: frozenset[VisibleWorker] = frozenset()


@dataclass(frozen=True)
class ReportedInstance:
    """One live MCP client, as its worker last reported it, or why there is none.

    `next_start_at` is Unix time in seconds, or None.
    """

    id: str
    worker_id: str
    key: VariantKey
    state: str
    lease_id: str = ""
    pid: int = 0
    starts: int = 1
    launch_hash: str = ""
    role: str = ""
    failures: int = 0
    circuit: str = ""
    next_start_at: float | None = None

    @property
    def launched(self) -> Launched:
        return self.key, self.launch_hash

    @property
    def is_live(self) -> bool:
        """Whether there is such a client now."""
        return self.state not in ("backoff", "idle", "closed")


@dataclass(frozen=True)
class WorkerHello:
    """How a worker introduces itself."""

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

    @cached_property
    def scope(self) -> WorkerScope:
        """Which servers it may be given."""
        return WorkerScope.of(self.labels, self.servers)


@dataclass(frozen=True)
class WorkerReport:
    """What has changed on a worker; `instances` is None where they have not."""

    gained: tuple[HeldLease, ...] = ()
    lost: tuple[str, ...] = ()
    instances: tuple[ReportedInstance, ...] | None = None
    problems: tuple[Problem, ...] = ()
    cleared: tuple[Problem, ...] = ()
    calls_in_flight: int = 0
    draining: bool = False


class WorkerRefused(Exception):
    """A worker may not join; the message says why and what to do."""


@dataclass
class WorkerRecord:
    """One worker. Its owner is the coordinator.

    Attributes:
        disconnected_at: When its stream ended, or None while it is connected.
        pushed_at: When it was sent its last delta.
        owed: Variants whose content it was asked for and has not sent yet.
        content_requested_at: When it was asked for them.
        refusals_shown: What it refuses, as the open problems say.
        spares: Launches of which a client is up there that waits for a lease.
        shares: Launches of which a client is up there that calls share.
        revoked_duplicates: Ids of leases that it was told on this stream to end as younger twins.
    """

    hello: WorkerHello
    subscription: Subscription
    disconnected_at: float | None = None
    pushed_at: float = 0.0
    draining: bool = False
    requested_content: set[VariantKey] = field(default_factory=set)
    content_requested_at: float = 0.0
    instances: tuple[ReportedInstance, ...] = ()
    calls_in_flight: int = 0
    refusals_shown: list[VariantRefusal] = field(default_factory=list)
    revoked_duplicates: set[str] = field(default_factory=set)
    spares: frozenset[Launched] = frozenset()
    shares: frozenset[Launched] = frozenset()
    _failing: frozenset[Launched] = frozenset()

    def set_instances(self, instances: tuple[ReportedInstance, ...]) -> None:
        """Record the worker's report of all its instances and of the starts that fail."""
        self.instances = instances
        ready = [one for one in instances if one.state == "ready"]
        self.spares = frozenset(one.launched for one in ready if one.role == "spare")
        self.shares = frozenset(one.launched for one in ready if one.role == "shared")
        usable = self.shares | self.spares
        self._failing = frozenset(one.launched for one in instances if one.failures) - usable

    def is_up(self, key: VariantKey, launch_hash: str) -> bool:
        """Return whether a shared instance of a launch, or a spare, waits there for callers."""
        return (key, launch_hash) in self.shares or (key, launch_hash) in self.spares

    def is_failing(self, key: VariantKey, launch_hash: str) -> bool:
        """Return whether the worker could not start a launch the last time that it tried."""
        return (key, launch_hash) in self._failing

    @property
    def id(self) -> str:
        return self.hello.address.id

    @property
    def connected(self) -> bool:
        return self.disconnected_at is None

    @property
    def lost_at(self) -> float | None:
        """When it counts as lost unless it comes back, or None while it is connected."""
        return (
            None
            if self.disconnected_at is None
            else self.disconnected_at + bounds.WORKER_LOST_AFTER
        )

    @property
    def accepts_work(self) -> bool:
        """Whether new leases and probes may go to it."""
        return self.connected and not self.draining

    def is_suspect(self, unanswered_since: float | None, now: float) -> bool:
        """Return whether a worker may hang though its stream is open (DESIGN §5).

        Args:
            unanswered_since: When it was first named to a caller without a word from it since.
            now: When, on the monotonic clock.
        """
        if self.subscription.pending is not None and now - self.pushed_at >= _ANSWERS_WITHIN:
            return True
        silent = 0.0 if unanswered_since is None else now - unanswered_since
        return _ANSWERS_WITHIN <= silent < _DOUBTED_FOR

    @property
    def state(self) -> str:
        """`connected`, `draining` or `lost`."""
        if not self.connected:
            return "lost"
        return "draining" if self.draining else "connected"
