"""Opens instances of servers of all kinds."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

from leaseway.data_plane.core.ports import InstanceListener, InstancePort, InstanceRequest
from leaseway.data_plane.kinds.container import opener as container
from leaseway.data_plane.kinds.host import WorkerHost
from leaseway.data_plane.kinds.http_api import opener as http_api
from leaseway.data_plane.kinds.http_api.rendering import Renderers
from leaseway.data_plane.kinds.opening import Opening, OpenKind, open_mcp
from leaseway.data_plane.kinds.packages import UnusableKind, half_of
from leaseway.data_plane.kinds.pod.api import Pods
from leaseway.data_plane.kinds.process import opener as process
from leaseway.data_plane.kinds.process.host import ProcessHost, shared_processes
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
from leaseway.spec.model import Part, ServerSpec
from leaseway.wire.errors import Fault, Reason

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Kinds:
    """What a worker runs of the built-in kinds.

    Attributes:
        openers: What opens the instances of kinds whose part names no half of a worker, by the type
            of a spec's part.
        imports: Import the code of kinds that many servers have; called in a thread.
    """

    openers: Mapping[type[Part], OpenKind]
    imports: Sequence[Callable[[], object]]


def built_in_kinds(
    host: WorkerHost,
    processes: ProcessHost,
    pods: Pods | None = None,
    renderers: Renderers | None = None,
) -> Kinds:
    """Return the built-in kinds with what the instances of each share."""
    of_command = partial(process.open_instance, processes)
    openers: Mapping[type[Part], OpenKind] = {
        ProcessPart: of_command,
        ContainerPart: partial(container.open_instance, processes, pods),
        PythonPart: of_command,
        BuiltinPart: of_command,
        RemotePart: remote.open_instance,
        HttpApiPart: partial(http_api.open_instance, renderers),
        RegisteredPart: registered.open_instance,
    }
    imports = (partial(process.load_connect, processes), partial(remote.load_connect, host))
    return Kinds(openers, imports)


@asynccontextmanager
async def open_kinds(host: WorkerHost) -> AsyncIterator[Kinds]:
    """Yield the built-in kinds; what the instances of each share is closed afterwards."""
    async with (
        shared_processes(host) as processes,
        http_api.shared_renderers(host) as renderers,
        container.shared_pods(host) as pods,
    ):
        yield built_in_kinds(host, processes, pods, renderers)


def _opener_of_half(kind: type[Part]) -> OpenKind:
    """Return what opens instances of a kind whose part names its worker's half.

    If the kind cannot be used here, it is an MCP client, whose start says why.
    """
    try:
        found: OpenKind = half_of(kind).open_instance
    except UnusableKind:
        return registered.open_instance
    return found


def _unopened(spec: ServerSpec, error: Exception) -> Fault:
    """Return the fault for a server that its kind could not open."""
    server = spec.key.server_id
    return Fault(
        Reason.SERVER_NOT_READY,
        f"The server {server} can't start: opening it, its kind {spec.transport} raised"
        f" {type(error).__name__}; see the worker's log.",
        metadata={"server": server, "problem": "START_FAILED"},
    )


def _raise(fault: Fault) -> NoReturn:
    raise fault


class Opener:
    """Creates the instances of a worker; an `OpenInstance`.

    If the module of a package raises, the instance is an MCP client, whose start fails: a failed
    start is reported, and repeated with backoff.
    """

    def __init__(self, worker_id: str, host: WorkerHost, kinds: Kinds) -> None:
        self._worker_id = worker_id
        self._host = host
        self._kinds = kinds
        self._numbers = itertools.count(1)

    def __call__(
        self, spec: ServerSpec, listener: InstanceListener, request: InstanceRequest
    ) -> InstancePort:
        opening = Opening.of(
            request,
            instance_id=f"{self._worker_id}-{spec.key.server_id}-{next(self._numbers)}",
            listener=listener,
            read_values=read_references,
        )
        opener = self._kinds.openers.get(type(spec.part)) or _opener_of_half(type(spec.part))
        try:
            return opener(spec, self._host, opening)
        except Exception as error:
            _logger.exception("The kind of the server %s opened no instance.", spec.key.server_id)
            fail = partial(_raise, _unopened(spec, error))
            return open_mcp(spec, self._host, opening, fail, runs_here=False)

    async def load(self) -> None:
        """Import the code that speaks MCP and connects, in a thread: it takes a second.

        Each instance's start does so, too; a worker calls this to make the first start faster.
        """
        await load()
        for load_kind in self._kinds.imports:
            await asyncio.to_thread(load_kind)
