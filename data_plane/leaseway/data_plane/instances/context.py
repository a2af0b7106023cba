"""What every generation of a worker needs, and who hears of what happens to instances."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from leaseway.data_plane.background import Background
from leaseway.data_plane.core.ports import OpenInstance
from leaseway.data_plane.instances.live_instance import LiveInstance
from leaseway.data_plane.instances.quota import Quota
from leaseway.data_plane.instances.reports import Reports
from leaseway.data_plane.instances.stderr_history import StderrHistory
from leaseway.data_plane.metrics.instruments import WorkerMeters
from leaseway.spec.model import ServerSpec, VariantKey
from leaseway.wire.errors import Fault


class LeasedEnded(Protocol):
    """Hears that the instance behind a lease has ended by itself."""

    def __call__(self, live: LiveInstance, fault: Fault | None, /) -> None: ...


class ToolsChanged(Protocol):
    """Hears that a server says that its tools changed."""

    def __call__(self, key: VariantKey, live: LiveInstance, /) -> None: ...


class LeaseOver(Protocol):
    """Hears that a lease is to end because of its instance, which runs no call, and why."""

    def __call__(self, live: LiveInstance, why: str, /) -> None: ...


class InstanceStarted(Protocol):
    """Hears of an instance that came up, or was taken over from a probe."""

    def __call__(self, live: LiveInstance, /, *, again: bool) -> None: ...


class InstanceEnded(Protocol):
    """Hears of an instance that was up and is no more, and how it ended, in words."""

    def __call__(self, live: LiveInstance, how: str, /) -> None: ...


class ReferenceMissed(Protocol):
    """Hears that a probe has failed because a reference of its server does not resolve."""

    def __call__(self, spec: ServerSpec, /) -> None: ...


@dataclass
class Hooks:
    """Who hears of what happens to instances; set once, while the worker is put together.

    Attributes:
        on_leased_instance_ended: The instance behind a lease has ended by itself.
        tools_changed: A server says that its tools changed.
        lease_over: A lease is to end because its instance is too old, or was not called for long.
        instance_started: An instance serves from now on; `again` where starts before it failed or
            the one before it ended by itself.
        instance_ended: An instance that was up is closed, or ended by itself; `live.up_since` says
            since when it was up and `live.fault` why it ended where nobody asked it to.
        reference_missed: A probe has failed because a reference does not resolve.
        taken_over: A generation that did not start at first serves instead of the one before it.
    """

    on_leased_instance_ended: LeasedEnded = lambda _live, _fault: None
    on_tools_changed: ToolsChanged = lambda _key, _live: None
    on_lease_due: LeaseOver = lambda _live, _why: None
    on_instance_started: InstanceStarted = lambda _live, *, again: None
    on_instance_ended: InstanceEnded = lambda _live, _how: None
    on_reference_missing: ReferenceMissed = lambda _spec: None
    on_takeover: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class WorkerContext:
    """What every generation of a worker needs.

    Attributes:
        worker_id: For messages.
        open_instance: Makes MCP clients.
        background: Runs what nobody waits for.
        reports: Where problems and changes go.
        logs: Keeps what ended instances wrote.
        hooks: Who else hears.
        quota: Counts the instances of each server.
        meters: What is measured, or None where nobody wants that.
    """

    worker_id: str
    open_instance: OpenInstance
    background: Background
    reports: Reports
    logs: StderrHistory
    hooks: Hooks = field(default_factory=Hooks)
    quota: Quota = field(default_factory=Quota)
    meters: WorkerMeters | None = None
