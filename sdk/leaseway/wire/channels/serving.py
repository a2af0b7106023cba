"""gRPC options, servers and listeners of both planes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import grpc

from leaseway.wire import bounds
from leaseway.wire.channels.endpoint import Endpoint
from leaseway.wire.channels.tls import read_tls, server_credentials

Options = Sequence[tuple[str, Any]]

# The kernel of a stalled process still acknowledges packets: only pings detect it. A connection is
# closed after 10 to 13 s of silence, so that a short stall under load does not close it. Of the two
# timeouts gRPC obeys the ping's, which is a minute by default.
_PINGS: Final = (
    ("grpc.keepalive_time_ms", 3_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)

# RPCs of all connections that wait for the event loop. gRPC aborts those beyond with a bare
# CANCELLED. Many clients starting at once reach its default of a thousand. Each takes 10 KiB, and a
# client that opens and resets streams sends them faster than the loop can end them.
_MAX_PENDING: Final = 4_096

_ENDING: Final = 0.5
"""Seconds in which cancelled RPCs end."""

SERVER_OPTIONS: Final[Options] = (
    ("grpc.max_receive_message_length", bounds.MAX_GRPC_RECEIVED),
    ("grpc.max_send_message_length", bounds.MAX_GRPC_MESSAGE),
    # A token has up to 16 KiB; gRPC's own limits are 8 and 16 KiB for all metadata of a request.
    ("grpc.max_metadata_size", 24 * bounds.KIB),
    ("grpc.absolute_max_metadata_size", 32 * bounds.KIB),
    ("grpc.server.max_pending_requests", _MAX_PENDING),
    ("grpc.server.max_pending_requests_hard_limit", _MAX_PENDING),
    ("grpc.max_concurrent_streams", bounds.MAX_RPCS),
    # By default gRPC widens the windows of all streams, up to megabytes, if data arrives fast. An
    # RPC that is refused by its headers would then hold most of its request. A message that is
    # being read gets a window of its size in any case.
    ("grpc.http2.bdp_probe", 0),
    # By default gRPC refuses some RPCs with headers over 8 KiB, at random, and all over 16 KiB.
    ("grpc.max_metadata_size", bounds.MAX_HEADERS),
    ("grpc.absolute_max_metadata_size", bounds.MAX_HEADERS),
    # Two processes on one port would silently get half of the connections each.
    ("grpc.so_reuseport", 0),
    # By default a server treats pings as abuse and closes the connection: those that come within 5
    # minutes and, whatever their interval, those that a stall delays and that then come together.
    # All calls of the connection would fail for it.
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.max_ping_strikes", 0),
    *_PINGS,
)
"""The options of every Leaseway server."""

CHANNEL_OPTIONS: Final[Options] = (
    ("grpc.max_receive_message_length", bounds.MAX_GRPC_MESSAGE),
    ("grpc.max_send_message_length", bounds.MAX_GRPC_MESSAGE),
    *_PINGS,
    # A restarted peer must be found within the reconnect bound of design.md#sync. gRPC's own delays
    # between connection attempts add to ours, so they are short.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    # Despite its name this sets how long one connection attempt may take. A peer that stalls or is
    # far away is not lost; a refused connection fails at once anyway.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    # A peer that has moved to another machine keeps its name: by default gRPC looks a name up again
    # only after 30 s, and tries the old address until then.
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
)
"""The options of every Leaseway channel."""


def make_server(*, interceptors: Sequence[grpc.aio.ServerInterceptor] = ()) -> grpc.aio.Server:
    """Return a server that is not started yet.

    Args:
        interceptors: Interceptors of every RPC; the first authenticates the caller.
    """
    return grpc.aio.server(interceptors=tuple(interceptors), options=SERVER_OPTIONS)


async def rpcs_ended() -> None:
    """Wait until the RPCs of this loop's stopped servers have ended, for at most half a second.

    `Server.stop` returns when it has cancelled them. Those that the end of the loop then cancels
    once more, gRPC takes for faults of their handlers: it logs them, and prints them to stderr.
    """
    rpcs = [task for task in asyncio.all_tasks() if _is_rpc(task)]
    if rpcs:
        await asyncio.wait(rpcs, timeout=_ENDING)


def _is_rpc(task: asyncio.Task[Any]) -> bool:
    return getattr(task.get_coro(), "__name__", "") == "_schedule_rpc_coro"


def bind(server: grpc.aio.Server, endpoint: Endpoint) -> Endpoint:
    """Bind a server to an address, with TLS if this process has a certificate.

    Returns:
        The address with the actual port.


    Raises:
        OSError: The address is taken, not allowed, or not an address of this machine.
        ValueError: The certificate cannot be used.
    """
    try:
        tls = read_tls()
        if tls.serves:
            port = server.add_secure_port(str(endpoint), server_credentials(tls))
        else:
            port = server.add_insecure_port(str(endpoint))
    except RuntimeError:
        port = 0
    if port == 0:
        raise OSError(
            f"Cannot listen on {endpoint}: the port is taken or needs more rights, or the address "
            f"is not one of this machine. Choose another one, or port 0 for any free port."
        )
    return Endpoint(endpoint.host, port)
