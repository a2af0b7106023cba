"""Connects by transports that other packages register (see `protocol.transport`)."""

from __future__ import annotations

import asyncio
from importlib.metadata import EntryPoint

from leaseway.data_plane.core.resolved_values import ResolvedValues
from leaseway.data_plane.mcp.context import ServerContext, UnopenedConnection
from leaseway.data_plane.mcp.protocol.transport import PullTransport, ServerView, Transport
from leaseway.data_plane.mcp.pull_adapter import PullAdapter
from leaseway.spec.kinds.transports import TRANSPORT_GROUP, registered_transports
from leaseway.spec.model import ServerSpec
from leaseway.wire.errors import Fault, Reason

_MAX_TEXT = 500


async def connect(context: ServerContext) -> UnopenedConnection:
    """Return a connection that is not open yet."""
    return context.stream(await _create(context.spec, context.resolved))


async def _create(spec: ServerSpec, resolved: ResolvedValues) -> Transport:
    """Return a server's unconnected transport; import its package if necessary.

    Raises:
        Fault: SERVER_NOT_READY with `problem` TRANSPORT_NOT_AVAILABLE or START_FAILED.
    """
    server = spec.key.server_id
    entry = _entry(server, spec.transport)
    view = ServerView(
        server=server,
        tenant=spec.key.tenant,
        transport=spec.transport,
        shared=spec.truely_stateless,
        startup_timeout=spec.startup_timeout,
    )
    try:
        factory = await asyncio.to_thread(entry.load)  # an import may take long
        transport = factory(view, resolved)
    except Fault:
        raise
    except Exception as error:
        cause = f"{type(error).__name__}: {resolved.without_secrets(str(error))}"
        raise _broken(server, entry, cause[:_MAX_TEXT].rstrip(".")) from error
    if isinstance(transport, PullTransport):
        return PullAdapter(server, transport, resolved.without_secrets)
    if isinstance(transport, Transport):
        return transport
    cause = (
        f"it returned {type(transport).__name__}, which is neither a Transport nor a PullTransport"
    )
    raise _broken(server, entry, cause)


def _entry(server: str, transport: str) -> EntryPoint:
    entries = registered_transports().get(transport, ())
    if len(entries) == 1:
        return entries[0]
    if entries:
        packages = " and ".join(sorted(_origin(entry) for entry in entries))
        cause = f"more than one package registers it: {packages}; uninstall all but one"
        raise _broken(server, entries[0], cause)
    raise Fault(
        Reason.SERVER_NOT_READY,
        f"The server {server} uses the transport {transport[:64]}, which this worker does not "
        f"have: install the package that registers it (entry points {TRANSPORT_GROUP}) where the "
        "worker runs, and restart the worker.",
        metadata={"server": server, "problem": "TRANSPORT_NOT_AVAILABLE"},
    )


def _origin(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else entry.value


def _broken(server: str, entry: EntryPoint, cause: str) -> Fault:
    return Fault(
        Reason.SERVER_NOT_READY,
        f"The server {server} could not be started: the entry point {entry.name} = {entry.value} "
        f"of {_origin(entry)} (group {TRANSPORT_GROUP}) created no transport: {cause}.",
        metadata={"server": server, "problem": "START_FAILED", "entry_point": entry.name},
    )
