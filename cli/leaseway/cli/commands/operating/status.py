"""`leaseway wait` and `leaseway version`."""

from __future__ import annotations

import asyncio
import platform
import time
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING, Any, Final

import click

from leaseway.cli.commands.server_checks import servers_in_view
from leaseway.cli.errors import FAILED, UNREACHABLE, CliFailure
from leaseway.cli.options.common import (
    ConnectionOptions,
    client_options,
    examples,
    json_option,
    timeout_option,
)
from leaseway.cli.options.connection import with_client
from leaseway.cli.output.tables import print_json, say
from leaseway.wire.version import PACKAGE_VERSION, PROTOCOL_VERSION

if TYPE_CHECKING:
    from leaseway.sdk import AsyncClient, Status

_POLL: Final = 0.1
_SHARE: Final = 0.02
"""Part of the time waited so far that passes between two looks: each costs all servers."""
_STORES: Final = {
    "memory": "memory, and end with it (--data keeps them)",
    "sqlite": "a file",
    "postgresql": "PostgreSQL",
}
_VERSION_TIMEOUT: Final = 2.0  # seconds that `version` waits for the control plane


async def wait_until_ready(
    client: AsyncClient,
    on_status: Callable[[Status], Awaitable[None]] | None = None,
    also: Callable[[Status], Awaitable[bool]] | None = None,
) -> Status:
    """Wait until every server's first probe has ended. Callers must set a timeout.

    Keeps polling if the control plane is unreachable.

    Args:
        client: Connects to the control plane.
        on_status: Called with every status.
        also: A further condition, checked when the system is ready.
    """
    from leaseway.sdk import ControlPlaneUnavailable

    start = time.monotonic()
    while True:
        try:
            status = await client.status()
            if on_status is not None:
                await on_status(status)
            if status.ready and (also is None or await also(status)):
                return status
        except ControlPlaneUnavailable:
            pass
        await asyncio.sleep(max(_POLL, _SHARE * (time.monotonic() - start)))


@click.command(epilog=examples("leaseway wait --timeout 30 && leaseway servers"))
@timeout_option("Maximum seconds to wait.", 60)
@click.option(
    "--server",
    "servers",
    multiple=True,
    metavar="ID",
    help="Also wait until this server is up; repeatable.",
)
@click.option("--strict", is_flag=True, help="Also wait until all servers are up.")
@client_options
def wait(
    timeout: float, servers: tuple[str, ...], strict: bool, connection: ConnectionOptions
) -> None:
    """Wait until the system is ready.

    It is ready when every server's first probe has ended, successfully or not. Prints
    `ready ADDRESS`, and to stderr how many servers are up if some are not.
    """
    last: list[Status] = []
    down: list[str] = []

    async def on_status(status: Status) -> None:
        last[:] = [status]

    async def request(client: AsyncClient) -> None:
        async def also(status: Status) -> bool:
            down[:] = await _down(client, servers, strict=strict)
            return not down

        async with asyncio.timeout(timeout):
            await wait_until_ready(client, on_status, also if servers or strict else None)

    try:
        with_client(connection, request)
    except TimeoutError:
        raise _not_ready(connection, timeout, last[0] if last else None, down) from None
    say(f"ready {connection.address}")
    print_servers_down(last[0])


def print_servers_down(status: Status) -> None:
    """Print to stderr how many servers are up, if some are not."""
    if status.servers_up < status.servers:
        counts = f"{status.servers_up} of {status.servers}"
        say(f"leaseway: {counts} servers up (leaseway problems)", err=True)


async def _down(client: AsyncClient, wanted: Collection[str], *, strict: bool) -> list[str]:
    """Return which of the wanted servers are not up; `strict` wants all."""
    servers = await client.servers()
    if not servers or {*wanted} - {server.id for server in servers}:
        servers = await servers_in_view(client)  # an operator has no tenant of its own
    up: dict[str, bool] = {}
    for server in servers:  # a tenant may have a variant of its own
        up[server.id] = up.get(server.id, True) and server.state.is_up
    required = {*wanted, *(up if strict else ())}
    return sorted(server for server in required if not up.get(server))


def _not_ready(
    connection: ConnectionOptions, timeout: float, last: Status | None, down: Collection[str]
) -> CliFailure:
    if last is None:
        return CliFailure(
            f"No control plane responded at {connection.address} within {timeout:g} s.", UNREACHABLE
        )
    if last.pending:
        reason = f"still starting: {', '.join(last.pending)}"
    elif not last.workers:
        reason = "no worker is connected"
    elif down:
        reason = f"not up: {', '.join(down)}; see: leaseway problems"
    else:
        reason = "the control plane is not ready; see: leaseway problems"
    return CliFailure(f"Not ready within {timeout:g} s: {reason}.", FAILED)


@click.command()
@json_option
@client_options
def version(as_json: bool, connection: ConnectionOptions) -> None:
    """Print the versions of this package and the control plane.

    An unreachable control plane is not an error.
    """
    facts: dict[str, Any] = {
        "package_version": PACKAGE_VERSION,
        "protocol_version": PROTOCOL_VERSION,
        "python_version": platform.python_version(),
        "control_plane": _control_plane(connection),
    }
    if as_json:
        print_json(facts)
        return
    say(
        f"leaseway {PACKAGE_VERSION} (protocol {PROTOCOL_VERSION}, Python "
        f"{facts['python_version']})"
    )
    remote = facts["control_plane"]
    if remote is None:
        say(f"no control plane at {connection.address}")
    elif "error" in remote:
        say(f"control plane at {remote['address']}: {remote['error']}")
    else:
        kept = remote["store"]  # unknown of an older one
        say(
            f"control plane at {remote['address']}: {remote['package_version']} "
            f"(protocol {remote['protocol_version']})"
            + (f", approvals are kept in {_STORES.get(kept, kept)}" if kept else "")
        )


def _control_plane(connection: ConnectionOptions) -> dict[str, Any] | None:
    async def request(client: AsyncClient) -> Status:
        async with asyncio.timeout(_VERSION_TIMEOUT):
            return await client.status()

    try:
        status = with_client(connection, request)
    except TimeoutError:
        return None
    except CliFailure as failure:
        if failure.status == UNREACHABLE:
            return None
        # A control plane responded, but rejected the credential.
        return {"address": str(connection.address), "error": failure.message}
    return {
        "address": str(connection.address),
        "package_version": status.package_version,
        "protocol_version": status.protocol_version,
        "store": status.store,
    }
