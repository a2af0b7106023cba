"""The resources that all instances of a worker share, whatever their kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from leaseway.data_plane.mcp.host import Host


@dataclass(frozen=True, kw_only=True)
class WorkerHost(Host):
    """The worker process, as its instances of all kinds see it.

    Attributes:
        server_folders: Returns the folders that the entries of all servers name as their own.
        own_paths: Returns files and folders of Leaseway, which no sandboxed server may see.
        starter: The id of the `up` that has started it, or None.
    """

    server_folders: Callable[[], Iterable[str]] = tuple
    own_paths: Callable[[], Iterable[Path]] = tuple
    starter: int | None = None
