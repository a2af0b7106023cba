"""What operators do to a running system: `lease revoke` and `worker drain`."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any, Final

import click

from leaseway.cli.commands.running import planes
from leaseway.cli.errors import FAILED, CliFailure
from leaseway.cli.options.common import Connection, client_options, examples, timeout_option
from leaseway.cli.options.connection import ask
from leaseway.cli.output.tables import say

if TYPE_CHECKING:
    from leaseway.sdk import AsyncClient, WorkerInfo

_POLL: Final = 0.2
"""Seconds between looks at a worker that is to end."""


@click.group()
def lease() -> None:
    """End leases against their holders' will.

    `leaseway leases` lists them.
    """


@lease.command(
    epilog=examples(
        'leaseway lease revoke 6c0a0d1ddd4f7d77-1 --reason "maintenance"',
        "leaseway lease revoke --server files --session dialog-42",
    )
)
@click.argument("lease_id", metavar="[LEASE]", default="")
@click.option("--server", default="", help="Instead of LEASE: of which server the lease is.")
@click.option("--session", default="", help="Instead of LEASE: which session holds it.")
@click.option("--reason", default="", help="Why, for whoever holds it.")
@client_options
def revoke(lease_id: str, server: str, session: str, reason: str, connection: Connection) -> None:
    """End LEASE, or the one that --session holds of --server.

    LEASE is an id of `leaseway leases`. Its instance is closed. Calls that use it fail, those in
    flight too, and say why.
    """
    by_name = bool(server and session)
    if bool(lease_id) is by_name or bool(server) is not bool(session):
        raise click.UsageError("Name the lease by its id, or by --server and --session.")

    async def question(client: AsyncClient) -> tuple[str, bool]:
        found = await _find(client, server, session) if by_name else lease_id
        return found, await client.revoke_lease(found, reason)

    revoked, confirmed = ask(connection, question)
    if not confirmed:
        raise CliFailure(
            f"The worker of lease '{revoked}' was told to end it and has not said yet that it "
            "did. Look at: leaseway leases",
            FAILED,
        )
    say(f"Lease {revoked} has ended.")


async def _find(client: AsyncClient, server: str, session: str) -> str:
    found = await client.find_lease(session, server)
    if found is None:
        raise CliFailure(
            f"No worker has reported a lease of server '{server}' for session '{session}'. Look "
            "at: leaseway leases (of one --tenant at a time)",
            FAILED,
        )
    return found


@click.command(epilog=examples("leaseway worker drain worker-1 --wait"))
@click.argument("worker_id", metavar="WORKER")
@click.option("--wait", is_flag=True, help="Return when the worker has ended.")
@timeout_option("Seconds to wait at most.", 60)
@client_options
def drain(worker_id: str, wait: bool, timeout: float, connection: Connection) -> None:
    """Drain WORKER: it ends without a failed call.

    It gets no new work, finishes the calls in flight, revokes its leases and ends.
    """

    async def question(client: AsyncClient) -> None:
        run = _run_of(worker_id, await client.workers())
        await client.drain_worker(worker_id)
        say(f"Worker {worker_id} drains.")
        if wait:
            async with asyncio.timeout(timeout):
                await _wait_for_end(client, worker_id, run)

    try:
        ask(connection, question)
    except TimeoutError:
        raise CliFailure(
            f"Worker '{worker_id}' has not ended within {timeout:g} s; it still finishes calls. "
            "Look at: leaseway workers",
            FAILED,
        ) from None
    if wait:
        say(f"Worker {worker_id} has ended.")


def _run_of(worker_id: str, workers: list[WorkerInfo]) -> str:
    """Return which run of a worker is there: its successor may have the same id."""
    runs = [each.incarnation for each in workers if each.id == worker_id and each.state != "lost"]
    return runs[0] if runs else ""


async def _wait_for_end(client: AsyncClient, worker_id: str, run: str) -> None:
    from leaseway.sdk import ControlPlaneUnavailable

    while True:
        try:
            if _run_of(worker_id, await client.workers()) != run:
                return
        except ControlPlaneUnavailable:
            pass  # it may come back, and then knows
        await asyncio.sleep(_POLL)


@click.pass_context
def _run_worker(context: click.Context, /, **options: Any) -> Any:
    if context.invoked_subcommand is None:
        assert planes.worker.callback is not None
        return planes.worker.callback(**options)
    return None


worker: Final = click.Group(
    "worker",
    params=planes.worker.params,
    help=inspect.cleandoc(planes.worker.help or ""),
    callback=_run_worker,
    invoke_without_command=True,
    subcommand_metavar="[drain WORKER]",
    commands={"drain": drain},
    epilog=examples(
        "leaseway worker --control-plane 127.0.0.1:7600 --id worker-1",
        "leaseway worker drain worker-1 --wait",
    ),
)
"""`leaseway worker` itself runs one; its subcommand is about one that runs."""
