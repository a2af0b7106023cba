"""Opens instances of images."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from leaseway.data_plane.core.ports import InstancePort
from leaseway.data_plane.kinds.opening import Opening, open_mcp
from leaseway.data_plane.kinds.pod.api import Pods
from leaseway.data_plane.kinds.process.host import ProcessHost
from leaseway.data_plane.mcp.host import Host
from leaseway.spec.model import ServerSpec

if TYPE_CHECKING:
    from leaseway.data_plane.mcp.context import Connect


def open_instance(
    processes: ProcessHost, pods: Pods | None, spec: ServerSpec, host: Host, opening: Opening
) -> InstancePort:
    """Return an instance that is not started yet."""
    return open_mcp(spec, host, opening, partial(load_connect, processes, pods))


def load_connect(processes: ProcessHost, pods: Pods | None) -> Connect:
    """Import what connects to such a server, and return it."""
    from leaseway.data_plane.kinds.container.connect import connect

    return partial(connect, processes, pods)
