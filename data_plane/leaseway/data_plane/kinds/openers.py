"""Opens instances of servers of all kinds."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn

from leaseway.data_plane.core.ports import InstanceListener, InstancePort, InstanceRequest
from leaseway.data_plane.kinds.container.pods import Pods, runs_pods
from leaseway.data_plane.kinds.http_api.instance import HttpInstance
from leaseway.data_plane.kinds.http_api.rendering import Renderers
from leaseway.data_plane.kinds.opening import Opening, OpenKind, open_mcp
from leaseway.data_plane.kinds.packages import UnusableKind, half_of
from leaseway.data_plane.kinds.process.reaper import Reaper
from leaseway.data_plane.kinds.values import read_references
from leaseway.data_plane.mcp.host import Host
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

if TYPE_CHECKING:
    from leaseway.data_plane.mcp.context import Connect

Kinds = Mapping[type[Part], OpenKind]
"""What opens the instances of kinds whose part names no half of a worker, by the type of a part."""

_PODS_GRACE: Final = 5.0
"""Seconds to wait at shutdown until pods are removed; the rest ends with the worker's own pod."""

_logger = logging.getLogger(__name__)


def _load_process(host: Host, reaper: Reaper) -> Connect:
    from leaseway.data_plane.kinds.process.connect import connect

    return partial(connect, reaper, host)


def _load_container(_host: Host, reaper: Reaper, pods: Pods | None) -> Connect:
    from leaseway.data_plane.kinds.container.connect import connect

    return partial(connect, reaper, pods)


def _load_remote(host: Host) -> Connect:
    from leaseway.data_plane.kinds.remote.connect import connect

    return partial(connect, host)


def _load_registered(_host: Host) -> Connect:
    from leaseway.data_plane.kinds.registered import connect

    return connect


def _client(
    load_connect: Callable[..., Connect], *shared: object, runs_here: bool = True
) -> OpenKind:
    """Return what opens the MCP clients of a kind.

    Args:
        load_connect: Imports what connects to a server, and returns it; takes the host, then:
        *shared: What the instances of the kind share.
        runs_here: As for `open_mcp`.
    """

    def open_instance(spec: ServerSpec, host: Host, opening: Opening) -> InstancePort:
        load = partial(load_connect, host, *shared)
        return open_mcp(spec, host, opening, load, runs_here=runs_here)

    return open_instance


_open_registered: Final = _client(_load_registered)


def _open_api(renderers: Renderers, spec: ServerSpec, host: Host, opening: Opening) -> InstancePort:
    return HttpInstance(spec, host, opening, renderers)


def built_in_kinds(reaper: Reaper, renderers: Renderers, pods: Pods | None = None) -> Kinds:
    """Return the built-in kinds with what the instances of each share."""
    of_command = _client(_load_process, reaper)
    return {
        ProcessPart: of_command,
        ContainerPart: _client(_load_container, reaper, pods, runs_here=pods is None),
        PythonPart: of_command,
        BuiltinPart: of_command,
        RemotePart: _client(_load_remote),
        HttpApiPart: partial(_open_api, renderers),
        RegisteredPart: _open_registered,
    }


@asynccontextmanager
async def open_kinds(host: Host) -> AsyncIterator[Kinds]:
    """Yield the built-in kinds; what the instances of each share is closed afterwards."""
    async with AsyncExitStack() as stack:
        reaper, renderers = Reaper(host.starter), Renderers(host.environment)
        stack.push_async_callback(reaper.close)
        stack.callback(renderers.close)
        pods = Pods(host.environment, host.http) if runs_pods(host.environment) else None
        if pods is not None:
            stack.push_async_callback(pods.close, _PODS_GRACE)
        yield built_in_kinds(reaper, renderers, pods)


def _opener_of_half(kind: type[Part]) -> OpenKind:
    """Return what opens instances of a kind whose part names its worker's half.

    If the kind cannot be used here, it is an MCP client, whose start says why.
    """
    try:
        found: OpenKind = half_of(kind).open_instance
    except UnusableKind:
        return _open_registered
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

    def __init__(self, worker_id: str, host: Host, kinds: Kinds) -> None:
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
        opener = self._kinds.get(type(spec.part)) or _opener_of_half(type(spec.part))
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
        await asyncio.to_thread(_import_common)


def _import_common() -> None:
    """Import the code of kinds that many servers have."""
    import leaseway.data_plane.kinds.process.connect
    import leaseway.data_plane.kinds.remote.connect  # noqa: F401
