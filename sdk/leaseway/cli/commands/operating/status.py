"""How far a system is: `leaseway wait` and `leaseway version`."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING, Any, Final

import click

from leaseway.cli.errors import FAILED, UNREACHABLE, CliFailure
from leaseway.cli.options.common import (
    Connection,
    client_options,
    examples,
    json_option,
    timeout_option,
)
from leaseway.cli.options.connection import ask
from leaseway.cli.output.tables import print_json, say
from leaseway.wire.version import PACKAGE_VERSION, PROTOCOL_VERSION

if TYPE_CHECKING:
    from leaseway.sdk import AsyncClient, Status

_POLL: Final = 0.1
_PEEK: Final = 2.0  # seconds that `version` gives a control plane that may not be there


async def wait_until_ready(
    client: AsyncClient,
    seen: Callable[[Status], Awaitable[None]] | None = None,
    also: Callable[[Status], Awaitable[bool]] | None = None,
) -> Status:
    """Wait, without a bound of its own, until every server has a first result.

    A control plane that cannot be reached yet is tried again.

    Args:
        client: Whom to ask.
        seen: Told of every status on the way.
        also: What else must hold; asked once the system is ready.
    """
    from leaseway.sdk import ControlPlaneUnavailable

    while True:
        try:
            status = await client.status()
            if seen is not None:
                await seen(status)
            if status.ready and (also is None or await also(status)):
                return status
        except ControlPlaneUnavailable:
            pass
        await asyncio.sleep(_POLL)


@click.command(epilog=examples("leaseway wait --timeout 30 && leaseway servers"))
@timeout_option("Seconds to wait at most.", 60)
@click.option(
    "--server",
    "servers",
    multiple=True,
    metavar="ID",
    help="Wait until this server is up, too; may be repeated.",
)
@click.option("--strict", is_flag=True, help="Wait until all servers are up.")
@client_options
def wait(timeout: float, servers: tuple[str, ...], strict: bool, connection: Connection) -> None:
    """Wait until the system is ready.

    That is when every server's first probe has ended, well or badly. Prints `ready ADDRESS` then,
    and on stderr how many servers are up where some are not.
    """
    last: list[Status] = []
    down: list[str] = []

    async def seen(status: Status) -> None:
        last[:] = [status]

    async def question(client: AsyncClient) -> None:
        async def also(status: Status) -> bool:
            down[:] = await _down(client, servers, strict=strict)
            return not down

        async with asyncio.timeout(timeout):
            await wait_until_ready(client, seen, also if servers or strict else None)

    try:
        ask(connection, question)
    except TimeoutError:
        raise _not_ready(connection, timeout, last[0] if last else None, down) from None
    say(f"ready {connection.address}")
    say_how_many_are_up(last[0])


def say_how_many_are_up(status: Status) -> None:
    """Say on stderr how many servers are up, where some are not."""
    if status.servers_up < status.servers:
        counts = f"{status.servers_up} of {status.servers}"
        say(f"leaseway: {counts} servers up (leaseway problems)", err=True)


async def _down(client: AsyncClient, wanted: Collection[str], *, strict: bool) -> list[str]:
    """Return which servers are not up of those that are waited for."""
    listed = {server.id: server.state for server in await client.servers()}
    asked = {*wanted, *(listed if strict else ())}
    return sorted(each for each in asked if listed.get(each) not in ("ready", "degraded"))


def _not_ready(
    connection: Connection, timeout: float, last: Status | None, down: Collection[str]
) -> CliFailure:
    if last is None:
        return CliFailure(
            f"No control plane answered at {connection.address} within {timeout:g} s.", UNREACHABLE
        )
    if last.pending:
        why = f"still starting: {', '.join(last.pending)}"
    elif not last.workers:
        why = "no worker is connected"
    elif down:
        why = f"not up: {', '.join(down)}; see: leaseway problems"
    else:
        why = "the control plane is not ready; see: leaseway problems"
    return CliFailure(f"Not ready within {timeout:g} s: {why}.", FAILED)


@click.command()
@json_option
@client_options
def version(as_json: bool, connection: Connection) -> None:
    """Print the versions in use.

    This package's, and the control plane's where one is reachable and answers.
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
    there = facts["control_plane"]
    if there is None:
        say(f"no control plane at {connection.address}")
    elif "error" in there:
        say(f"control plane at {there['address']}: {there['error']}")
    else:
        say(
            f"control plane at {there['address']}: {there['package_version']} "
            f"(protocol {there['protocol_version']})"
        )


def _control_plane(connection: Connection) -> dict[str, Any] | None:
    async def question(client: AsyncClient) -> Status:
        async with asyncio.timeout(_PEEK):
            return await client.status()

    try:
        status = ask(connection, question)
    except TimeoutError:
        return None
    except CliFailure as failure:
        if failure.status == UNREACHABLE:
            return None
        # Something answers there; it does not tell its version to whoever lacks the key.
        return {"address": str(connection.address), "error": failure.message}
    return {
        "address": str(connection.address),
        "package_version": status.package_version,
        "protocol_version": status.protocol_version,
    }
