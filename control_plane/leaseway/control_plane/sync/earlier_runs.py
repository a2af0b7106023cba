"""Finds out whether the disconnected run of a worker has ended, whose id another run uses."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import Any, Final

from leaseway.wire.channels.endpoint import parse_endpoint

_PATIENCE: Final = 1.0
"""Seconds for the name and the connections together."""
_LOCAL_PEERS: Final = ("unix:", "ipv4:127.", "ipv6:%5B::1%5D:", "ipv6:[::1]:")
"""How the names begin that gRPC gives to peers on this machine."""


def is_local_peer(peer: str) -> bool:
    """Return whether the peer of a stream, as gRPC names it, is on this machine."""
    return peer.startswith(_LOCAL_PEERS)


async def has_ended(earlier: str, later: str, *, is_local: bool) -> bool:
    """Return whether a run has certainly ended: a later one has its address, or nobody has.

    Silence says nothing: a host may be cut off while its processes run. Nor does an address of
    this machine alone about a run on another machine.

    Args:
        earlier: `HOST:PORT`, as the run advertised it.
        later: The same of the later run of its id.
        is_local: Whether the later run is on this machine.
    """
    try:
        endpoint = parse_endpoint(earlier)
        async with asyncio.timeout(_PATIENCE):
            found = await asyncio.get_running_loop().getaddrinfo(
                endpoint.host, endpoint.port, type=socket.SOCK_STREAM
            )
            if not found or not (
                is_local or all(_is_of_network(target[0]) for *_, target in found)
            ):
                return False
            if earlier == later:
                return True
            for family, kind, protocol, _, target in found:
                if not await _refuses(socket.socket(family, kind, protocol), target):
                    return False
    except (ValueError, OSError):  # TimeoutError is one of them
        return False
    return True


def _is_of_network(host: object) -> bool:
    """Return whether a resolved address means the same host on every machine."""
    address = ipaddress.ip_address(str(host).partition("%")[0])
    return not (address.is_loopback or address.is_unspecified or address.is_link_local)


async def _refuses(connection: socket.socket, target: tuple[Any, ...]) -> bool:
    with connection:
        connection.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(connection, target)
        except ConnectionRefusedError:
            return True
    return False
