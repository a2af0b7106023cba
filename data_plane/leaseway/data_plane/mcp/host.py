"""The resources that all MCP clients of a worker share: environment, HTTP client, vault, tokens."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiohttp
from aiohttp.client_proto import ResponseHandler

from leaseway.data_plane.mcp.eras import KnownEras
from leaseway.data_plane.mcp.protocol.logged import LoggedOfServers
from leaseway.data_plane.oauth.tokens import Tokens
from leaseway.data_plane.references.resolver import NO_VAULT, Vault
from leaseway.wire import bounds
from leaseway.wire.daemon_threads import DaemonThreads

_KEEP_ALIVE: Final = 4.0
"""Seconds that an unused connection is kept. Shorter than common servers' keep-alive: otherwise a
request could be sent while the server closes the connection."""

_PROBES: Final = {
    "TCP_KEEPIDLE": 30,
    "TCP_KEEPALIVE": 30,  # its name on macOS
    "TCP_KEEPINTVL": 15,
    "TCP_KEEPCNT": 8,
}
"""Seconds of silence after which the system probes a connection, seconds between probes, and how
many in vain end it. Balancers and gateways (NAT) of clouds forget one that is silent for 4 minutes
or more, and tell neither side: a long call would never end, and a stream would stay deaf."""

_MAX_LOOKUPS: Final = 64
"""Names that are looked up at the same time."""


@dataclass(frozen=True)
class Host:
    """The worker process, as its instances see it.

    Attributes:
        environment: The worker's environment, for references and child processes.
        http: The worker's pooled HTTP client.
        tokens: The OAuth tokens of its servers.
        eras: What earlier starts found out about the protocol of servers.
        logged: What their connections have logged of servers.
        server_folders: Returns the folders that the entries of all servers name as their own.
        own_paths: Returns files and folders of Leaseway, which no sandboxed server may see.
        starter: The id of the `up` that has started it, or None.
    """

    environment: Mapping[str, str]
    http: aiohttp.ClientSession
    vault: Vault = NO_VAULT
    tokens: Tokens = field(default_factory=Tokens)
    eras: KnownEras = field(default_factory=KnownEras)
    logged: LoggedOfServers = field(default_factory=LoggedOfServers)
    server_folders: Callable[[], Iterable[str]] = tuple
    own_paths: Callable[[], Iterable[Path]] = tuple
    starter: int | None = None


def http_client(connector: aiohttp.BaseConnector | None = None) -> aiohttp.ClientSession:
    """Return the pooled client that all HTTP connections of a worker share.

    With a connector of its own it is a client of the same kind for other connections.

    It keeps no cookies: they would leak from one server's instance to another's. Each instance
    keeps its own (see `outgoing`).
    """
    if connector is None:
        lookups: Any = _Lookups()
        resolver = aiohttp.ThreadedResolver(lookups)
        connector = aiohttp.TCPConnector(
            limit=0,
            keepalive_timeout=_KEEP_ALIVE,
            resolver=resolver,
            socket_factory=_probed_socket,
        )
    connections: Any = partial(_Connection, loop=asyncio.get_running_loop())
    connector._factory = connections  # wired late: aiohttp takes no class of connections
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"User-Agent": "leaseway"},
        max_field_size=bounds.MAX_RESPONSE_HEADER,
    )


def _probed_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    family, kind, protocol, *_ = address
    opened = socket.socket(family, kind, protocol)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _PROBES.items():
        if hasattr(socket, name):
            opened.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return opened


class _Connection(ResponseHandler):
    """A connection whose end also ends the body that is being read from it.

    aiohttp closes a connection on which a body breaks the rules of HTTP, such as a page of a proxy
    in the middle of a chunked stream, but whoever reads that body would wait for ever.
    """

    def connection_lost(self, exc: BaseException | None) -> None:
        body = self._payload
        super().connection_lost(exc)
        if body is not None and not body.is_eof() and body.exception() is None:
            body.set_exception(aiohttp.ClientPayloadError("The body breaks the rules of HTTP."))


class _Lookups:
    """Looks names up in threads of its own; what aiohttp's resolver needs of an event loop.

    A loop has few threads for that, uvloop two: some names whose name servers do not answer would
    hold up the connections to all other servers.
    """

    def __init__(self) -> None:
        self._threads = DaemonThreads(_MAX_LOOKUPS)

    async def getaddrinfo(self, host: str, port: int, **wanted: Any) -> Any:
        return await self._threads.run(partial(socket.getaddrinfo, host, port, **wanted))

    async def getnameinfo(self, address: Any, flags: int) -> Any:
        return await self._threads.run(socket.getnameinfo, address, flags)
