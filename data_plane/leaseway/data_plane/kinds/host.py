"""The resources that all instances of a worker share, whatever their kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from leaseway.data_plane.kinds.http_api.rendering import Renderers
from leaseway.data_plane.kinds.pod.api import Pods
from leaseway.data_plane.kinds.process.host import ProcessHost
from leaseway.data_plane.kinds.process.reaper import Reaper
from leaseway.data_plane.mcp.host import Host


@dataclass(frozen=True, kw_only=True)
class WorkerHost(Host):
    """The worker process, as its instances of all kinds see it.

    Attributes:
        reaper: Ends the processes of instances, whatever happens to the worker.
        renderers: Render the templates of APIs; None for one renderer for each instance.
        pods: Runs images as pods; None if a container engine on this machine runs them.
        server_folders: Returns the folders that the entries of all servers name as their own.
        own_paths: Returns files and folders of Leaseway, which no sandboxed server may see.
    """

    reaper: Reaper
    renderers: Renderers | None = None
    pods: Pods | None = None
    server_folders: Callable[[], Iterable[str]] = tuple
    own_paths: Callable[[], Iterable[Path]] = tuple

    @property
    def processes(self) -> ProcessHost:
        """What its processes need of it."""
        return ProcessHost(self.environment, self.reaper, self.server_folders, self.own_paths)
