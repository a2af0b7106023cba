"""Opens instances of images."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from leaseway.data_plane.core.ports import InstancePort
from leaseway.data_plane.kinds.opening import Opening, open_mcp
from leaseway.data_plane.kinds.pod.api import Pods, runs_pods
from leaseway.data_plane.kinds.process.host import ProcessHost
from leaseway.data_plane.mcp.host import Host
from leaseway.spec.model import ServerSpec

if TYPE_CHECKING:
    from leaseway.data_plane.mcp.context import Connect

_PODS_GRACE: Final = 5.0
"""Seconds to wait at shutdown until pods are removed; the rest ends with the worker's own pod."""


@asynccontextmanager
async def shared_pods(host: Host) -> AsyncIterator[Pods | None]:
    """Yield what runs images as pods, or None if a container engine on this machine runs them."""
    pods = Pods(host.environment, host.http) if runs_pods(host.environment) else None
    try:
        yield pods
    finally:
        if pods is not None:
            await pods.close(_PODS_GRACE)


def open_instance(
    processes: ProcessHost, pods: Pods | None, spec: ServerSpec, host: Host, opening: Opening
) -> InstancePort:
    """Return an instance that is not started yet."""
    load = partial(load_connect, processes, pods)
    return open_mcp(spec, host, opening, load, runs_here=pods is None)


def load_connect(processes: ProcessHost, pods: Pods | None) -> Connect:
    """Import what connects to such a server, and return it."""
    from leaseway.data_plane.kinds.container.connect import connect

    return partial(connect, processes, pods)
