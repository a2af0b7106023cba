"""Opens instances of servers of all kinds."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from functools import partial

from leaseway.data_plane.core.instances.greeting import COMMON, Greeting
from leaseway.data_plane.core.ports import InstanceListener, InstancePort
from leaseway.data_plane.core.resolved_values import ResolvedValues
from leaseway.data_plane.kinds.container import opener as container
from leaseway.data_plane.kinds.host import WorkerHost
from leaseway.data_plane.kinds.http_api import opener as http_api
from leaseway.data_plane.kinds.opening import Opening, OpenKind
from leaseway.data_plane.kinds.packages import UnusableKind, half_of
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


def openers(host: WorkerHost) -> Mapping[type[Part], OpenKind]:
    """Return what opens the instances of each kind, by the type of a spec's part."""
    of_command = partial(process.open_instance, host.processes)
    return {
        ProcessPart: of_command,
        ContainerPart: partial(container.open_instance, host.processes, host.pods),
        PythonPart: of_command,
        BuiltinPart: of_command,
        RemotePart: remote.open_instance,
        HttpApiPart: partial(http_api.open_instance, host.renderers),
        RegisteredPart: registered.open_instance,
    }


def _opener_of_package(kind: type[Part]) -> OpenKind:
    """Return what opens instances of a kind that a package brings.

    If the kind cannot be used here, it is an MCP client, whose start says why.
    """
    try:
        found: OpenKind = half_of(kind).open_instance
    except UnusableKind:
        return registered.open_instance
    return found


class Opener:
    """Creates the instances of a worker; an `OpenInstance`."""

    def __init__(self, worker_id: str, host: WorkerHost) -> None:
        self._worker_id = worker_id
        self._host = host
        self._openers = openers(host)
        self._numbers = itertools.count(1)

    def __call__(
        self,
        spec: ServerSpec,
        listener: InstanceListener,
        *,
        known_version: str = "",
        resolved_values: ResolvedValues | None = None,
        names: LeaseNames | None = None,
        greeting: Greeting = COMMON,
    ) -> InstancePort:
        opening = Opening(
            instance_id=f"{self._worker_id}-{spec.key.server_id}-{next(self._numbers)}",
            listener=listener,
            read_values=read_references,
            known_version=known_version,
            resolved_values=resolved_values,
            names=names,
            greeting=greeting,
        )
        opener = self._openers.get(type(spec.part)) or _opener_of_package(type(spec.part))
        return opener(spec, self._host, opening)

    async def load(self) -> None:
        """Import the code that speaks MCP and connects, in a thread: it takes a second.

        Each instance's start does so, too; a worker calls this to make the first start faster.
        """
        await load()
        await asyncio.to_thread(process.load_connect, self._host.processes)
        await asyncio.to_thread(remote.load_connect, self._host)
