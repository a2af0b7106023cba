"""What all instances of a worker share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp

from leaseway.data_plane.mcp.reaper import Reaper
from leaseway.data_plane.mcp.resolve import NO_VAULT, Vault

__all__ = ["Host"]


@dataclass(frozen=True)
class Host:
    """The worker process, as its instances see it.

    Attributes:
        environment: The worker's environment, for references and for processes.
        reaper: Keeps processes from outliving the worker.
        http: The worker's pooled HTTP client.
        vault: Where secrets are that the environment does not have.
    """

    environment: Mapping[str, str]
    reaper: Reaper
    http: aiohttp.ClientSession
    vault: Vault = NO_VAULT
