"""Connects by a transport that another package registers."""

from __future__ import annotations

from leaseway.data_plane.mcp.context import ServerContext, UnopenedConnection
from leaseway.data_plane.mcp.host import Host
from leaseway.data_plane.mcp.transports.plugins import create_registered


async def connect(_: Host, context: ServerContext) -> UnopenedConnection:
    """Return a connection that is not open yet."""
    return context.stream(await create_registered(context.spec, context.resolved))
