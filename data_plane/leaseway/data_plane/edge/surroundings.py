"""What every generation of a worker needs, and who hears of what happens to instances."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from leaseway.data_plane.core.ports import OpenInstance
from leaseway.data_plane.edge.live import Live
from leaseway.data_plane.edge.log_shelf import LogShelf
from leaseway.data_plane.edge.reports import Reports
from leaseway.data_plane.edge.tasks import Background
from leaseway.wire.fault import Fault

if TYPE_CHECKING:
    from leaseway.data_plane.edge.generation import Generation

__all__ = ["Hooks", "Surroundings"]


class LeasedEnded(Protocol):
    """Hears that the instance behind a lease has ended by itself."""

    def __call__(self, live: Live, fault: Fault | None, /) -> None: ...


class ToolsChanged(Protocol):
    """Hears that a server says that its tools changed."""

    def __call__(self, generation: Generation, live: Live, /) -> None: ...


@dataclass
class Hooks:
    """Who hears of what happens to instances; set once, while the worker is put together.

    Attributes:
        leased_ended: The instance behind a lease has ended by itself.
        tools_changed: A server says that its tools changed.

    """

    leased_ended: LeasedEnded = lambda _live, _fault: None
    tools_changed: ToolsChanged = lambda _generation, _live: None


@dataclass(frozen=True)
class Surroundings:
    """What every generation of a worker needs.

    Attributes:
        worker_id: For messages.
        open_instance: Makes MCP clients.
        background: Runs what nobody waits for.
        reports: Where problems and changes go.
        logs: Keeps what ended instances wrote.
        hooks: Who else hears.

    """

    worker_id: str
    open_instance: OpenInstance
    background: Background
    reports: Reports
    logs: LogShelf
    hooks: Hooks = field(default_factory=Hooks)
