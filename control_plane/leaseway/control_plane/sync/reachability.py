"""Finds out whether nothing listens at a worker's address any more."""

from __future__ import annotations

import asyncio
import socket
from typing import Final

from leaseway.wire.channels.endpoint import parse_endpoint

_PATIENCE: Final = 1.0
"""Seconds for the name and the connections together."""


async def refuses_connections(address: str) -> bool:
    """Return whether a host answers that nothing listens at an address.

    Silence says nothing: the host may be cut off while its processes run.

    Args:
        address: `HOST:PORT`, as a worker advertises it.
    """
    loop = asyncio.get_running_loop()
    try:
        endpoint = parse_endpoint(address)
        async with asyncio.timeout(_PATIENCE):
            found = await loop.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
            for family, kind, protocol, _, target in found:
                if not await _is_refused(socket.socket(family, kind, protocol), target):
                    return False
    except (ValueError, OSError):  # TimeoutError is one of them
        return False
    return bool(found)


async def _is_refused(connection: socket.socket, target: tuple[object, ...]) -> bool:
    with connection:
        connection.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(connection, target)
        except ConnectionRefusedError:
            return True
    return False
