"""The resources that all instances of a worker share: environment, HTTP client, vault, pods."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import aiohttp

from leaseway.data_plane.mcp.eras import KnownEras
from leaseway.data_plane.mcp.pods.api import Pods
from leaseway.data_plane.mcp.process.reaper import Reaper
from leaseway.data_plane.oauth.tokens import Tokens
from leaseway.data_plane.references.resolver import NO_VAULT, Vault

_KEEP_ALIVE: Final = 4.0
"""Seconds that an unused connection is kept. Shorter than common servers' keep-alive: otherwise a
request could be sent while the server closes the connection."""


@dataclass(frozen=True)
class Host:
    """The worker process, as its instances see it.

    Attributes:
        environment: The worker's environment, for references and child processes.
        http: The worker's pooled HTTP client.
        pods: Runs images as pods; None if a container engine on this machine runs them.
        server_folders: Returns the folders that the entries of all servers name as their own.
        own_paths: Returns files and folders of Leaseway, which no sandboxed server may see.
        tokens: The OAuth tokens of its servers.
        eras: What earlier starts found out about the protocol of servers.
    """

    environment: Mapping[str, str]
    reaper: Reaper
    http: aiohttp.ClientSession
    vault: Vault = NO_VAULT
    pods: Pods | None = None
    server_folders: Callable[[], Iterable[str]] = tuple
    own_paths: Callable[[], Iterable[Path]] = tuple
    tokens: Tokens = field(default_factory=Tokens)
    eras: KnownEras = field(default_factory=KnownEras)


def http_client() -> aiohttp.ClientSession:
    """Return the pooled client that all HTTP connections of a worker share.

    It keeps no cookies: they would leak from one server's instance to another's. Each instance
    keeps its own (see `outgoing`).
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"User-Agent": "leaseway"},
    )
