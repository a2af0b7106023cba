"""Report servers that do not exist, failed or still start, rather than print an empty list."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from leaseway.cli.errors import CliFailure
from leaseway.cli.output.tables import say
from leaseway.wire.names import nearest

if TYPE_CHECKING:
    from leaseway.sdk import AsyncClient, ServerInfo


async def servers_in_view(client: AsyncClient) -> list[ServerInfo]:
    """List the servers of the tenant that the command names, or else all that it may see.

    An operator's credential has no tenant of its own, and the default tenant may see no server.
    """
    from leaseway.sdk import InvalidRequest, PermissionDenied

    try:
        return await client.servers(all_tenants=True)
    except (PermissionDenied, InvalidRequest):  # a caller's credential
        return await client.servers()


async def check_servers(
    client: AsyncClient,
    server_ids: Iterable[str],
    found: Collection[str] = (),
    *,
    all_tenants: bool = False,
) -> None:
    """Check that servers exist, and print those that failed to start to stderr.

    Args:
        client: Lists the servers.
        server_ids: The servers that the user named.
        found: Servers that need no check.
        all_tenants: Whether they may be those of any tenant (`servers_in_view`).

    Raises:
        CliFailure: A server does not exist; the message suggests the nearest ids.
    """
    wanted = [server_id for server_id in server_ids if server_id not in found]
    listed = []
    if wanted:
        listed = await (servers_in_view(client) if all_tenants else client.servers())
    check_known(wanted, {server.id for server in listed})
    never_up = ("failed", "needs login")
    failed = sorted(
        {server.id for server in listed if server.id in wanted and server.state in never_up}
    )
    if failed:
        say(f"leaseway: Failed to start: {', '.join(failed)}; see `leaseway problems`.", err=True)


def check_known(server_ids: Iterable[str], known: Collection[str]) -> None:
    """Check that the servers that the user named are among those that exist.

    Raises:
        CliFailure: A server does not exist; the message suggests the nearest ids.
    """
    for server_id in server_ids:
        if server_id not in known:
            near = nearest(server_id, sorted(known))
            hint = f"Did you mean {' or '.join(near)}?" if near else "See `leaseway servers`."
            raise CliFailure(f"There is no server '{server_id}'. {hint}")


def print_pending(pending: Collection[str]) -> None:
    """Print to stderr which servers still start: a list lacks their items."""
    if pending:
        say(f"leaseway: Still starting: {', '.join(pending)}.", err=True)
