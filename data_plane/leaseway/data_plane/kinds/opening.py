"""Opens instances of kinds that speak MCP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from leaseway.data_plane.core.ports import InstanceListener, InstancePort, InstanceRequest
from leaseway.data_plane.mcp.host import Host
from leaseway.data_plane.mcp.instance import Instance
from leaseway.data_plane.references.resolver import ReadValues
from leaseway.spec.model import ServerSpec

if TYPE_CHECKING:
    from leaseway.data_plane.mcp.context import Connect
    from leaseway.data_plane.mcp.protocol.features.health import Patience


@dataclass(frozen=True, kw_only=True)
class Opening(InstanceRequest):
    """What an instance is opened with, beside its spec and the worker's resources.

    Attributes:
        instance_id: Unique on its worker.
        listener: Notified of events.
        read_values: Reads the values of the server.
        patience: How long an MCP server may be silent, or None for the default.
    """

    instance_id: str
    listener: InstanceListener
    read_values: ReadValues
    patience: Patience | None = None

    @classmethod
    def of(
        cls,
        request: InstanceRequest,
        *,
        instance_id: str,
        listener: InstanceListener,
        read_values: ReadValues,
    ) -> Opening:
        """Return what an instance is opened with for a request."""
        requested = {field.name: getattr(request, field.name) for field in fields(InstanceRequest)}
        return cls(**requested, instance_id=instance_id, listener=listener, read_values=read_values)


OpenKind = Callable[[ServerSpec, Host, Opening], InstancePort]
"""Creates an instance of one kind that is not started yet; what only this kind needs is bound."""


def open_mcp(
    spec: ServerSpec,
    host: Host,
    opening: Opening,
    load_connect: Callable[[], Connect],
    *,
    runs_here: bool = True,
) -> InstancePort:
    """Return an MCP client.

    Args:
        spec: The server.
        host: The worker's resources.
        opening: The rest.
        load_connect: Imports what connects to a server of the kind, and returns it; called in a
            thread.
        runs_here: Whether its process, if it has one, is started on this machine.
    """
    return Instance(
        spec,
        host,
        opening.listener,
        opening,
        instance_id=opening.instance_id,
        read_values=opening.read_values,
        load_connect=load_connect,
        starts_process=runs_here and spec.part.uses_pipes,
        patience=opening.patience,
    )
