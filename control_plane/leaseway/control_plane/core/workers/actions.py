"""Messages that the coordinator queues for workers; the Sync service sends them."""

from __future__ import annotations

from dataclasses import dataclass

from leaseway.control_plane.core.workers.subscription import Push
from leaseway.spec.model import ServerSpec, VariantKey


@dataclass(frozen=True)
class PushDelta:
    """Send a delta. `trace` is the traceparent of the reload behind it, or empty."""

    push: Push
    trace: str = ""


@dataclass(frozen=True)
class WantContent:
    """Ask for the content behind hashes."""

    keys: tuple[VariantKey, ...]


@dataclass(frozen=True)
class StartProbe:
    """Probe a server. `trace` is the traceparent of the reload behind it, or empty.

    With `relist`, the worker lists a live instance again instead of starting one.
    """

    id: int
    spec: ServerSpec
    trace: str = ""
    relist: bool = False


@dataclass(frozen=True)
class CancelProbe:
    """Cancel a probe."""

    id: int


@dataclass(frozen=True)
class RevokeLease:
    """End a lease against its holder's will."""

    lease_id: str
    reason: str


@dataclass(frozen=True)
class DrainWorker:
    """Make the worker reject new work and exit."""

    reason: str


@dataclass(frozen=True)
class ListForSubject:
    """List a launch of a server for a tenant, or for its user."""

    key: VariantKey
    launch_hash: str
    tenant: str
    user: str


@dataclass(frozen=True)
class AskInstances:
    """Ask for all instances, as some of the changes have not arrived."""


WorkerAction = (
    PushDelta
    | WantContent
    | StartProbe
    | CancelProbe
    | RevokeLease
    | DrainWorker
    | ListForSubject
    | AskInstances
)
