"""Connects to a server on a network, by its transport."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, assert_never, cast

from leaseway.data_plane.kinds.remote.http.connection import HttpConnection
from leaseway.data_plane.kinds.remote.sse import SseTransport
from leaseway.data_plane.kinds.remote.websocket import WebSocketTransport
from leaseway.data_plane.mcp.context import ServerContext, UnopenedConnection
from leaseway.data_plane.mcp.host import Host
from leaseway.data_plane.mcp.pull_adapter import PullAdapter

if TYPE_CHECKING:
    from leaseway.spec.kinds.remote import RemoteTransport


async def connect(host: Host, context: ServerContext) -> UnopenedConnection:
    """Return a connection that is not open yet."""
    transport = cast("RemoteTransport", context.spec.transport)  # one of those of `RemotePart`
    match transport:
        case "streamable_http":
            return await _connect_http(host, context)
        case "sse":
            return await _connect_sse(host, context)
        case "websocket":
            return _connect_websocket(host, context)
    assert_never(transport)


async def _connect_http(host: Host, context: ServerContext) -> UnopenedConnection:
    resolved = context.resolved
    peer = HttpConnection(
        context.server,
        resolved.url,
        host.http,
        headers=resolved.headers,
        session_id=resolved.session_id,
        outgoing=context.outgoing,
        on_tools_changed=context.on_tools_changed,
        renews_sessions=context.spec.truely_stateless,
    )
    # As MCP asks of clients: servers of 2024-11-05 may have any url. They know no ids of sessions.
    other = None if resolved.session_id else partial(_connect_sse, host)
    return UnopenedConnection(peer, other=other)


async def _connect_sse(host: Host, context: ServerContext) -> UnopenedConnection:
    resolved, http = context.resolved, host.http
    server, headers = context.server, resolved.headers
    transport = SseTransport(server, resolved.url, http, headers, context.outgoing)
    # Servers that have moved on may have kept a url that ends in /sse.
    return replace(context.stream(transport), other=partial(_connect_http, host))


def _connect_websocket(host: Host, context: ServerContext) -> UnopenedConnection:
    resolved, http = context.resolved, host.http
    server, headers = context.server, resolved.headers
    transport = WebSocketTransport(server, resolved.url, http, headers, context.outgoing)
    return context.stream(PullAdapter(context.server, transport))
