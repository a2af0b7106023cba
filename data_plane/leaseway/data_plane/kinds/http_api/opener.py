"""Opens instances of APIs."""

from __future__ import annotations

from leaseway.data_plane.core.ports import InstancePort
from leaseway.data_plane.http_tools.instance import HttpInstance
from leaseway.data_plane.kinds.host import WorkerHost
from leaseway.data_plane.kinds.opening import Opening
from leaseway.spec.model import ServerSpec


def open_instance(spec: ServerSpec, host: WorkerHost, opening: Opening) -> InstancePort:
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
        renderers=host.renderers,
        tokens=host.tokens,
    )
