"""`leaseway lease revoke` and `leaseway worker drain`."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any, Final

import click

from leaseway.cli.commands.running import planes
from leaseway.cli.errors import FAILED, CliFailure
from leaseway.cli.options.common import ConnectionOptions, client_options, examples, timeout_option
from leaseway.cli.options.connection import with_client
from leaseway.cli.output.tables import say

if TYPE_CHECKING:
    from leaseway.sdk import AsyncClient, WorkerInfo

_POLL: Final = 0.2
"""Seconds between polls of a draining worker."""


@click.group()
def lease() -> None:
    """Revoke leases. List them with `leaseway leases`."""


@lease.command(
    epilog=examples(
        'leaseway lease revoke 6c0a0d1ddd4f7d77-1 --reason "maintenance"',
        "leaseway lease revoke --server files --session dialog-42",
    )
)
@click.argument("lease_id", metavar="[LEASE]", default="")
@click.option("--server", default="", help="Instead of LEASE: the server of the lease.")
@click.option("--session", default="", help="Instead of LEASE: the session that holds it.")
@click.option("--reason", default="", help="The reason, for errors of the session.")
@client_options
def revoke(
    lease_id: str, server: str, session: str, reason: str, connection: ConnectionOptions
) -> None:
    """Revoke LEASE, or the lease of --session on --server.

    LEASE is an id that `leaseway leases` prints. Its instance is stopped. Calls that use the lease
    fail with the reason, including calls in flight.
    """
    by_name = bool(server and session)
    if bool(lease_id) is by_name or bool(server) is not bool(session):
        raise click.UsageError("Name the lease by its id, or by --server and --session.")

    async def request(client: AsyncClient) -> tuple[str, bool]:
        lease = await _find(client, server, session) if by_name else lease_id
        return lease, await client.revoke_lease(lease, reason)

    revoked, confirmed = with_client(connection, request)
    if not confirmed:
        raise CliFailure(
            f"The worker of lease '{revoked}' has not confirmed the revocation yet. "
            "See: leaseway leases",
            FAILED,
        )
    say(f"Lease {revoked} is revoked.")


async def _find(client: AsyncClient, server: str, session: str) -> str:
    found = await client.find_lease(session, server)
    if found is None:
        raise CliFailure(
            f"No worker has reported a lease of server '{server}' for session '{session}'. "
            "See: leaseway leases (for one --tenant at a time)",
            FAILED,
        )
    return found


@click.command(epilog=examples("leaseway worker drain worker-1 --wait"))
@click.argument("worker_id", metavar="WORKER")
@click.option("--wait", is_flag=True, help="Return when the worker has exited.")
@timeout_option("Maximum seconds to wait.", 60)
@client_options
def drain(worker_id: str, wait: bool, timeout: float, connection: ConnectionOptions) -> None:
    """Drain WORKER: stop it without failing a call.

    The worker rejects new work, finishes its calls in flight, revokes its leases and exits.
    """

    async def request(client: AsyncClient) -> None:
        incarnation = _incarnation(worker_id, await client.workers())
        await client.drain_worker(worker_id)
        say(f"Worker {worker_id} is draining.")
        if wait:
            async with asyncio.timeout(timeout):
                await _wait_for_exit(client, worker_id, incarnation)

    try:
        with_client(connection, request)
    except TimeoutError:
        raise CliFailure(
            f"Worker '{worker_id}' has not exited within {timeout:g} s; it still finishes calls. "
            "See: leaseway workers",
            FAILED,
        ) from None
    if wait:
        say(f"Worker {worker_id} has exited.")


def _incarnation(worker_id: str, workers: list[WorkerInfo]) -> str:
    """Return the worker's incarnation: a later process may have the same id."""
    live = (worker for worker in workers if worker.id == worker_id and worker.state != "lost")
    return next((worker.incarnation for worker in live), "")


async def _wait_for_exit(client: AsyncClient, worker_id: str, incarnation: str) -> None:
    from leaseway.sdk import ControlPlaneUnavailable

    while True:
        try:
            if _incarnation(worker_id, await client.workers()) != incarnation:
                return
        except ControlPlaneUnavailable:
            pass  # poll again
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
"""`leaseway worker` runs a worker; its subcommand stops a running one."""
