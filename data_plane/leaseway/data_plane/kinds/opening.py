"""Opens instances of kinds that speak MCP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leaseway.data_plane.core.ports import InstanceListener, InstancePort
from leaseway.data_plane.core.resolved_values import ResolvedValues
from leaseway.data_plane.mcp.host import Host
from leaseway.data_plane.mcp.instance import Instance
from leaseway.data_plane.references.resolver import ReadValues
from leaseway.spec.lease_names import LeaseNames
from leaseway.spec.model import ServerSpec
from leaseway.wire.clients.greeting import COMMON, Greeting

if TYPE_CHECKING:
    from leaseway.data_plane.mcp.context import Connect
    from leaseway.data_plane.mcp.protocol.features.health import Patience


@dataclass(frozen=True)
class Opening:
    """What an instance is opened with, beside its spec and the worker's resources.

    Attributes:
        instance_id: Unique on its worker.
        listener: Notified of events.
        read_values: Reads the values of the server.
        known_version: The protocol version of another instance of the same server, or empty.
        resolved_values: The resolved configuration, or None to resolve it at the start.
        names: The names of its lease, or None if it is for no lease yet.
        patience: How long an MCP server may be silent, or None for the default.
        greeting: How an MCP client introduces itself to its server.
    """

    instance_id: str
    listener: InstanceListener
    read_values: ReadValues
    known_version: str = ""
    resolved_values: ResolvedValues | None = None
    names: LeaseNames | None = None
    patience: Patience | None = None
    greeting: Greeting = COMMON


OpenKind = Callable[[ServerSpec, Host, Opening], InstancePort]
"""Creates an instance of one kind that is not started yet; what only this kind needs is bound."""


def open_mcp(
    spec: ServerSpec, host: Host, opening: Opening, load_connect: Callable[[], Connect]
) -> InstancePort:
    """Return an MCP client.

    Args:
        spec: The server.
        host: The worker's resources.
        opening: The rest.
        load_connect: Imports what connects to a server of the kind, and returns it; called in a
            thread.
    """
    return Instance(
        spec,
        host,
        opening.listener,
        instance_id=opening.instance_id,
        read_values=opening.read_values,
        load_connect=load_connect,
        known_version=opening.known_version,
        resolved_values=opening.resolved_values,
        names=opening.names,
        patience=opening.patience,
        greeting=opening.greeting,
    )
