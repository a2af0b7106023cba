"""What the processes of all instances share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from leaseway.data_plane.kinds.host import WorkerHost
from leaseway.data_plane.kinds.process.reaper import Reaper


@dataclass(frozen=True)
class ProcessHost:
    """The worker process, as its child processes need it.

    Attributes:
        environment: The worker's environment.
        reaper: Ends the processes, whatever happens to the worker.
        server_folders: Returns the folders that the entries of all servers name as their own.
        own_paths: Returns files and folders of Leaseway, which no sandboxed server may see.
    """

    environment: Mapping[str, str]
    reaper: Reaper
    server_folders: Callable[[], Iterable[str]]
    own_paths: Callable[[], Iterable[Path]]


@asynccontextmanager
async def shared_processes(host: WorkerHost) -> AsyncIterator[ProcessHost]:
    """Yield what the processes share; all of them have exited afterwards."""
    reaper = Reaper(host.starter)
    try:
        yield ProcessHost(host.environment, reaper, host.server_folders, host.own_paths)
    finally:
        await reaper.close()
