"""Opens instances of servers of all kinds."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from typing import Final

from leaseway.data_plane.core.ports import InstanceListener, InstancePort
from leaseway.data_plane.core.resolved_values import ResolvedValues
from leaseway.data_plane.kinds.container import opener as container
from leaseway.data_plane.kinds.host import WorkerHost
from leaseway.data_plane.kinds.http_api import opener as http_api
from leaseway.data_plane.kinds.opening import Opening, OpenKind
from leaseway.data_plane.kinds.process import opener as process
from leaseway.data_plane.kinds.registered import opener as registered
from leaseway.data_plane.kinds.remote import opener as remote
from leaseway.data_plane.kinds.values import read_references
from leaseway.data_plane.mcp.instance import load
from leaseway.spec.kinds.builtin import BuiltinPart
from leaseway.spec.kinds.container import ContainerPart
from leaseway.spec.kinds.http_api import HttpApiPart
from leaseway.spec.kinds.process import ProcessPart
from leaseway.spec.kinds.python import PythonPart
from leaseway.spec.kinds.registered import RegisteredPart
from leaseway.spec.kinds.remote import RemotePart
from leaseway.spec.lease_names import LeaseNames
from leaseway.spec.model import Part, ServerSpec

_OF_KINDS: Final[Mapping[type[Part], OpenKind]] = {
    ProcessPart: process.open_instance,
    ContainerPart: container.open_instance,
    PythonPart: process.open_instance,
    BuiltinPart: process.open_instance,
    RemotePart: remote.open_instance,
    HttpApiPart: http_api.open_instance,
    RegisteredPart: registered.open_instance,
}


def open_kind(spec: ServerSpec, host: WorkerHost, opening: Opening) -> InstancePort:
    """Return an instance of a server, whatever its kind, that is not started yet."""
    return _OF_KINDS[type(spec.part)](spec, host, opening)


class Opener:
    """Creates the instances of a worker; an `OpenInstance`."""

    def __init__(self, worker_id: str, host: WorkerHost) -> None:
        self._worker_id = worker_id
        self._host = host
        self._numbers = itertools.count(1)

    def __call__(
        self,
        spec: ServerSpec,
        listener: InstanceListener,
        *,
        known_version: str = "",
        resolved_values: ResolvedValues | None = None,
        names: LeaseNames | None = None,
    ) -> InstancePort:
        opening = Opening(
            instance_id=f"{self._worker_id}-{spec.key.server_id}-{next(self._numbers)}",
            listener=listener,
            read_values=read_references,
            known_version=known_version,
            resolved_values=resolved_values,
            names=names,
        )
        return open_kind(spec, self._host, opening)

    async def load(self) -> None:
        """Import the code that speaks MCP and connects, in a thread: it takes a second.

        Each instance's start does so, too; a worker calls this to make the first start faster.
        """
        await load()
        for kind in (process, container, remote):
            await asyncio.to_thread(kind.load_connect, self._host)
