"""Naming a server that is not there: a sentence with the nearest ids instead of an empty list."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from leaseway.cli.errors import CliFailure
from leaseway.cli.output.tables import say
from leaseway.wire.names import nearest

if TYPE_CHECKING:
    from leaseway.sdk import AsyncClient


async def require_servers(client: AsyncClient, server_ids: Iterable[str]) -> None:
    """Check that servers exist, and name on stderr those that never came up.

    Raises:
        CliFailure: One does not; names the nearest ids.
    """
    wanted = list(server_ids)
    listed = await client.servers() if wanted else []
    known = {server.id for server in listed}
    for server_id in wanted:
        if server_id not in known:
            near = nearest(server_id, sorted(known))
            hint = f"Did you mean {' or '.join(near)}?" if near else "See `leaseway servers`."
            raise CliFailure(f"There is no server '{server_id}'. {hint}")
    failed = sorted({one.id for one in listed if one.id in wanted and one.state == "failed"})
    if failed:
        say(f"leaseway: Not up: {', '.join(failed)}; see `leaseway problems`.", err=True)
