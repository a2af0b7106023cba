"""Connects by a transport that another package registers."""

from __future__ import annotations

from leaseway.data_plane.kinds.registered.plugins import create_registered
from leaseway.data_plane.mcp.context import ServerContext, UnopenedConnection
from leaseway.data_plane.mcp.host import Host


async def connect(_: Host, context: ServerContext) -> UnopenedConnection:
    """Return a connection that is not open yet."""
    return context.stream(await create_registered(context.spec, context.resolved))
