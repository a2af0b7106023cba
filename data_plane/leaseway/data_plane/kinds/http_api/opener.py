"""Opens instances of APIs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from leaseway.data_plane.core.ports import InstancePort
from leaseway.data_plane.kinds.http_api.instance import HttpInstance
from leaseway.data_plane.kinds.http_api.rendering import Renderers
from leaseway.data_plane.kinds.opening import Opening
from leaseway.data_plane.mcp.host import Host
from leaseway.spec.model import ServerSpec


@asynccontextmanager
async def shared_renderers(host: Host) -> AsyncIterator[Renderers]:
    """Yield what renders the templates of all APIs; its processes end afterwards."""
    renderers = Renderers(host.environment)
    try:
        yield renderers
    finally:
        renderers.close()


def open_instance(
    renderers: Renderers | None, spec: ServerSpec, host: Host, opening: Opening
) -> InstancePort:
    """Return an instance that is not started yet."""
    return HttpInstance(
        spec,
        host.http,
        host.environment,
        host.vault,
        opening.listener,
        instance_id=opening.instance_id,
        read_values=opening.read_values,
        resolved_values=opening.resolved_values,
        renderers=renderers,
        tokens=host.tokens,
        listed=opening.listed,
    )
