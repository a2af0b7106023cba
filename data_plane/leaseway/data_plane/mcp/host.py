"""What all instances of a worker share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import aiohttp

from leaseway.data_plane.mcp.pods.api import Pods
from leaseway.data_plane.mcp.process.reaper import Reaper
from leaseway.data_plane.references.resolve import NO_VAULT, Vault
from leaseway.spec.model import ServerSpec

_IDLE: Final = 4.0
"""Seconds that an unused connection is kept: less than common servers keep theirs, since a request
would race with their closing it."""


@dataclass(frozen=True)
class Host:
    """The worker process, as its instances see it.

    Attributes:
        environment: The worker's environment, for references and for processes.
        reaper: Keeps processes from outliving the worker.
        http: The worker's pooled HTTP client.
        vault: Where secrets are that the environment does not have.
        pods: Runs servers that are images; None where an engine on this machine does.
        served: Returns the servers that the worker serves at the moment.
    """

    environment: Mapping[str, str]
    reaper: Reaper
    http: aiohttp.ClientSession
    vault: Vault = NO_VAULT
    pods: Pods | None = None
    served: Callable[[], Iterable[ServerSpec]] = tuple


def http_client() -> aiohttp.ClientSession:
    """Return the pooled client that all HTTP connections of a worker share.

    Cookies are not kept: they would pass from one server's instance to another's.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"User-Agent": "leaseway"},
    )
