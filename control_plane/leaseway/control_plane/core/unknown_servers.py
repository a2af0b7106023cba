"""Lists of some servers only: a server that does not exist is an error, not an empty list."""

from __future__ import annotations

from collections.abc import Iterable

from leaseway.control_plane.core.coordinator import Coordinator
from leaseway.control_plane.core.lookup import no_server, variants_of
from leaseway.control_plane.core.refusal import Denied
from leaseway.control_plane.core.servers import Moment
from leaseway.wire.admin import ADMIN_TOOLSET
from leaseway.wire.reasons import Reason

__all__ = ["unknown_server"]


def unknown_server(
    state: Coordinator, tenant: str, server_ids: Iterable[str], now: Moment
) -> Denied | None:
    """Return the refusal of the first server that a tenant does not have, or None (DESIGN §7).

    One that has not come up exists, and has nothing to list. Before a configuration was read,
    nobody knows what exists.
    """
    listed = state.visible.view(tenant).servers
    missing = [each for each in server_ids if each not in listed and each != ADMIN_TOOLSET]
    if not missing or state.servers.desired is None:
        return None
    configured = variants_of(state, tenant)
    for server_id in missing:
        if server_id not in configured:
            outcome = no_server(state, tenant, server_id, now)
            if isinstance(outcome, Denied) and outcome.reason is Reason.TOOL_NOT_FOUND:
                return outcome
    return None
