"""`leaseway servers`, `leases`, `workers`, `tenants`, `problems` and `logs`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from operator import methodcaller
from typing import TYPE_CHECKING, Any

import click

from leaseway.cli.commands.operating.watch import watch_leases, watch_problems
from leaseway.cli.commands.server_checks import check_known, check_servers
from leaseway.cli.options.common import ConnectionOptions, client_options, json_option
from leaseway.cli.options.connection import with_client
from leaseway.cli.output import instances
from leaseway.cli.output.load import LOAD_HEADERS, load_cells
from leaseway.cli.output.tables import print_json, print_table, say

if TYPE_CHECKING:
    from leaseway.sdk import AsyncClient, InstanceLog, LimitInfo, WorkerInfo


@click.command()
@click.argument("servers", nargs=-1)
@click.option(
    "--instances",
    "by_instance",
    is_flag=True,
    help="Print a row for each instance: its role, state, consecutive failures and next start, and"
    " a row for each server that failed to start. --json always contains the instances.",
)
@json_option
@client_options
def servers(
    servers: tuple[str, ...], by_instance: bool, as_json: bool, connection: ConnectionOptions
) -> None:
    """List the servers and their states, or those of SERVERS."""
    listed = with_client(connection, methodcaller("servers", load=True))
    if servers:
        check_known(servers, {server.id for server in listed})
        listed = [server for server in listed if server.id in servers]
    now = datetime.now(UTC)
    if by_instance and not as_json:
        print_table(instances.HEADERS, instances.rows(listed, now), "There are no instances.")
        return
    _show(
        listed,
        as_json,
        (
            "SERVER",
            "STATE",
            "TRANSPORT",
            "CALLS",
            "TOOLS",
            "PROMPTS",
            "RESOURCES",
            "WORKERS",
            "INSTANCES",
            *LOAD_HEADERS,
            "PROBLEM",
        ),
        lambda s: (
            s.id,
            s.state,
            s.transport,
            "shared" if s.shared else "leased",
            s.tool_count,
            s.prompt_count,
            s.resource_count,
            s.workers,
            instances.summary(s, now),
            *load_cells(s),
            s.problem,
        ),
        "No servers are configured for this tenant; operators list all with --tenant '*'.",
    )


@click.command()
@click.option(
    "--watch",
    is_flag=True,
    help="Keep printing each lease that is acquired, changes or ends, until Ctrl-C; with --json one"
    " object per line.",
)
@json_option
@client_options
def leases(watch: bool, as_json: bool, connection: ConnectionOptions) -> None:
    """List the leases that sessions hold."""
    if watch:
        watch_leases(connection, as_json=as_json)
        return
    listed = with_client(connection, methodcaller("leases", idle=True))
    _show(
        listed,
        as_json,
        ("LEASE", "SERVER", "SESSION", "AGENT", "TENANT", "USER", "WORKER", "TTL", "AGE", "IDLE"),
        lambda lease: (
            lease.id,
            lease.server_id,
            lease.session,
            lease.agent,
            lease.tenant,
            lease.user or lease.holder,
            lease.worker,
            f"{lease.ttl:.0f} s",
            f"{lease.age:.0f} s",
            "" if lease.idle is None else f"{lease.idle:.0f} s",
        ),
        "No leases are held.",
    )


@click.command()
@json_option
@client_options
def workers(as_json: bool, connection: ConnectionOptions) -> None:
    """List the workers, with their leases and instances."""
    listed = with_client(connection, methodcaller("workers", load=True))
    _show(
        listed,
        as_json,
        (
            "WORKER",
            "STATE",
            "ADDRESS",
            "LEASES",
            "INSTANCES",
            *LOAD_HEADERS,
            "LABELS",
            "VERSION",
            "LAST ERROR",
        ),
        lambda w: (
            w.id,
            w.state,
            w.address,
            f"{w.leases}/{w.capacity}",
            w.instances,
            *load_cells(w),
            _labels(w),
            w.package_version,
            w.last_error,
        ),
        "No workers are connected.",
    )


@click.command()
@json_option
@client_options
def tenants(as_json: bool, connection: ConnectionOptions) -> None:
    """List limits, with what is left of each.

    They hold over all workers. Limits of tenants and their agents come first, then those of servers
    and tools, which are of all tenants together and are left out with --tenant.
    """
    listed = with_client(connection, methodcaller("limits"))
    _show(
        listed,
        as_json,
        ("TENANT", "AGENT", "SERVER", "TOOL", "LIMIT", "LEFT", "RENEWS IN"),
        _limit_cells,
        "No limits are configured.",
    )


def _limit_cells(limit: LimitInfo) -> tuple[object, ...]:
    return (
        limit.tenant,
        limit.agent,
        limit.server_id,
        limit.tool,
        limit.quota + (f" in {limit.period:g} s" if limit.period else ""),
        f"{limit.remaining}/{limit.limit}",
        f"{limit.renews_in:.1f} s" if limit.renews_in else "",
    )


def _labels(worker: WorkerInfo) -> str:
    """Return the labels and patterns that select a worker's servers, without its artifacts URL."""
    pairs = [
        f"{name}={value}" for name, value in sorted(worker.labels.items()) if "://" not in value
    ]
    return ", ".join([*pairs, *(f"servers={pattern}" for pattern in worker.servers)])


@click.command()
@click.option(
    "--watch",
    is_flag=True,
    help="Keep printing each problem that is opened, changes or is cleared, until Ctrl-C; with"
    " --json one object per line.",
)
@json_option
@client_options
def problems(watch: bool, as_json: bool, connection: ConnectionOptions) -> None:
    """List the open problems that an operator should fix."""
    if watch:
        watch_problems(connection, as_json=as_json)
        return
    listed = with_client(connection, methodcaller("problems"))
    _show(
        listed,
        as_json,
        ("SEVERITY", "SCOPE", "SERVER", "WORKER", "REASON", "COUNT", "LAST SEEN", "MESSAGE"),
        lambda p: (
            p.severity,
            p.scope,
            p.server_id,
            p.worker,
            p.reason,
            p.count,
            p.last_seen,
            p.message,
        ),
        "No problems.",
    )


@click.command()
@click.argument("server")
@click.option(
    "--lines",
    type=click.IntRange(1, 100),
    default=100,
    show_default=True,
    help="The maximum number of lines of each instance.",
)
@json_option
@client_options
def logs(server: str, lines: int, as_json: bool, connection: ConnectionOptions) -> None:
    """Print the last stderr lines of each instance of SERVER."""

    async def request(client: AsyncClient) -> list[InstanceLog]:
        found = await client.logs(server, lines)
        await check_servers(client, [] if found else [server], all_tenants=True)
        return found

    listed = with_client(connection, request)
    if as_json:
        print_json(listed)
        return
    for log in listed:
        process = f", pid {log.pid}" if log.pid else ""
        say(f"== {log.instance_id or 'worker'} on {log.worker} ({log.state}{process})")
        for line in log.lines:
            say(line)
    if not listed:
        say(f"leaseway: No instance of '{server}' has written to stderr.", err=True)


def _show(
    listed: Sequence[Any],
    as_json: bool,
    headers: Sequence[str],
    row: Callable[[Any], Sequence[object]],
    empty: str,
) -> None:
    if as_json:
        print_json(list(listed))
    else:
        print_table(headers, [row(item) for item in listed], empty)
