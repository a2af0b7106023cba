"""What the coordinator wants said to workers; the Sync edge says it."""

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
    """Try a server. `trace` is the traceparent of the reload behind it, or empty.

    With `relist`, an instance that is up is asked again, and none is started.
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
    """Tell the worker to take no more work and to end."""

    reason: str


Action = PushDelta | WantContent | StartProbe | CancelProbe | RevokeLease | DrainWorker
