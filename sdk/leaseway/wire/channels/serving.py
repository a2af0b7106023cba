"""How both planes listen: one place for gRPC options and binding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import grpc

from leaseway.wire import bounds
from leaseway.wire.channels.endpoint import Endpoint
from leaseway.wire.channels.tls import read_tls, server_credentials

Options = Sequence[tuple[str, Any]]

# A process that stands still has a kernel that still acknowledges what is sent to it: only pings
# tell. A connection is cut after 10 to 13 s of silence, so that one which merely stalls under load
# is left alone. Of the two timeouts gRPC heeds the ping's, which is a minute unless it is set.
_PINGS: Final = (
    ("grpc.keepalive_time_ms", 3_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)

# RPCs of one moment that wait to be taken by the event loop. gRPC itself ends those beyond a
# thousand with a bare CANCELLED, which many clients starting at once reach.
_MOST_WAITING: Final = 50_000

SERVER_OPTIONS: Final[Options] = (
    ("grpc.max_receive_message_length", bounds.MAX_GRPC_RECEIVED),
    ("grpc.max_send_message_length", bounds.MAX_GRPC_MESSAGE),
    ("grpc.server.max_pending_requests", _MOST_WAITING),
    ("grpc.server.max_pending_requests_hard_limit", _MOST_WAITING),
    # Two processes on one port would each get half of the connections, in silence.
    ("grpc.so_reuseport", 0),
    # Without this a server takes the pings of its clients for abuse and cuts the connection.
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    *_PINGS,
)
"""What each Leaseway server is made with."""

CHANNEL_OPTIONS: Final[Options] = (
    ("grpc.max_receive_message_length", bounds.MAX_GRPC_MESSAGE),
    ("grpc.max_send_message_length", bounds.MAX_GRPC_MESSAGE),
    *_PINGS,
    # A peer that was restarted is found again within the reconnect bound of DESIGN §8. gRPC's own
    # waits between attempts to connect add to ours, so they are kept short.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    # By its name another wait, but what it sets is how long one attempt to connect may take. A
    # peer that stalls, or is far away, is no peer that is gone: nobody is refused sooner by it.
    ("grpc.min_reconnect_backoff_ms", 5_000),
)
"""What each Leaseway channel is made with."""


def make_server(
    *,
    interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
    options: Options = (),
) -> grpc.aio.Server:
    """Return a server that is not started yet.

    Args:
        interceptors: Links in front of every RPC; who calls is checked by the first.
        options: Further channel arguments; they win over `SERVER_OPTIONS`.
    """
    return grpc.aio.server(interceptors=tuple(interceptors), options=(*SERVER_OPTIONS, *options))


def bind(server: grpc.aio.Server, endpoint: Endpoint) -> Endpoint:
    """Add an address to a server, by TLS where this process has a certificate; return it bound.

    Raises:
        OSError: The address cannot be used: taken, not of this machine, or not allowed.
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
            f"Cannot listen on {endpoint}: the port is taken, needs more rights, or the address "
            f"is not of this machine. Choose another one, or port 0 for any free port."
        )
    return Endpoint(endpoint.host, port)
